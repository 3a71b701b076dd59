"""Seeks: to offsets, ends and times; what was asked for before is not used; progress never goes back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rmq.consumer import NotAssigned
from rmq.wire.errors import ConfigError, OffsetOutOfRange, TopicNotFound
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..polling import OTHER, QUEUE, MakePull, drained, now, offsets

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def ten(broker: FakeBroker, queues: int = 1) -> None:
    broker.create("t", queues)
    for queue_id in range(queues):
        for _ in range(5):
            broker.send("t", queue_id, b"a", b"b")


@pytest.mark.parametrize(("to", "at"), [(0, 0), (3, 3), (9, 9), (10, 10), ("first", 2), ("last", 10), (2, 2)], ids=str)
async def test_a_poll_goes_on_where_it_was_sought_to(
    broker: FakeBroker, pull: MakePull, to: int | str, at: int
) -> None:
    ten(broker)
    if to == "first":
        broker.min_offsets[QUEUE] = 2
        broker.offsets["g", QUEUE] = 5
    async with pull(batch=4) as consumer:
        await consumer.poll(1)

        assert await consumer.seek(QUEUE, to) == at
        assert consumer.position(QUEUE) == at
        assert [offset for _, offset in await drained(consumer)] == list(range(at, 10))
        assert consumer.position(QUEUE) == 10


@pytest.mark.parametrize("to", [1, 11, -1])
async def test_an_offset_that_the_queue_does_not_hold_is_refused_and_changes_nothing(
    broker: FakeBroker, pull: MakePull, to: int
) -> None:
    ten(broker)
    broker.min_offsets[QUEUE] = 2
    async with pull(batch=4) as consumer:
        assert offsets(await consumer.poll(1)) == [2, 3, 4, 5]
        with pytest.raises(OffsetOutOfRange, match=f"offset {to} is out of range: t/0 holds 2 to 10"):
            await consumer.seek(QUEUE, to)
        assert offsets(await consumer.poll(1)) == [6, 7, 8, 9]


@pytest.mark.parametrize("to", ["middle", 1.5, None, True])
async def test_what_is_no_offset_is_refused(broker: FakeBroker, pull: MakePull, to: Any) -> None:
    ten(broker)
    async with pull() as consumer:
        await consumer.poll(1)
        with pytest.raises(ConfigError, match='an offset, "first" or "last", not'):
            await consumer.seek(QUEUE, to)


async def test_a_queue_that_is_not_held_cannot_be_sought_in(broker: FakeBroker, pull: MakePull) -> None:
    ten(broker)
    async with pull() as consumer:
        await consumer.poll(1)
        with pytest.raises(NotAssigned, match="this consumer does not own t/1"):
            await consumer.seek(OTHER, 0)
        with pytest.raises(NotAssigned, match="this consumer does not own t/1"):
            consumer.position(OTHER)


async def test_a_queue_that_is_taken_away_while_the_broker_is_asked_is_not_sought_in(
    broker: FakeBroker, pull: MakePull
) -> None:
    ten(broker)
    async with pull() as consumer:
        await consumer.poll(1)
        await consumer.poll(0)
        hold = broker.hold_reply(Op.RANGES)
        seek = asyncio.create_task(consumer.seek(QUEUE, 0))
        await hold.reached.wait()
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        hold.let_go.set()
        with pytest.raises(NotAssigned, match="t/0 was taken away from this consumer"):
            await seek


async def test_a_queue_that_is_taken_away_in_the_step_of_the_seek_is_not_pulled_any_more(
    broker: FakeBroker, pull: MakePull
) -> None:
    ten(broker)
    async with pull() as consumer:
        await drained(consumer)
        broker.set_members("g", "a")
        await asyncio.sleep(0.0999)  # changes of members are gathered for 100 ms
        ranges = broker.hold_reply(Op.RANGES)
        seek = asyncio.create_task(consumer.seek(QUEUE, 0))
        await ranges.reached.wait()
        asyncio.get_running_loop().call_at(now() + 0.0001, ranges.let_go.set)
        try:
            await seek
        except NotAssigned:
            pass
        await asyncio.sleep(1)
        pulls = len(broker.sent(Op.PULL))
        await asyncio.sleep(60)
        assert (len(broker.sent(Op.PULL)), broker.holder("g", QUEUE)) == (pulls, None)


@pytest.mark.parametrize("answer_first", [True, False])
async def test_an_answer_to_a_pull_from_before_the_seek_is_not_used(
    broker: FakeBroker, pull: MakePull, answer_first: bool
) -> None:
    """The answer about the old place is read right before the seek, or is there and not read yet when it happens."""
    ten(broker)
    hold = broker.hold_reply(Op.PULL)
    async with pull(batch=4) as consumer:
        await hold.reached.wait()
        ranges = broker.hold_reply(Op.RANGES)
        seek = asyncio.create_task(consumer.seek(QUEUE, 6))
        await ranges.reached.wait()
        first, second = (hold, ranges) if answer_first else (ranges, hold)
        first.let_go.set()
        second.let_go.set()  # both answers are read in the same turn of the loop
        await seek
        assert consumer.position(QUEUE) == 6

        assert [offset for _, offset in await drained(consumer)] == [6, 7, 8, 9]
        asked = [request.payload.queues[0].queue_offset for request in broker.sent(Op.PULL)]
        assert asked[:3] == [0, 6, 10]


async def test_an_answer_that_never_comes_does_not_keep_the_seek_waiting(broker: FakeBroker, pull: MakePull) -> None:
    ten(broker)
    hold = broker.hold_request(Op.PULL)
    async with pull() as consumer:
        await hold.reached.wait()
        await consumer.seek(QUEUE, 6)
        assert (offsets(await consumer.poll(1)), now()) == ([6, 7, 8, 9], 0.0)


async def test_a_seek_while_the_beginning_of_the_group_is_looked_up_counts(broker: FakeBroker, pull: MakePull) -> None:
    ten(broker)
    broker.min_offsets[QUEUE] = 2
    hold = broker.hold_reply(Op.RANGES)  # the puller's
    async with pull() as consumer:
        await hold.reached.wait()
        assert consumer.position(QUEUE) is None
        await consumer.seek(QUEUE, 6)
        hold.let_go.set()
        assert offsets(await consumer.poll(1)) == [6, 7, 8, 9]


async def test_the_batch_in_hand_counts_for_nothing_after_a_seek_of_its_queue(
    broker: FakeBroker, pull: MakePull
) -> None:
    ten(broker)
    async with pull(batch=4) as consumer:
        await consumer.poll(1)
        await consumer.poll(1)
        await consumer.seek(QUEUE, 2)
        await consumer.commit()
        assert (broker.offsets["g", QUEUE], consumer.position(QUEUE)) == (4, 2)
        assert offsets(await consumer.poll(1)) == [2, 3, 4, 5]


async def test_a_hand_over_does_not_wait_for_a_batch_from_before_a_seek(broker: FakeBroker, pull: MakePull) -> None:
    ten(broker)
    async with pull(batch=4) as consumer:
        await consumer.poll(1)
        await consumer.seek(QUEUE, 2)
        broker.set_members("g", "a")
        await asyncio.sleep(0.2)
        assert broker.holder("g", QUEUE) is None


async def test_the_batch_in_hand_of_another_queue_is_done_all_the_same(broker: FakeBroker, pull: MakePull) -> None:
    ten(broker, 2)
    async with pull(batch=4) as consumer:
        await asyncio.sleep(1)
        queue = (await consumer.poll(1)).queue
        await consumer.seek(OTHER if queue == QUEUE else QUEUE, 8)
        await consumer.commit()
        assert broker.offsets["g", queue] == 4


async def test_after_a_seek_backwards_progress_stays_until_it_is_passed(broker: FakeBroker, pull: MakePull) -> None:
    ten(broker)
    async with pull(batch=2) as consumer:
        for _ in range(4):
            await consumer.poll(1)
        await consumer.seek(QUEUE, 1)  # 0 to 5 are done, and committed by the seek
        progress = []
        for _ in range(4):
            await consumer.commit()
            progress.append((await consumer.committed(QUEUE), consumer.position(QUEUE)))
            await consumer.poll(1)

    assert progress == [(6, 1), (6, 3), (6, 5), (7, 7)]
    assert broker.offsets["g", QUEUE] == 9


async def test_without_auto_commit_a_seek_backwards_forgets_what_was_done_and_not_committed(
    broker: FakeBroker, pull: MakePull
) -> None:
    ten(broker)
    async with pull(batch=2, auto_commit_every_s=0) as consumer:
        await consumer.poll(1)
        await consumer.commit()
        await consumer.poll(1)
        await consumer.poll(1)
        await consumer.seek(QUEUE, 1)
        await consumer.commit()
        assert await consumer.committed(QUEUE) == 2


async def test_a_seek_forwards_passes_what_lies_between_with_the_next_commit(
    broker: FakeBroker, pull: MakePull
) -> None:
    ten(broker)
    async with pull(batch=2) as consumer:
        await consumer.poll(1)
        await consumer.seek(QUEUE, 8)
        assert await consumer.committed(QUEUE) == 0
        await asyncio.sleep(5)
        assert await consumer.committed(QUEUE) == 8


async def test_seeks_at_the_same_time_leave_one_puller_at_the_place_of_the_last(
    broker: FakeBroker, pull: MakePull
) -> None:
    ten(broker)
    async with pull() as consumer:
        await drained(consumer)
        await asyncio.gather(*(consumer.seek(QUEUE, offset) for offset in (1, 8, 6)))
        assert [offset for _, offset in await drained(consumer)] == [6, 7, 8, 9]
        pulls = len(broker.sent(Op.PULL))
        await asyncio.sleep(60)
        assert len(broker.sent(Op.PULL)) - pulls == 4


@pytest.mark.parametrize("steps", range(8))
async def test_a_cancelled_seek_leaves_a_queue_that_is_pulled(broker: FakeBroker, pull: MakePull, steps: int) -> None:
    ten(broker)
    async with pull() as consumer:
        await drained(consumer)
        seek = asyncio.create_task(consumer.seek(QUEUE, 6))
        for _ in range(steps):
            await asyncio.sleep(0)
        seek.cancel()
        await asyncio.wait([seek])
        broker.send("t", 0, b"new")
        found = [offset for _, offset in await drained(consumer)]
        assert found in ([10], [6, 7, 8, 9, 10])


async def test_a_seek_in_a_paused_queue_waits_with_it(broker: FakeBroker, pull: MakePull) -> None:
    ten(broker)
    async with pull() as consumer:
        await drained(consumer)
        consumer.pause("t")
        await consumer.seek(QUEUE, 6)
        assert await consumer.poll(2) == []
        consumer.resume()
        assert offsets(await consumer.poll(1)) == [6, 7, 8, 9]


async def test_a_seek_passes_a_gap_at_which_the_queue_has_stopped(broker: FakeBroker, pull: MakePull) -> None:
    ten(broker)
    broker.damaged[QUEUE] = range(2, 6)
    async with pull() as consumer:
        assert [offset for _, offset in await drained(consumer)] == [0, 1]
        assert list(consumer.stopped_queues) == [QUEUE]
        await consumer.seek(QUEUE, 6)
        assert consumer.stopped_queues == {}
        assert offsets(await consumer.poll(1)) == [6, 7, 8, 9]


# Times

TIME = datetime(2026, 1, 31, 12, tzinfo=UTC)
TIME_US = 1_769_860_800_000_000


async def test_a_time_is_sought_in_every_queue_of_a_topic_or_in_one(broker: FakeBroker, pull: MakePull) -> None:
    ten(broker, 2)
    broker.offsets_at[QUEUE, TIME_US], broker.offsets_at[OTHER, TIME_US] = 8, 10
    async with pull() as consumer:
        await drained(consumer)
        assert await consumer.seek_to_time("t", TIME) == {QUEUE: 8, OTHER: 10}
        assert await drained(consumer) == [(0, 8), (0, 9)]

        assert await consumer.seek_to_time(("t", 0), TIME) == {QUEUE: 8}
        assert await drained(consumer) == [(0, 8), (0, 9)]


async def test_what_is_no_time_or_not_held_is_refused(broker: FakeBroker, pull: MakePull) -> None:
    ten(broker)
    async with pull() as consumer:
        await consumer.poll(1)
        not_a_time: Any = 5
        with pytest.raises(ConfigError, match="a time must be a datetime, not 5"):
            await consumer.seek_to_time("t", not_a_time)
        too_early = datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))
        with pytest.raises(ConfigError, match=r"0001-01-01 00:00:00.* is a time that has no equal in UTC"):
            await consumer.seek_to_time("t", too_early)
        with pytest.raises(NotAssigned, match="this consumer owns no queue of other"):
            await consumer.seek_to_time("other", TIME)


# What is committed


async def test_committed_is_none_without_progress_and_an_error_without_a_topic(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", 2)
    async with pull(topics={"t": "*"}) as consumer:
        await consumer.poll(0)
        assert await consumer.committed(("t", 0)) is None
        with pytest.raises(TopicNotFound):
            await consumer.committed(("other", 0))
