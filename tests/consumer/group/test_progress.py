"""
Progress that no pull takes along: reported in one request, again if that fails, and never for a lost lease.

What was done while the broker was away is said when a queue is given up, if the broker still has the messages.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import Consumer
from rmq.consumer.group.assignment import Assignment
from rmq.consumer.group.progress import AGREEING, agree
from rmq.wire.errors import ConfigError, Fenced, Internal, LogTruncated, OffsetOutOfRange, RequestTimeout
from rmq.wire.protocol.ops.core import NO_OFFSET, Op, Outcome, PullQueue, PullResult

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, Make, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def commits(broker: FakeBroker) -> list[list[tuple[int, int]]]:
    return [[(e.queue_id, e.queue_offset) for e in request.payload.entries] for request in broker.sent(Op.COMMIT)]


async def test_the_progress_of_all_queues_is_one_request(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 3)

    async with make(Recorder(takes_s=0.05), topics={"t": "*"}):
        await asyncio.sleep(1.1)
        for queue_id in range(3):
            broker.send("t", queue_id, b"a")
        await asyncio.sleep(1)

    assert commits(broker) == [[(0, 1), (1, 1), (2, 1)]]


async def test_a_long_turn_reports_while_it_runs(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 50)

    async with make(Recorder(takes_s=0.1), topics={"t": "*"}):
        await asyncio.sleep(3)
        assert broker.offsets["g", QUEUE] >= 27

    gaps = [b - a for a, b in zip(broker.times(Op.COMMIT), broker.times(Op.COMMIT)[1:], strict=False)]
    assert max(gaps) <= 0.2 + 1e-6


@pytest.mark.parametrize("error", [RequestTimeout("x"), Internal("log id")])
async def test_a_failed_report_is_sent_again(broker: FakeBroker, make: Make, error: Exception) -> None:
    broker.create("t")

    async with make(Recorder(takes_s=0.01), topics={"t": "*"}):
        await asyncio.sleep(1.1)
        broker.refuse[Op.COMMIT] = [error]
        broker.send("t", 0, b"a")
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 1

    assert commits(broker) == [[(0, 1)], [(0, 1)]]


async def test_progress_made_while_the_lease_was_doubted_is_reported_once_it_is_proven(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    listener = Recorder(takes_s=5.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1.5)
        broker.send("t", 0, b"a")
        await asyncio.sleep(0.1)
        broker.connections[0].silent = True
        await asyncio.sleep(6)  # the call ended at 6.5, the belief at 5
        assert broker.offsets["g", QUEUE] == 0
        broker.connections[0].silent = False
        await asyncio.sleep(1.5)  # a ping is answered; the pull is still parked
        assert broker.offsets["g", QUEUE] == 1


class Judging(FakeBroker):
    """A broker that answers the next commit with one outcome."""

    outcome: Outcome | None = None

    def _commit(self, connection: object, payload: object) -> object:
        if self.outcome is not None:
            outcome, self.outcome = self.outcome, None
            return [outcome]
        return super()._commit(connection, payload)  # type: ignore[arg-type]


@pytest.mark.parametrize(("code", "acquired"), [(Fenced.code, 2), (Internal.code, 1)])
async def test_a_fenced_report_drops_the_assignment_and_another_refusal_does_not(code: int, acquired: int) -> None:
    broker = Judging()
    broker.create("t")
    consumer = Consumer(
        "fake:1", group="g", listener=Recorder(takes_s=0.01), topics={"t": "*"}, connect=broker.connect,
        now=asyncio.get_running_loop().time,
    )  # fmt: skip

    async with consumer:
        await asyncio.sleep(1.1)
        broker.outcome = Outcome(code, "no")
        broker.send("t", 0, b"a")
        await asyncio.sleep(1)
        assert consumer.assignment == [QUEUE]

    assert len(broker.sent(Op.ACQUIRE)) == acquired


async def test_nothing_is_reported_for_a_queue_that_is_not_ours_any_more(broker: FakeBroker, make: Make) -> None:
    """RocketMQ: offsets of queues that left are dropped from what is persisted."""
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, *[b"x"] * 20)

    async with make(Recorder(takes_s=0.5), topics={"t": "*"}):
        await asyncio.sleep(2.1)
        broker.give("g", QUEUE, "thief")
        before = len(broker.requests)
        await asyncio.sleep(5)

        carried = [
            (wanted.queue_id, wanted.commit_offset)
            for request in broker.requests[before:]
            if request.op is Op.PULL
            for wanted in request.payload.queues
        ]
        entries = [
            (entry.queue_id, entry.queue_offset)
            for request in broker.requests[before:]
            if request.op is Op.COMMIT
            for entry in request.payload.entries
        ]
        assert {queue_id for queue_id, _ in carried + entries} == {1}
        assert broker.offsets["g", QUEUE] == 3  # the fourth was done at 2.0 s, and nobody had asked yet


@pytest.mark.parametrize("every_s", [0.2, 1.0, 5.0])
async def test_progress_waits_no_longer_than_configured_and_never_more_than_5_s(
    broker: FakeBroker, make: Make, every_s: float
) -> None:
    """RocketMQ persists after 10 s, then every 5 s."""
    broker.create("t")

    async with make(Recorder(), topics={"t": "*"}, commit_every_s=every_s, pull_wait_s=29.0):
        await asyncio.sleep(6.0)
        broker.send("t", 0, b"a")
        hold = broker.hold_request(Op.PULL)  # the one that would carry it
        await asyncio.sleep(every_s - 0.01)
        assert broker.offsets["g", QUEUE] == 0
        await asyncio.sleep(0.02)
        assert broker.offsets["g", QUEUE] == 1
        hold.let_go.set()

    with pytest.raises(ConfigError, match=r"commit_every_s must be from 0\.001 to 5"):
        make(topics={"t": "*"}, commit_every_s=5.001)


async def test_the_progress_of_a_queue_that_is_given_back_goes_with_its_unlock_only(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")
    hold = broker.hold_request(Op.RELEASE)

    async with make(Recorder(takes_s=0.15), topics={"t": "*"}) as consumer:
        await asyncio.sleep(1.1)
        broker.send("t", 0, b"a")
        await asyncio.sleep(0.05)
        broker.set_members("g", "a-other")
        await hold.reached.wait()
        before = len(commits(broker))
        await asyncio.sleep(0.5)  # time for several reports
        assert len(commits(broker)) == before, "a commit behind the unlock is fenced, and told as a loss"
        hold.let_go.set()
        await asyncio.sleep(0.5)
        assert consumer.assignment == []

    assert broker.offsets["g", QUEUE] == 1
    assert "lease.lost" not in caplog.text


class Cache:
    """Progress up to 5, behind a message that was stored under log epoch 3."""

    commit_offset = 5

    class log_epochs:
        """As far as it is asked."""

        @staticmethod
        def before(queue_offset: int) -> int:
            return 3 if queue_offset == 5 else 0


class Lease:
    """Held, until it is lost."""

    lost = False


class Given:
    """A queue that is being given up."""

    queue, epoch = QUEUE, 7

    def __init__(self, agreed: int) -> None:
        self.cache, self.lease, self.agreed = Cache(), Lease(), agreed
        self.why_lost = ""

    def agrees(self, log_epoch: int) -> bool:
        return Assignment.agrees(self, log_epoch)  # type: ignore[arg-type]

    def lose(self, why: str) -> None:
        self.why_lost = why


class Broker:
    """Started under log epoch 4; answers with a status, or raises."""

    log_epoch = 4

    def __init__(self, answer: int | Exception | None) -> None:
        self._answer = answer
        self.asked: list[PullQueue] = []

    async def pull(self, queue: PullQueue, **_: Any) -> PullResult | None:
        self.asked.append(queue)
        if isinstance(self._answer, Exception):
            raise self._answer
        return None if self._answer is None else PullResult(0, self._answer, 5, 0, 5, b"")


async def asked(given: Given, broker: Broker) -> Given:
    await agree(given, broker, timeout_s=1.0)  # type: ignore[arg-type]
    return given


async def test_a_broker_that_is_known_to_agree_is_not_asked() -> None:
    broker = Broker(0)

    assert (await asked(Given(4), broker)).agreed == 4
    assert broker.asked == []


@pytest.mark.parametrize("status", AGREEING)
async def test_a_broker_that_started_anew_is_asked_for_what_follows_our_progress(status: int) -> None:
    broker = Broker(status)

    assert (await asked(Given(3), broker)).agreed == 4
    assert broker.asked == [PullQueue("t", 0, 5, 7, NO_OFFSET, 3)]


@pytest.mark.parametrize("answer", [LogTruncated.code, OffsetOutOfRange.code, None])
async def test_one_that_does_not_have_it_or_does_not_say_is_told_nothing(answer: int | None) -> None:
    assert (await asked(Given(3), Broker(answer))).agreed == 3


async def test_a_queue_that_turns_out_to_be_another_s_is_lost() -> None:
    given = await asked(Given(3), Broker(Fenced("another has it")))

    assert given.why_lost == "another has it"
    assert given.agreed == 3


async def test_nothing_is_asked_under_a_lease_that_is_lost_or_without_progress() -> None:
    lost, fresh, broker = Given(3), Given(3), Broker(0)
    lost.lease.lost = True
    fresh.cache.commit_offset = NO_OFFSET

    await asked(lost, broker)
    await asked(fresh, broker)

    assert broker.asked == []
