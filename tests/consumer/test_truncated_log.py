"""A broker that lost the end of its log: go back to what both have, never beyond, and pass no message by progress."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import ConsumeContext, Consumer
from rmq.wire.errors import LogTruncated
from rmq.wire.protocol.ops.core import NO_OFFSET, Op, PullQueue, PullResult

from .fake_broker import FakeBroker
from .fetch.test_puller import Scripted
from .recorder import COMMIT, QUEUE, SUCCESS, SUSPEND, Make, Messages, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


class Bodies(Recorder):
    """A recorder that also keeps what it was given, and whether each call was told that its queue is lost."""

    def __init__(self, *script: Any, takes_s: float = 0.0) -> None:
        super().__init__(*script, takes_s=takes_s)
        self.got: list[tuple[int, bytes]] = []
        self.epochs: list[int] = []
        self.lost: list[bool] = []

    async def __call__(self, messages: Messages, context: ConsumeContext) -> Any:
        self.got += [(message.queue_offset, message.body) for message in messages]
        self.epochs.append(context.epoch)
        try:
            return await super().__call__(messages, context)
        finally:
            self.lost.append(bool(context.lost))


def fill(broker: FakeBroker, count: int, body: bytes = b"old") -> None:
    for _ in range(count):
        broker.send("t", 0, body)


def pulls(broker: FakeBroker, since: float = 0.0) -> list[PullQueue]:
    return [request.payload.queues[0] for request in broker.sent(Op.PULL) if request.at >= since]


def progress(broker: FakeBroker, since: float) -> list[int]:
    """Every progress that was sent from some time on, however it travelled."""
    sent = []
    for request in broker.requests:
        if request.at < since:
            continue
        if request.op is Op.PULL:
            sent += [queue.commit_offset for queue in request.payload.queues]
        elif request.op is Op.COMMIT:
            sent += [entry.queue_offset for entry in request.payload.entries]
        elif request.op in (Op.RELEASE, Op.LEAVE):
            sent += [lease.queue_offset for lease in request.payload.leases]
    return [offset for offset in sent if offset != NO_OFFSET]


async def test_pulls_name_the_log_epoch_of_the_last_message_that_was_fetched(broker: FakeBroker, make: Make) -> None:
    broker.log_epoch = 7
    broker.create("t")
    fill(broker, 2)
    broker.log_epoch = 8

    async with make(topics={"t": "*"}, pull_bytes=1):
        await asyncio.sleep(1)
        broker.send("t", 0, b"x")
        await asyncio.sleep(1)

    assert [pull.log_epoch for pull in pulls(broker)] == [0, 7, 7, 8]


async def test_what_is_cached_and_lost_is_discarded_and_the_call_that_runs_before_it_counts(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")
    fill(broker, 10)
    listener = Bodies(takes_s=1.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(2.5)  # the third call runs
        broker.crash(QUEUE, 4)
        broker.come_up()
        await asyncio.sleep(3)
        assert listener.offsets == [0, 1, 2, 3]
        fill(broker, 1, b"new")
        await asyncio.sleep(2)

    assert listener.got[3:] == [(3, b"old"), (4, b"new")]
    assert not any(listener.lost)
    assert len(broker.sent(Op.ACQUIRE)) == 1
    assert broker.offsets["g", QUEUE] == 5
    assert "log.truncated queue=t/0 from_offset=4 to_offset=9 count=6 delivered=0" in caplog.text


@pytest.mark.parametrize("regrown", [0, 3, 20], ids=["shorter", "shorter than we were", "longer than we were"])
async def test_progress_of_lost_messages_never_passes_those_that_get_their_offsets(
    broker: FakeBroker, make: Make, regrown: int
) -> None:
    broker.create("t")
    fill(broker, 10)
    listener = Bodies()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)
        assert broker.offsets["g", QUEUE] == 10
        broker.crash(QUEUE, 4)
        fill(broker, regrown, b"new")
        broker.come_up()
        await asyncio.sleep(1)
        fill(broker, 30 - regrown, b"new")
        await asyncio.sleep(1)

    assert listener.got == [(i, b"old") for i in range(10)] + [(i, b"new") for i in range(4, 34)]
    assert broker.offsets["g", QUEUE] == 34
    sent = progress(broker, since=5.0)
    assert sent == sorted(sent)
    assert sent[0] == 4


async def test_nothing_is_reported_to_a_broker_that_started_again_before_a_pull_has_shown_that_both_agree(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    fill(broker, 10)
    listener = Bodies(takes_s=1.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5.9)
        broker.crash(QUEUE, 10)
        broker.offsets["g", QUEUE] = 3  # what it knew last was lost
        broker.come_up()
        hold = broker.hold_request(Op.PULL)
        await asyncio.sleep(2)
        assert progress(broker, since=5.9) == []
        hold.let_go.set()
        await asyncio.sleep(0.3)
        assert broker.offsets["g", QUEUE] == 8
        await asyncio.sleep(3)

    assert listener.offsets == list(range(10))
    asked = broker.sent(Op.PULL)[1:3]
    assert [request.payload.wait_ms for request in asked] == [15_000, 0]


async def test_a_stop_before_both_are_known_to_agree_gives_the_queue_back_without_progress(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    fill(broker, 4)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(5)
        broker.crash(QUEUE, 2)
        fill(broker, 10, b"new")
        broker.come_up()
        broker.hold_request(Op.PULL)
        await asyncio.sleep(0.1)

    assert progress(broker, since=5.0) == []
    assert broker.offsets["g", QUEUE] == 2
    assert broker.holder("g", QUEUE) is None


@pytest.mark.parametrize("answer", [SUCCESS, SUSPEND, ValueError("x")])
async def test_a_call_for_a_lost_message_is_told_and_whatever_it_answers_counts_for_nothing(
    broker: FakeBroker, make: Make, answer: Any
) -> None:
    broker.create("t")
    fill(broker, 10)
    listener = Bodies(*[SUCCESS] * 5, answer, takes_s=1.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5.5)  # the sixth call runs
        broker.crash(QUEUE, 4)
        fill(broker, 2, b"new")
        broker.come_up()
        await asyncio.sleep(4)

    assert listener.got[5:] == [(5, b"old"), (4, b"new"), (5, b"new")]
    assert listener.lost == [False] * 5 + [True, False, False]
    assert listener.epochs == [1] * 6 + [2, 2]
    assert listener.most == 1
    assert listener.attempts == [1] * 8
    assert broker.sent(Op.ATTEMPT) == []
    assert broker.offsets["g", QUEUE] == 6


async def test_lost_messages_that_the_listener_has_not_committed_are_given_again_from_the_committed_offset(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    fill(broker, 6)
    got: list[tuple[int, bytes]] = []

    async def listener(messages: Messages, context: ConsumeContext) -> Any:
        context.auto_commit = False
        got.extend((message.queue_offset, message.body) for message in messages)
        return COMMIT if messages[-1].queue_offset == 1 or messages[-1].body == b"new" else SUCCESS

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)
        assert broker.offsets["g", QUEUE] == 2
        broker.crash(QUEUE, 4)
        fill(broker, 1, b"new")
        broker.come_up()
        await asyncio.sleep(2)

    assert got[6:] == [(2, b"old"), (3, b"old"), (4, b"new")]
    assert broker.offsets["g", QUEUE] == 5


async def test_a_lost_message_that_waits_to_be_tried_again_is_let_go_of(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    fill(broker, 3)
    listener = Bodies(SUCCESS, SUCCESS, SUSPEND, SUSPEND)

    async with make(listener, topics={"t": "*"}, suspend_s=2.0):
        await asyncio.sleep(5)
        broker.crash(QUEUE, 2)
        fill(broker, 1, b"new")
        broker.come_up()
        await asyncio.sleep(5)

    assert listener.got[-1] == (2, b"new")
    assert listener.got.count((2, b"old")) == 2
    assert broker.offsets["g", QUEUE] == 3
    assert listener.attempts[-1] == 1


async def test_a_reader_that_saw_several_starts_goes_back_as_far_as_it_takes(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    fill(broker, 4)
    listener = Bodies()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.crash(QUEUE, 4)
        broker.come_up()
        fill(broker, 4, b"second")
        await asyncio.sleep(1)
        broker.crash(QUEUE, 2)  # the second start and a part of the first are gone
        fill(broker, 8, b"third")
        broker.come_up()
        await asyncio.sleep(1)

    assert listener.got[8:] == [(i, b"third") for i in range(2, 10)]
    assert broker.offsets["g", QUEUE] == 10


async def test_a_full_cache_does_not_keep_a_consumer_from_asking_whether_both_agree(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    fill(broker, 10)
    listener = Bodies(takes_s=100.0)

    async with make(listener, topics={"t": "*"}, cache_messages=3, drain_s=0):
        await asyncio.sleep(5)
        before = len(broker.sent(Op.PULL))
        broker.crash(QUEUE, 2)
        broker.come_up()
        await asyncio.sleep(1)
        asked = broker.sent(Op.PULL)[before:]
        assert [(r.payload.wait_ms, r.payload.max_bytes, r.payload.queues[0].queue_offset) for r in asked][:2] == [
            (0, 1, 10),
            (0, 1 << 20, 2),
        ]


async def test_a_queue_that_waits_at_a_gap_asks_a_broker_that_started_again_at_once(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    fill(broker, 10)
    broker.damaged[QUEUE] = range(3, 6)
    listener = Bodies()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(40)  # it asks again at 65 s
        broker.crash(QUEUE, 2)
        del broker.damaged[QUEUE]
        fill(broker, 1, b"new")
        broker.come_up()
        await asyncio.sleep(1)

    assert listener.got[-1] == (2, b"new")
    assert listener.times[-1] == 40.0


async def test_progress_that_a_crash_took_from_the_broker_is_reported_again_also_by_a_queue_that_waits_at_a_gap(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    fill(broker, 10)
    broker.damaged[QUEUE] = range(3, 6)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(4)  # no pull is under way
        assert broker.offsets["g", QUEUE] == 3
        broker.crash(QUEUE, 10)
        broker.offsets["g", QUEUE] = 1
        broker.come_up()
        await asyncio.sleep(0.5)
        assert broker.offsets["g", QUEUE] == 3


async def test_an_answer_that_leads_nowhere_is_asked_for_again_after_a_pause() -> None:
    broker = Scripted(PullResult(0, LogTruncated.code, 3, 0, 4, b"", "truncated"))
    broker.create("t")
    fill(broker, 4)
    listener = Bodies()
    consumer = Consumer(
        "fake:1", group="g", listener=listener, topics={"t": "*"}, connect=broker.connect,
        now=asyncio.get_running_loop().time,
    )  # fmt: skip

    async with consumer:
        await asyncio.sleep(5)

    assert [pull.queue_offset for pull in pulls(broker)][:2] == [0, 0]
    assert listener.times == [3.0] * 4


@pytest.mark.parametrize("takes_s", [0.0, 3.0], ids=["all done", "some held"])
async def test_a_broker_that_only_says_where_its_queue_ends_has_it_asked_for_anew(
    broker: FakeBroker, make: Make, takes_s: float
) -> None:
    broker.compares = False
    broker.create("t")
    fill(broker, 10)
    broker.offsets["g", QUEUE] = 0
    listener = Bodies(takes_s=takes_s)
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(10)
        broker.crash(QUEUE, 2)
        broker.come_up()
        await asyncio.sleep(10)
        assert len(broker.sent(Op.ACQUIRE)) == 2
        called = len(listener.calls)
        broker.send("t", 0, b"new")
        await asyncio.sleep(10)
        assert listener.offsets[called:] == [2]
        assert consumer.assignment == [QUEUE]

    assert all(offset <= 3 for offset in progress(broker, since=10.0))
    assert broker.offsets["g", QUEUE] == 3
