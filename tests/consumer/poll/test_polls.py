"""
Polls: time-outs, turns of the queues, what is in hand, cancellation, pauses, leases, hand-overs.

The line of queues that have something: everybody once, in turn.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer import PullConsumer, PulledBatch
from rmq.consumer.poll.polls import ReadyQueues
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..polling import OTHER, QUEUE, MakePull, drained, now, offsets

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


@pytest.mark.parametrize(("arrives_at", "found"), [(4.999, True), (5.0, False), (5.001, False)])
async def test_a_poll_returns_what_comes_within_its_time(
    broker: FakeBroker, pull: MakePull, arrives_at: float, found: bool
) -> None:
    broker.create("t")
    async with pull() as consumer:
        await asyncio.sleep(1)
        asyncio.get_running_loop().call_at(arrives_at + 1, broker.send, "t", 0, b"x")

        batch = await consumer.poll(5.0)

        assert (bool(batch), now()) == (found, 1 + (arrives_at if found else 5.0))
        assert offsets(await consumer.poll(1)) == ([] if found else [0])


@pytest.mark.parametrize(("after_s", "found"), [(4.999, True), (5.0, True), (5.001, False)])
@pytest.mark.parametrize("first", [True, False])
async def test_what_may_be_returned_at_the_very_end_of_a_poll_is(
    broker: FakeBroker, pull: MakePull, after_s: float, found: bool, first: bool
) -> None:
    """Whichever of the two timers is the first of that moment."""
    broker.create("t", bodies=[b"x"])
    async with pull() as consumer:
        await asyncio.sleep(1)
        consumer.pause()
        loop = asyncio.get_running_loop()
        if first:
            loop.call_at(1 + after_s, consumer.resume)
        poll = asyncio.create_task(consumer.poll(5.0))
        await asyncio.sleep(0)
        if not first:
            loop.call_at(1 + after_s, consumer.resume)

        assert (bool(await poll), now()) == (found, 1 + min(after_s, 5.0))


async def test_a_poll_without_time_returns_what_is_there_and_lets_the_loop_run(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    async with pull(batch=1) as consumer:
        polls = 0
        while not (batch := await consumer.poll(0)):  # a loop without any other await
            polls += 1
        assert (offsets(batch), polls < 100, now()) == ([0], True, 0.0)
        assert offsets(await consumer.poll(0)) == [1]
        assert await consumer.poll(0) == []


async def test_a_batch_is_of_one_queue_and_every_queue_has_its_turn(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", 3)
    for queue_id, count in enumerate((6, 2, 4)):
        broker.send("t", queue_id, *[b"x"] * count)
    async with pull(batch=2) as consumer:
        await asyncio.sleep(1)
        seen = []
        while batch := await consumer.poll(0):
            seen.append((batch.queue.queue_id, offsets(batch)))

    assert sorted(queue_id for queue_id, _ in seen[:3]) == [0, 1, 2]
    assert [queue_id for queue_id, _ in seen[3:5]].count(0) == 1
    assert [part for queue_id, part in seen if queue_id == 0] == [[0, 1], [2, 3], [4, 5]]
    assert [part for queue_id, part in seen if queue_id == 2] == [[0, 1], [2, 3]]


async def test_a_busy_queue_does_not_keep_another_waiting(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", 2, bodies=[b"x"] * 100)
    async with pull(batch=1) as consumer:
        for _ in range(3):
            assert (await consumer.poll(1)).queue == QUEUE
        broker.send("t", 1, b"y")
        await asyncio.sleep(0.1)
        queues = [(await consumer.poll(1)).queue for _ in range(2)]

    assert OTHER in queues


async def test_a_user_who_awaits_nothing_but_polls_stops_no_timer(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"] * 300)
    loop, readings, steps = asyncio.get_running_loop(), 0, 0

    def clock() -> float:
        """Every reading takes half a millisecond."""
        nonlocal readings
        readings += 1
        return loop.time() + readings * 0.0005

    async def count() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    async with pull(batch=1, now=clock) as consumer:
        await asyncio.sleep(1)
        counting = asyncio.create_task(count())
        for offset in range(300):
            assert offsets(await consumer.poll(1)) == [offset]
        counting.cancel()

    assert steps > 50  # 300 polls take 300 ms or more, and every 2 ms the loop has its turn


async def test_unwanted_messages_are_passed_in_one_poll(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 9, tags=["b"] * 8 + ["a"])
    async with pull(topics={"t": "a"}) as consumer:
        assert offsets(await consumer.poll(1)) == [8]
        assert consumer.position(QUEUE) == 9


async def test_a_poll_without_time_passes_unwanted_messages_to_what_is_there_behind_them(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", 2)
    broker.send("t", 0, *[b"x"] * 9, tags=["b"] * 9)
    broker.send("t", 1, b"y", tags=["a"])
    async with pull(topics={"t": "a"}) as consumer:
        await asyncio.sleep(1)
        assert [message.body for message in await consumer.poll(0)] == [b"y"]
        assert await consumer.poll(0) == []


async def test_a_cancelled_poll_loses_no_message_at_whatever_step_it_is_cancelled(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t")
    seen: list[int] = []
    async with pull(batch=1) as consumer:
        await asyncio.sleep(1)
        for steps in range(8):
            broker.send("t", 0, b"x")
            poll = asyncio.create_task(consumer.poll(5))
            for _ in range(steps):
                await asyncio.sleep(0)
            poll.cancel()
            try:
                seen += offsets(await poll)
            except asyncio.CancelledError:
                pass
        seen += [offset for _, offset in await drained(consumer)]

    assert seen == list(range(8))


async def test_a_cancelled_poll_leaves_done_what_came_before_it(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"a"])
    async with pull() as consumer:
        await consumer.poll(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.poll(None), 1)
        await consumer.commit()

    assert broker.offsets["g", QUEUE] == 1


async def test_a_poll_is_refused_while_another_task_waits_for_one(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t")
    async with pull() as consumer:
        waiting = asyncio.create_task(consumer.poll(None))
        await asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="another task polls this consumer: poll with one task"):
            await consumer.poll(0)
        broker.send("t", 0, b"a")
        assert offsets(await waiting) == [0]


async def test_a_poll_is_refused_while_another_task_works_on_what_its_iteration_returned(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"a", b"b"])

    async def work() -> None:
        async for _ in consumer:
            await asyncio.sleep(2)

    async with pull(batch=1) as consumer:
        working = asyncio.create_task(work())
        await asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="another task polls this consumer"):
            await consumer.poll(0)
        with pytest.raises(RuntimeError, match="another task polls this consumer"):
            await anext(consumer)
        working.cancel()
        await asyncio.wait([working])
        assert offsets(await consumer.poll(1)) == [1]


async def test_a_poll_in_a_task_of_its_own_is_one_of_the_same_user(broker: FakeBroker, pull: MakePull) -> None:
    """As in ``asyncio.wait_for(consumer.poll(), 1)``."""
    broker.create("t", bodies=[b"a", b"b"])
    async with pull(batch=1) as consumer:
        assert offsets(await consumer.poll(1)) == [0]
        assert offsets(await asyncio.create_task(consumer.poll(1))) == [1]
        assert await consumer.poll(0) == []


# Pauses
async def test_a_paused_queue_is_not_returned_though_it_is_cached_and_goes_on_at_once(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, *[b"x"] * 4)
    async with pull(batch=2) as consumer:
        await asyncio.sleep(1)
        consumer.pause(QUEUE)
        assert await drained(consumer) == [(1, offset) for offset in range(4)]
        assert consumer.assignment == [QUEUE, OTHER]

        asyncio.get_running_loop().call_later(2, consumer.resume, QUEUE)
        began = now()
        assert (await consumer.poll(10)).queue == QUEUE
        assert now() == began + 2


async def test_everything_paused_is_a_poll_that_times_out(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"])
    async with pull() as consumer:
        consumer.pause()
        assert await consumer.poll(3) == []
        consumer.resume("t")
        assert offsets(await consumer.poll(0.1)) == [0]


# Leases
async def test_nothing_is_returned_while_the_lease_is_not_proven_and_it_goes_on_when_it_is(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    async with pull(batch=1) as consumer:
        await consumer.poll(1)
        broker.connections[0].silent = True
        await asyncio.sleep(4.5)  # the grace is 5 s, less a margin of one
        assert await consumer.poll(0) == []
        batch = consumer.poll(10)
        asyncio.get_running_loop().call_later(0.2, setattr, broker.connections[0], "silent", False)
        assert offsets(await batch) == [1]


async def test_a_lost_queue_is_not_returned_any_more_and_its_batch_says_so(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, *[b"x"] * 4)
    async with pull(batch=1, topics={"t": "*"}) as consumer:
        await asyncio.sleep(0.1)
        batch = await consumer.poll(1)
        lost = batch.queue
        assert not batch.lost

        broker.free("g", lost)
        broker.give("g", lost)
        await asyncio.sleep(0.1)

        assert batch.lost
        assert {queue_id for queue_id, _ in await drained(consumer)} == {1 - lost.queue_id}
        assert broker.offsets.get(("g", lost), 0) <= 0


# Hand-over
async def test_a_hand_over_waits_for_the_batch_in_hand_until_the_next_poll(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    async with pull(batch=2) as consumer:
        await consumer.poll(1)
        broker.set_members("g", "a")  # the queue is theirs now
        await asyncio.sleep(10)
        assert broker.holder("g", QUEUE) is not None

        assert await consumer.poll(1) == []
        assert (broker.holder("g", QUEUE), broker.offsets["g", QUEUE]) == (None, 2)


@pytest.mark.parametrize(("after_s", "held"), [(29.9, True), (30.2, False)])
async def test_a_user_who_never_polls_again_keeps_a_queue_for_drain_s_and_its_batch_is_given_back(
    broker: FakeBroker, pull: MakePull, after_s: float, held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    async with pull(batch=2) as consumer:
        await consumer.poll(1)
        batch = await consumer.poll(1)  # the first two are done
        broker.set_members("g", "a")
        await asyncio.sleep(0.1 + after_s)  # changes of members are gathered for 100 ms

        assert (broker.holder("g", QUEUE) is not None, batch.lost) == (held, not held)
        if not held:
            assert broker.offsets["g", QUEUE] == 2
            assert await consumer.poll(0) == []
            assert broker.offsets["g", QUEUE] == 2
            assert "poll.given_back" in caplog.text


async def test_an_idle_queue_is_handed_over_at_once_with_all_that_is_done(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    async with pull(batch=2) as consumer:
        await consumer.poll(1)
        await consumer.poll(1)
        await consumer.poll(0)
        broker.set_members("g", "a")
        await asyncio.sleep(0.2)

        assert (broker.holder("g", QUEUE), broker.offsets["g", QUEUE]) == (None, 4)


async def test_a_batch_that_its_user_empties_is_done_all_the_same(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"] * 3)
    async with pull() as consumer:
        batch: PulledBatch = await consumer.poll(1)
        batch.clear()
        assert batch.queue == QUEUE

    (leave,) = broker.sent(Op.LEAVE)
    assert [lease.queue_offset for lease in leave.payload.leases] == [3]


def test_who_stands_already_keeps_its_place_and_nobody_is_served_twice() -> None:
    line = ReadyQueues[str]()
    for name in "abab":
        line.add(name)

    assert (len(line), line.take(), line.take(), line.take()) == (2, "a", "b", None)


def test_who_leaves_the_line_is_not_served_and_may_come_back_at_its_end() -> None:
    line = ReadyQueues[str]()
    for name in "abc":
        line.add(name)

    line.discard("a")
    line.discard("nobody")
    line.add("a")

    assert [line.take() for _ in range(3)] == ["b", "c", "a"]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_each_of_n_in_line_has_its_turn_within_n_turns(work: list[int]) -> None:
    line, left, served = ReadyQueues[int](), dict(enumerate(work)), []
    for who in left:
        line.add(who)

    while (who := line.take()) is not None:
        served.append(who)
        left[who] -= 1
        if left[who]:
            line.add(who)

    for who, turns in enumerate(work):
        places = [at for at, each in enumerate(served) if each == who]
        assert len(places) == turns
        assert all(later - before <= len(work) for before, later in zip([-1, *places], places, strict=False))


# What a user of a pull consumer is told when queues come and go, and may do then


async def test_the_user_is_told_before_the_first_message_and_may_seek_there(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"x"] * 6)
    told: list[Any] = []

    async def on_assigned(queues: list[MessageQueue]) -> None:
        await asyncio.sleep(1)
        told.append((now(), queues))
        await consumer.seek(queues[0], 4)

    consumer: PullConsumer = pull(on_assigned=on_assigned)
    async with consumer:
        assert offsets(await consumer.poll(5)) == [4, 5]

    assert told == [(1.0, [QUEUE])]


async def test_a_queue_is_given_away_when_the_user_was_told_and_what_they_commit_there_counts(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    told: list[Any] = []

    async def on_revoked(queues: list[MessageQueue]) -> None:
        await asyncio.sleep(1)
        told.append((queues, broker.holder("g", QUEUE) is not None))
        await consumer.commit()

    consumer = pull(batch=1, auto_commit_every_s=0, on_revoked=on_revoked)
    async with consumer:
        await consumer.poll(1)
        await consumer.poll(1)
        broker.set_members("g", "a")
        await asyncio.sleep(0.2)  # changes of members are gathered for 100 ms
        assert await consumer.poll(5) == []
        assert (broker.holder("g", QUEUE), broker.offsets["g", QUEUE]) == (None, 2)

    assert told == [([QUEUE], True)]


async def test_a_commit_in_a_hook_leaves_undone_what_the_polling_task_works_on(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, b"x", b"y")

    async def on_revoked(queues: list[MessageQueue]) -> None:
        await consumer.commit()

    consumer = pull(batch=1, on_revoked=on_revoked)
    async with consumer:
        await asyncio.sleep(0.1)
        consumer.pause(OTHER)
        batch = await consumer.poll(1)
        broker.set_members("g", "z")  # who comes behind us and gets the second queue
        await asyncio.sleep(0.2)
        assert (batch.queue, broker.holder("g", OTHER)) == (QUEUE, None)
        assert broker.offsets["g", QUEUE] == 0


async def test_a_hook_that_raises_or_hangs_is_logged_and_harms_nobody(
    broker: FakeBroker, pull: MakePull, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t", bodies=[b"x"])

    def on_assigned(queues: list[MessageQueue]) -> None:
        raise ValueError("from the hook")

    async def on_revoked(queues: list[MessageQueue]) -> None:
        await asyncio.sleep(1000)

    async with pull(on_assigned=on_assigned, on_revoked=on_revoked) as consumer:
        assert offsets(await consumer.poll(1)) == [0]
        began = now()
    assert now() == began + 30

    assert "hook.raised" in caplog.text
    assert "hook.cancelled" in caplog.text
    assert broker.offsets["g", QUEUE] == 1


async def test_a_hook_that_awaits_something_cancelled_has_raised(
    broker: FakeBroker, pull: MakePull, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t", bodies=[b"x"])

    async def on_revoked(queues: list[MessageQueue]) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async with pull(on_revoked=on_revoked) as consumer:
        await consumer.poll(1)
        await consumer.poll(0)
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        assert (broker.holder("g", QUEUE), broker.offsets["g", QUEUE]) == (None, 1)
    assert "hook.raised" in caplog.text


async def test_a_queue_that_is_taken_away_while_the_user_is_told_of_it_ends_that_first(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t")
    told: list[str] = []

    async def on_assigned(queues: list[MessageQueue]) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            told.append("assigned")

    async with pull(on_assigned=on_assigned, on_revoked=lambda queues: told.append("revoked")) as consumer:
        await asyncio.sleep(1)
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        assert (told, consumer.assignment, broker.holder("g", QUEUE)) == (["assigned", "revoked"], [], None)


async def test_a_hook_may_stop_the_consumer(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t")

    async def on_assigned(queues: list[MessageQueue]) -> None:
        await consumer.stop()

    consumer = pull(on_assigned=on_assigned)
    async with consumer:
        assert [batch async for batch in consumer] == []
