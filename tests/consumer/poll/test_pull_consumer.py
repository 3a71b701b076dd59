"""The pull consumer as its user sees it: settings, assignment, iteration, start and stop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import ConfigError, ConsumerConfig, PullConsumer
from rmq.consumer.poll.queue import PullCache
from rmq.wire.errors import GroupMismatch
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..polling import OTHER, QUEUE, MakePull, drained, now, offsets

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


# Settings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "a consumer needs a group: PullConsumer"),
        ({"group": "g", "orderly": False}, "leave orderly and model out"),
        ({"group": "g", "model": "broadcasting"}, "leave orderly and model out"),
        ({"group": "g", "no_such": 1}, "a consumer has no setting 'no_such'"),
        ({"group": "g", "topics": ["t"]}, "topics must be a dictionary"),
        ({"group": "g", "on_assigned": 7}, "on_assigned must be a function of a list of queues, not 7"),
    ],
)
async def test_what_cannot_be_set_is_refused_in_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        PullConsumer("fake:1", **settings)


async def test_a_batch_is_of_10_messages_unless_it_is_set() -> None:
    assert PullConsumer("a:1", group="g").config.batch == 10
    assert PullConsumer("a:1", group="g", batch=7).config.batch == 7
    assert PullConsumer(config=ConsumerConfig(batch=3)).config.batch == 3


@pytest.mark.parametrize("timeout_s", [-0.001, -1, float("nan"), "1", True])
async def test_a_time_that_is_none_is_refused(pull: MakePull, timeout_s: Any) -> None:
    async with pull() as consumer:
        with pytest.raises(ConfigError, match="timeout_s must be"):
            await consumer.poll(timeout_s)


async def test_a_poll_before_the_start_or_without_anything_to_consume_is_refused(pull: MakePull) -> None:
    consumer = pull(topics={})
    with pytest.raises(RuntimeError, match="this consumer does not run"):
        await consumer.poll(1)
    async with consumer:
        with pytest.raises(ConfigError, match=r"call subscribe\(\) or assign\(\) before poll"):
            await consumer.poll(1)
        with pytest.raises(RuntimeError, match="this consumer does not run"):
            await consumer.commit()


# Subscriptions and assignments


async def test_the_member_joins_as_an_ordered_one_of_a_clustering_group(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", 2)
    async with pull(topics={}) as consumer:
        await asyncio.sleep(1)
        assert broker.sent(Op.JOIN) == []
        consumer.subscribe("t", "a || b")
        await asyncio.sleep(1)
        assert consumer.assignment == [QUEUE, OTHER]
        consumer.unsubscribe("t")
        await asyncio.sleep(1)
        assert consumer.assignment == []

    join = broker.sent(Op.JOIN)[0].payload
    assert (join.ordered, join.model, join.strategy, join.subscriptions["t"]) == (
        True,
        "clustering",
        "average",
        "a || b",
    )


async def test_assigned_queues_are_acquired_exactly_and_nothing_is_shared_out(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", 3)
    for queue_id in range(3):
        broker.send("t", queue_id, b"x")
    async with pull(topics={}) as consumer:
        broker.set_members("g", "a", "z")
        consumer.assign([("t", 1)])
        assert await drained(consumer) == [(1, 0)]
        assert consumer.assignment == [OTHER]

        consumer.assign([("t", 0)])
        assert await drained(consumer) == [(0, 0)]
        assert consumer.assignment == [QUEUE]

    join = broker.sent(Op.JOIN)[0].payload
    assert (join.ordered, join.model, join.strategy, join.subscriptions) == (True, "assigned", "assigned", {"t": "*"})


async def test_an_assigned_queue_that_another_holds_is_waited_for_and_so_is_a_seek_in_it(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", 2, bodies=[b"x"] * 4)
    broker.give("g", QUEUE)
    async with pull(topics={}) as consumer:
        consumer.assign([QUEUE])
        seek = asyncio.create_task(consumer.seek(QUEUE, 2))
        assert await consumer.poll(10) == []
        assert not seek.done()
        broker.free("g", QUEUE)
        await seek
        assert offsets(await consumer.poll(1)) == [2, 3]


async def test_an_assigned_queue_that_does_not_exist_yet_is_waited_for(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t")
    async with pull(topics={}) as consumer:
        consumer.assign([OTHER])
        assert await consumer.poll(1) == []
        broker.create("t", 2)
        broker.send("t", 1, b"x")
        assert (await consumer.poll(1)).queue == OTHER


async def test_a_seek_that_waits_for_its_queue_ends_with_the_consumer(broker: FakeBroker, pull: MakePull) -> None:
    async with pull(topics={}) as consumer:
        consumer.assign([QUEUE])
        seek = asyncio.create_task(consumer.seek(QUEUE, 2))
        await asyncio.sleep(1)
    with pytest.raises(RuntimeError, match="this consumer was stopped"):
        await seek


async def test_subscribe_and_assign_exclude_each_other(pull: MakePull) -> None:
    async with pull() as consumer:
        with pytest.raises(ConfigError, match="either subscribes to topics or is assigned queues"):
            consumer.assign([QUEUE])


async def test_topics_and_queues_are_named_without_the_namespace(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("team%t")
    broker.send("team%t", 0, *[b"x"] * 4)
    async with pull(namespace="team") as consumer:
        batch = await consumer.poll(1)
        assert (batch.queue, batch[0].topic) == (QUEUE, "t")
        await consumer.seek(QUEUE, 3)
        assert offsets(await consumer.poll(1)) == [3]
        await consumer.commit()
        assert await consumer.committed(QUEUE) == 4


# The end


async def test_the_iteration_ends_at_the_stop_and_what_it_returned_last_is_done(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    seen: list[int] = []

    async def work() -> None:
        async for batch in consumer:
            seen.extend(offsets(batch))
            await asyncio.sleep(1)

    async with pull(batch=2) as consumer:
        working = asyncio.create_task(work())
        await asyncio.sleep(1.5)
        await consumer.stop()  # waits for the second batch
        assert (working.done(), now(), seen) == (True, 2.0, [0, 1, 2, 3])

    assert broker.offsets["g", QUEUE] == 4
    with pytest.raises(RuntimeError, match="this consumer was stopped: make another one"):
        await consumer.poll(1)
    with pytest.raises(RuntimeError, match="this consumer was stopped: make another one"):
        consumer.start()
    assert [batch async for batch in consumer] == []


async def test_a_poll_that_waits_is_ended_by_the_stop(broker: FakeBroker, pull: MakePull) -> None:
    async with pull() as consumer:
        poll = asyncio.create_task(consumer.poll(None))
        await asyncio.sleep(1)
        await consumer.stop()
        assert await poll == []


async def test_a_stop_waits_no_longer_than_drain_s_for_a_task_that_keeps_its_batch(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"x"])

    async def hang() -> None:
        await consumer.poll(1)
        await asyncio.sleep(1000)

    async with pull(drain_s=7) as consumer:
        hanging = asyncio.create_task(hang())
        await asyncio.sleep(1)
        await consumer.stop()
        assert now() == 8.0
        hanging.cancel()

    assert broker.offsets["g", QUEUE] == 0


@pytest.mark.parametrize("fails", [False, True])
async def test_the_block_that_ends_well_has_done_its_last_batch_and_one_that_raises_has_not(
    broker: FakeBroker, pull: MakePull, fails: bool
) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    try:
        async with pull(batch=2) as consumer:
            await consumer.poll(1)
            await consumer.poll(1)
            if fails:
                raise ValueError("from the block")
    except ValueError:
        pass

    assert (broker.offsets["g", QUEUE], now()) == (2 if fails else 4, 0.0)


async def test_a_stop_by_the_task_that_has_the_batch_leaves_it_undone_at_once(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    async with pull(batch=2) as consumer:
        await consumer.poll(1)
        await consumer.stop()
        assert (broker.offsets["g", QUEUE], now()) == (0, 0.0)


async def test_a_consumer_that_the_broker_does_not_want_raises_that_in_the_poll_and_the_block(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.refuse[Op.JOIN].append(GroupMismatch("the group is another"))
    with pytest.raises(GroupMismatch, match="the group is another"):
        async with pull() as consumer:
            await consumer.poll(None)
    broker.refuse[Op.JOIN].append(GroupMismatch("the group is another"))
    with pytest.raises(GroupMismatch, match="the group is another"):
        async with pull() as consumer:
            async for _ in consumer:
                raise AssertionError("nothing can come")


async def test_a_stop_before_anything_began_is_none(pull: MakePull) -> None:
    consumer = pull()
    await consumer.stop()
    with pytest.raises(RuntimeError, match="was stopped"):
        consumer.start()


async def test_what_is_subscribed_after_a_stop_starts_nothing(broker: FakeBroker, pull: MakePull) -> None:
    async with pull(topics={}) as consumer:
        await consumer.stop()
        consumer.subscribe("t")
        await asyncio.sleep(1)
    assert broker.connections == []


async def test_what_it_does_can_be_looked_at(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    consumer = pull(batch=3)
    assert (consumer.statistics(), consumer.running_info(), consumer.assignment) == ({}, {}, [])
    async with consumer:
        await consumer.poll(1)
        await asyncio.sleep(2)
        (queue,) = consumer.running_info()["queues"]
        assert (queue["in_flight"], queue["called_for_s"], queue["head_offset"]) == (3, 2.0, 0)
        await consumer.poll(1)
        consumed = consumer.statistics()["t@g"].consumed_ok
        assert (consumed.total, consumed.calls, consumed.mean_s) == (3, 1, 2.0)


# The parts that are those of any consumer


@pytest.mark.parametrize(("every_s", "runs"), [(5.0, True), (0.0, False)])
async def test_there_is_a_task_that_commits_only_if_that_is_wished(
    broker: FakeBroker, pull: MakePull, every_s: float, runs: bool
) -> None:
    async with pull(auto_commit_every_s=every_s):
        await asyncio.sleep(1)
        assert any(task.get_name() == "auto-commit" for task in asyncio.all_tasks()) == runs


async def test_there_is_no_task_for_a_queue_but_its_puller(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", 5)
    async with pull():
        await asyncio.sleep(1)
        names = [task.get_name() for task in asyncio.all_tasks() if " of t/" in task.get_name()]
        assert sorted(names) == [f"puller of t/{queue_id}" for queue_id in range(5)]


async def test_queues_are_rebalanced_leased_and_pulled_as_those_of_a_listener(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"x"])
    async with pull() as consumer:
        assert offsets(await consumer.poll(1)) == [0]
        steps = dict.fromkeys(request.op for request in broker.requests)
        assert list(steps) == [Op.JOIN, Op.ACQUIRE, Op.RANGES, Op.PULL]
        assert consumer._runtime is not None
        assert isinstance(consumer._runtime.assignments[QUEUE].cache, PullCache)
        await asyncio.sleep(65)
        assert broker.times(Op.RENEW) == [1.0, 21.0, 41.0, 61.0]
        assert consumer.assignment == [QUEUE]


async def test_the_limits_of_the_cache_are_those_of_any_consumer(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t")
    for _ in range(6):
        broker.send("t", 0, b"x")
    async with pull(batch=2, cache_messages=1, pull_bytes=1) as consumer:
        await asyncio.sleep(20)
        assert len(broker.sent(Op.PULL)) == 2  # with two messages held no other is asked for
        assert offsets(await consumer.poll(1)) == [0, 1]
        assert offsets(await consumer.poll(1)) == [2]  # what is done makes room, committed or not
