"""Messages that the log lost before the group got them: the queue stops there, or goes on behind them if so told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer.group.assignment import LogGap, Stopped, gap_of
from rmq.wire.errors import Damaged, Internal, MessagesLost, OffsetOutOfRange
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import EMPTY, Op, PullResult

from .fake_broker import FakeBroker
from .recorder import QUEUE, Make, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def asked(broker: FakeBroker) -> list[int]:
    return [request.payload.queues[0].queue_offset for request in broker.sent(Op.PULL)]


def overtaken(broker: FakeBroker, *, committed: int = 2, least: int = 5) -> None:
    """Ten messages, of which retention has removed the first; the group was not done with those."""
    broker.create("t")
    for _ in range(10):
        broker.send("t", 0, b"x")
    broker.min_offsets[QUEUE] = least
    broker.offsets["g", QUEUE] = committed


# What an answer means


@pytest.mark.parametrize(
    ("result", "end"),
    [
        (PullResult(0, MessagesLost.code, 7, 7, 9, b""), 7),
        (PullResult(0, MessagesLost.code, 4, 7, 9, b""), 7),
        (PullResult(0, MessagesLost.code, 4, 4, 9, b""), None),
        (PullResult(0, OffsetOutOfRange.code, 4, 7, 9, b""), 7),
        (PullResult(0, OffsetOutOfRange.code, 4, 0, 3, b""), None),
        (PullResult(0, Damaged.code, 6, 0, 9, b""), 6),
        (PullResult(0, Damaged.code, 4, 0, 9, b""), None),
        (PullResult(0, EMPTY, 6, 0, 9, b""), None),
    ],
)
def test_a_gap_reaches_from_what_was_asked_for_to_what_can_be_read(result: PullResult, end: int | None) -> None:
    assert gap_of(4, result) == (None if end is None else LogGap(result.status, 4, end))


def test_a_gap_says_what_is_missing_why_and_what_to_do() -> None:
    lost, damaged = LogGap(OffsetOutOfRange.code, 4, 7), LogGap(Damaged.code, 4, 5)
    assert (str(lost), lost.count) == ("MESSAGES_LOST: offsets 4 to 6", 3)
    assert (str(damaged), damaged.count) == ("DAMAGED: offsets 4 to 4", 1)
    assert 'to go on at 7 without them, run with on_gap = "skip"' in lost.advice()
    assert "damaged" in damaged.advice()


def test_the_pauses_of_a_stopped_queue_grow_to_30_s_and_it_is_reported_every_5_minutes() -> None:
    stopped, pauses, told = Stopped(LogGap(Damaged.code, 0, 1)), [], []
    now = 0.0
    while now < 700:
        if stopped.found_again(now):
            told.append(now)
        pauses.append(stopped.pause_s)
        now += stopped.pause_s
    assert pauses[:5] == [5.0, 10.0, 20.0, 30.0, 30.0]
    assert told == [0.0, 305.0, 605.0]


# Stop


async def test_a_queue_stops_at_lost_messages_keeps_its_lease_and_asks_again_with_growing_pauses(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    overtaken(broker)
    listener = Recorder()
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(100)
        assert consumer.assignment == [QUEUE]
        assert consumer.stopped_queues == {QUEUE: "MESSAGES_LOST: offsets 2 to 4"}

    assert listener.calls == []
    assert broker.times(Op.PULL) == [0.0, 5.0, 15.0, 35.0, 65.0, 95.0]
    assert broker.times(Op.RENEW) == [1.0, 21.0, 41.0, 61.0, 81.0]
    assert broker.offsets["g", QUEUE] == 2
    assert caplog.text.count("queue.stopped") == 1
    assert "queue=t/0 reason=MESSAGES_LOST from_offset=2 to_offset=4 count=3 advice=" in caplog.text


async def test_only_the_queue_with_the_gap_stops(broker: FakeBroker, make: Make) -> None:
    overtaken(broker)
    broker.create("t", 2)
    broker.send("t", 1, b"x")
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(3)

    assert [(queue_id, offsets) for _, queue_id, offsets in listener.calls] == [(1, [0])]


async def test_what_was_cached_before_a_damaged_range_is_delivered_and_committed_then_the_queue_stops(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    for _ in range(10):
        broker.send("t", 0, b"x")
    broker.damaged[QUEUE] = range(3, 6)
    listener = Recorder(takes_s=1.0)
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(4)
        assert consumer.stopped_queues == {QUEUE: "DAMAGED: offsets 3 to 5"}
        assert listener.offsets == [0, 1, 2]
        assert broker.offsets["g", QUEUE] == 3


async def test_a_queue_whose_damage_was_repaired_goes_on_by_itself(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    broker.create("t")
    for _ in range(4):
        broker.send("t", 0, b"x")
    broker.damaged[QUEUE] = range(1, 3)
    listener = Recorder()
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(7)
        del broker.damaged[QUEUE]
        await asyncio.sleep(10)
        assert consumer.stopped_queues == {}

    assert listener.offsets == [0, 1, 2, 3]
    assert listener.times == [0.0, 15.0, 15.0, 15.0]
    assert "queue.resumed" in caplog.text


async def test_a_gap_that_grew_is_reported_again_and_asked_for_soon_again(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    overtaken(broker)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(20)
        broker.min_offsets[QUEUE] = 7
        await asyncio.sleep(30)
        assert consumer.stopped_queues == {QUEUE: "MESSAGES_LOST: offsets 2 to 6"}

    assert broker.times(Op.PULL) == [0.0, 5.0, 15.0, 35.0, 40.0, 50.0]
    assert caplog.text.count("queue.stopped") == 2


async def test_a_reset_of_the_offset_ends_the_stop(broker: FakeBroker, make: Make) -> None:
    overtaken(broker)
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(2)
        broker.offsets["g", QUEUE] = 8  # which raises the epoch of the lease it touches
        broker.free("g", QUEUE)
        await asyncio.sleep(4)

    assert listener.offsets == [8, 9]


async def test_a_stopped_queue_is_handed_over_and_stopped_without_waiting_for_its_pause(
    broker: FakeBroker, make: Make
) -> None:
    overtaken(broker)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(40)  # it asks again at 65 s
        broker.set_members("g", "a")
        await asyncio.sleep(0.2)
        assert consumer.assignment == []
        assert consumer.stopped_queues == {}
        assert broker.holder("g", QUEUE) is None
        broker.set_members("g")
        await asyncio.sleep(0.2)
        assert consumer.assignment == [QUEUE]
        before = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - before < 0.1
    assert broker.offsets["g", QUEUE] == 2


@pytest.mark.parametrize("on_gap", ["stop", "skip"])
async def test_an_answer_about_a_gap_that_comes_after_the_queue_was_dropped_changes_nothing(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture, on_gap: str
) -> None:
    overtaken(broker)
    hold = broker.hold_reply(Op.PULL)
    consumer = make(topics={"t": "*"}, on_gap=on_gap)

    async with consumer:
        await hold.reached.wait()
        broker.set_members("g", "a")
        await asyncio.sleep(0.2)
        hold.let_go.set()
        await asyncio.sleep(1)
        assert (consumer.assignment, consumer.stopped_queues) == ([], {})

    assert broker.offsets["g", QUEUE] == 2
    assert "queue.stopped" not in caplog.text
    assert "queue.gap_skipped" not in caplog.text


# Skip


async def test_a_consumer_that_is_told_to_skip_warns_and_goes_on_behind_the_gap(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    overtaken(broker)
    listener = Recorder()

    async with make(listener, topics={"t": "*"}, on_gap="skip"):
        await asyncio.sleep(1)

    assert asked(broker)[:2] == [2, 5]
    assert listener.offsets == [5, 6, 7, 8, 9]
    skipped = "queue.gap_skipped queue=t/0 reason=MESSAGES_LOST from_offset=2 to_offset=4 count=3 goes_on_at=5"
    assert caplog.text.count(skipped) == 1


async def test_progress_gets_across_a_gap_at_the_end_of_the_queue_also_behind_cached_messages(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    for _ in range(6):
        broker.send("t", 0, b"x")
    broker.damaged[QUEUE] = range(3, 6)
    listener = Recorder(takes_s=1.0)

    async with make(listener, topics={"t": "*"}, on_gap="skip"):
        await asyncio.sleep(2.5)
        assert broker.offsets["g", QUEUE] == 2
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 6
        broker.send("t", 0, b"x")
        await asyncio.sleep(0.1)

    assert listener.offsets == [0, 1, 2, 6]


async def test_a_gap_with_nothing_cached_is_committed_at_once(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"x")
    broker.damaged[QUEUE] = range(0, 1)

    async with make(topics={"t": "*"}, on_gap="skip"):
        await asyncio.sleep(0.3)
        assert broker.offsets["g", QUEUE] == 1


async def test_a_message_that_is_tried_again_before_a_gap_keeps_the_progress_before_it(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    for _ in range(4):
        broker.send("t", 0, b"x")
    broker.damaged[QUEUE] = range(1, 3)
    listener = Recorder(*[None] * 5)

    async with make(listener, topics={"t": "*"}, on_gap="skip", suspend_s=1.0):
        await asyncio.sleep(10)
        assert set(listener.offsets) == {0}
        assert broker.offsets["g", QUEUE] == 0
        await asyncio.sleep(30)
        assert listener.offsets[-2:] == [0, 3]
        assert broker.offsets["g", QUEUE] == 4


# Neither


async def test_retention_between_finding_the_first_message_and_asking_for_it_is_no_gap(
    broker: FakeBroker, make: Make
) -> None:
    overtaken(broker, least=3)
    del broker.offsets["g", QUEUE]
    hold = broker.hold_request(Op.PULL)
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await hold.reached.wait()
        broker.min_offsets[QUEUE] = 6
        hold.let_go.set()
        await asyncio.sleep(1)

    assert listener.offsets == [6, 7, 8, 9]


async def test_damage_without_an_end_is_asked_for_again_and_never_skipped(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"x")
    broker.refuse[Op.PULL] = [Damaged("rot"), Internal("x")]
    listener = Recorder()

    async with make(listener, topics={"t": "*"}, on_gap="skip"):
        await asyncio.sleep(7)

    assert (listener.offsets, listener.times) == ([0], [6.0])


async def test_other_queues_are_not_named_as_stopped(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    consumer: Any = make(topics={"t": "*"})
    assert consumer.stopped_queues == {}
    async with consumer:
        await asyncio.sleep(1)
        assert consumer.stopped_queues == {}
        assert consumer.assignment == [MessageQueue("t", 0), MessageQueue("t", 1)]
