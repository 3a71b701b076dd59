"""When the progress of polls is committed, and what a commit says of queues that went away."""

from __future__ import annotations

import asyncio

import pytest

from rmq.wire.errors import BadRequest, Fenced, RequestTimeout
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..polling import OTHER, QUEUE, MakePull, drained, now, offsets

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def two_queues(broker: FakeBroker, count: int = 4) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, *[b"x"] * count)


async def test_what_is_done_is_committed_every_5_s(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"] * 6)
    committed = []

    async def look(*times: float) -> None:
        for at in times:
            await asyncio.sleep(at - now())
            for _ in range(4):  # a request takes steps of the loop, and no time
                await asyncio.sleep(0)
            committed.append((now(), broker.offsets.get(("g", QUEUE), 0)))

    async with pull(batch=2) as consumer:
        await consumer.poll(1)
        await consumer.poll(1)  # two are done and two are in hand
        await look(4.999, 5.0, 5.001)
        await consumer.poll(1)
        await look(9.999, 10.0)

    assert committed == [(4.999, 0), (5.0, 2), (5.001, 2), (9.999, 2), (10.0, 4)]


async def test_nothing_is_sent_while_nothing_is_done(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t")
    broker.offsets["g", QUEUE] = 0
    broker.send("t", 0, b"x")
    async with pull() as consumer:
        await consumer.poll(1)
        await asyncio.sleep(60)
        assert broker.sent(Op.COMMIT) == []


async def test_without_auto_commit_only_commit_commits(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"] * 6)
    async with pull(batch=2, auto_commit_every_s=0) as consumer:
        await consumer.poll(1)
        await consumer.poll(1)
        await asyncio.sleep(60)
        assert broker.offsets["g", QUEUE] == 0  # where the group begins

        await consumer.commit()  # what is in hand counts too
        assert broker.offsets["g", QUEUE] == 4
        await consumer.poll(1)
        await consumer.poll(0)

    assert broker.offsets["g", QUEUE] == 4


async def test_a_commit_returns_when_the_broker_has_answered(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"])
    async with pull() as consumer:
        await consumer.poll(1)
        hold = broker.hold_reply(Op.COMMIT)
        commit = asyncio.create_task(consumer.commit())
        await hold.reached.wait()
        await asyncio.sleep(1)
        assert not commit.done()
        hold.let_go.set()
        await commit
        assert await consumer.committed(QUEUE) == 1


async def test_a_commit_is_asked_for_also_where_the_progress_rides_on_a_parked_pull(
    broker: FakeBroker, pull: MakePull
) -> None:
    """Progress on a pull reaches the disk a moment later; a commit promises more."""
    broker.create("t", bodies=[b"x"])
    async with pull() as consumer:
        await consumer.poll(1)
        await consumer.commit()
        await consumer.commit()  # nothing is new

        assert [entry.queue_offset for request in broker.sent(Op.COMMIT) for entry in request.payload.entries] == [1]


async def test_a_lost_queue_fences_the_commit_of_its_own_messages_only_and_says_so_once(
    broker: FakeBroker, pull: MakePull
) -> None:
    two_queues(broker)
    async with pull(batch=4) as consumer:
        await consumer.poll(1)
        await consumer.poll(1)
        broker.free("g", QUEUE)
        broker.give("g", QUEUE)

        with pytest.raises(Fenced, match="t/0 went to another owner before all of it was committed"):
            await consumer.commit()
        assert (broker.offsets["g", QUEUE], broker.offsets["g", OTHER]) == (0, 4)
        await consumer.commit()


async def test_a_queue_that_was_lost_before_the_commit_is_told_by_it(broker: FakeBroker, pull: MakePull) -> None:
    two_queues(broker)
    async with pull(batch=4) as consumer:
        batch = await consumer.poll(1)
        broker.free("g", batch.queue)
        broker.give("g", batch.queue)
        await asyncio.sleep(1)
        assert batch.lost

        with pytest.raises(Fenced, match=f"{batch.queue} went to another owner"):
            await consumer.commit()
        await consumer.commit()


async def test_a_lost_queue_whose_progress_was_committed_is_no_reason_to_raise(
    broker: FakeBroker, pull: MakePull
) -> None:
    two_queues(broker)
    async with pull(batch=4) as consumer:
        await drained(consumer)
        await asyncio.sleep(5)
        broker.free("g", QUEUE)
        broker.give("g", QUEUE)
        await asyncio.sleep(1)
        assert consumer.assignment == [OTHER]

        await consumer.commit()  # raises nothing
        assert (broker.offsets["g", QUEUE], broker.offsets["g", OTHER]) == (4, 4)


async def test_a_batch_that_was_given_back_unfinished_is_told_by_the_commit(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    async with pull(drain_s=1) as consumer:
        await consumer.poll(1)
        broker.set_members("g", "a")
        await asyncio.sleep(5)

        with pytest.raises(Fenced, match="t/0 went to another owner"):
            await consumer.commit()
        assert broker.offsets["g", QUEUE] == 0


async def test_without_auto_commit_a_queue_that_is_handed_over_uncommitted_is_told_by_the_commit(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    async with pull(auto_commit_every_s=0) as consumer:
        await consumer.poll(1)
        await consumer.poll(0)
        broker.set_members("g", "a")
        await asyncio.sleep(1)

        with pytest.raises(Fenced, match="t/0 went to another owner"):
            await consumer.commit()


async def test_a_deleted_topic_is_no_reason_to_raise(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    async with pull() as consumer:
        batch = await consumer.poll(1)
        broker.delete("t")
        await asyncio.sleep(1)
        assert batch.lost
        await consumer.commit()


async def test_a_commit_waits_for_a_broker_that_is_away_and_gives_up_after_its_time(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"x"])
    async with pull() as consumer:
        await consumer.poll(1)
        broker.go_down()
        asyncio.get_running_loop().call_later(2, broker.come_up)
        await consumer.commit()
        assert (now(), broker.offsets["g", QUEUE]) == (2.0, 1)

        broker.send("t", 0, b"y")
        assert offsets(await consumer.poll(1)) == [1]
        broker.go_down()
        with pytest.raises(RequestTimeout, match="the progress of t/0 was not committed within 3 s"):
            await consumer.commit()
        broker.come_up()
        await consumer.commit()
        assert broker.offsets["g", QUEUE] == 2


async def test_a_commit_to_a_broker_that_started_again_waits_until_its_log_is_known_to_agree(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"x"])
    async with pull() as consumer:
        await consumer.poll(1)
        broker.go_down()
        broker.log_epoch += 1
        hold = broker.hold_reply(Op.PULL)
        broker.come_up()
        commit = asyncio.create_task(consumer.commit())
        await hold.reached.wait()
        await asyncio.sleep(0.5)
        assert broker.sent(Op.COMMIT) == []
        hold.let_go.set()
        await commit
        assert broker.offsets["g", QUEUE] == 1


async def test_a_refused_commit_raises_what_the_broker_said(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"])
    async with pull() as consumer:
        await consumer.poll(1)
        broker.refuse[Op.COMMIT].append(BadRequest("no such thing"))
        with pytest.raises(BadRequest, match="no such thing"):
            await consumer.commit()
        await consumer.commit()


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancelled_commit_is_sent_again(broker: FakeBroker, pull: MakePull, steps: int) -> None:
    broker.create("t", bodies=[b"x"])
    async with pull() as consumer:
        await consumer.poll(1)
        commit = asyncio.create_task(consumer.commit())
        for _ in range(steps):
            await asyncio.sleep(0)
        commit.cancel()
        await asyncio.wait([commit])
        await asyncio.sleep(5)
        assert broker.offsets["g", QUEUE] == (1 if steps else 0)


async def test_progress_that_goes_with_a_hand_over_is_waited_for(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"] * 2)
    async with pull() as consumer:
        await consumer.poll(1)
        await consumer.poll(0)
        broker.set_members("g", "a")
        hold = broker.hold_request(Op.RELEASE)
        await hold.reached.wait()
        commit = asyncio.create_task(consumer.commit())
        await asyncio.sleep(0.5)
        assert not commit.done()
        hold.let_go.set()
        await commit
        assert broker.offsets["g", QUEUE] == 2
