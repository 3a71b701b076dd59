"""
The marks of an assignment, and who is woken by them.

Counts of failed deliveries, each message with its own; and what is feared of a queue whose owners were lost.

What a client may believe about a lease: two limits, each at a moment before, exactly, and a moment after.

Beats of the renewal that go missing, and everything that must not keep one from being made.

One gate for each queue, for ever the same one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import (
    Assignment,
    ConsumeGuard,
    LeaseBelief,
    LeaseLost,
    QueueGates,
    Suspicion,
    exhausted,
    failed_runs,
    runs_of,
    silence_limit,
)
from rmq.wire import errors
from rmq.wire.batch import batch
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.core import NO_OFFSET, Grant, Op

from ..fake_broker import FakeBroker, Held
from ..fake_connection import FakeConnection
from ..fetch.test_process_queue import made_plain
from ..recorder import QUEUE, SUSPEND, Make, Messages, Recorder, now, occupied

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def assignment(lost: list[str] | None = None) -> Assignment:
    told = [] if lost is None else lost
    return Assignment(
        LeaseBelief(MessageQueue("t", 0), 7, 0.0), ProcessQueue(0), on_lost=lambda _, why: told.append(why)
    )


async def test_a_flag_is_true_once_it_is_set() -> None:
    lost = LeaseLost()
    assert not lost
    lost.set()
    assert lost


async def test_a_flag_is_true_by_the_clock_before_anybody_has_set_it() -> None:
    clock = {"expired": False}
    one = assignment()
    one.watched(lambda: clock["expired"])
    assert not one.lost

    clock["expired"] = True

    assert one.lost
    assert one.lost.is_set()
    assert not one.lost.was_set
    assert await one.lost.wait()


async def test_a_proof_renews_the_flag_which_goes_on_reading_the_clock() -> None:
    clock = {"expired": True}
    one = assignment()
    one.watched(lambda: clock["expired"])
    one.lost.set()

    clock["expired"] = False
    one.resumed()
    assert not one.lost

    clock["expired"] = True
    assert one.lost


async def test_losing_drops_and_tells_once() -> None:
    told: list[str] = []
    one = assignment(told)

    one.lose("fenced")
    one.lose("again")

    assert (one.dropped, one.lease.lost, bool(one.lost), told) == (True, True, True, ["fenced"])


async def test_a_doubt_ends_with_a_proof_and_a_loss_does_not() -> None:
    doubted, gone = assignment(), assignment()
    doubted.lost.set()
    gone.lose("fenced")

    doubted.resumed()
    gone.resumed()

    assert not doubted.lost
    assert gone.lost


async def test_a_drop_wakes_whoever_waits_for_work() -> None:
    one = assignment()
    working = asyncio.ensure_future(one.work())
    await asyncio.sleep(1)

    one.arrived()  # for nothing
    await asyncio.sleep(1)
    assert not working.done()
    one.drop()

    assert await working is False


async def test_a_pause_is_cut_short_by_a_drop_only() -> None:
    one = assignment()
    pausing = asyncio.ensure_future(one.pause(10))
    await asyncio.sleep(1)
    one.arrived()
    one.resumed()
    await asyncio.sleep(1)
    assert not pausing.done()

    one.drop()
    await pausing
    assert asyncio.get_running_loop().time() == 2.0


@pytest.mark.parametrize("event", ["resumed", "drop", "time"])
async def test_a_wait_for_a_proof_ends_with_it_with_a_drop_or_in_time(event: str) -> None:
    one = assignment()
    waiting = asyncio.ensure_future(one.wait_resumed(10))
    await asyncio.sleep(1)
    if event != "time":
        getattr(one, event)()

    await waiting

    assert asyncio.get_running_loop().time() == (10.0 if event == "time" else 1.0)
    one.drop()
    await one.wait_resumed(10)
    assert asyncio.get_running_loop().time() == (10.0 if event == "time" else 1.0)


async def test_a_free_guard_is_not_waited_for_and_a_cancelled_wait_leaves_the_others() -> None:
    guard = ConsumeGuard()
    await guard.free()

    guard.since = 0.0
    first, second = asyncio.ensure_future(guard.free()), asyncio.ensure_future(guard.free())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    guard.release()
    await second

    assert guard.waiters == []


async def test_a_guard_taken_again_before_the_waiter_runs_is_waited_for_again() -> None:
    guard = ConsumeGuard()
    guard.since = 0.0
    waiting = asyncio.ensure_future(guard.free())
    await asyncio.sleep(0)

    guard.release()
    guard.since = 0.0
    await asyncio.sleep(1)
    assert not waiting.done()
    guard.release()
    await waiting


async def test_a_running_call_shows_since_when_and_one_that_is_recorded_does_not() -> None:
    one = assignment()
    assert one.called_at is None

    one.guard.since = 5.0
    assert one.called_at == 5.0
    one.guard.recording = True
    assert (one.called_at, one.guard.busy) == (None, True)
    one.guard.release()
    assert (one.called_at, one.guard.busy, one.guard.recording) == (None, False, False)


@pytest.mark.parametrize(
    ("cancels", "since", "recording"), [(False, 1.0, False), (True, None, False), (True, 1.0, True)]
)
async def test_only_a_running_call_that_may_be_is_cancelled_by_a_loss(
    cancels: bool, since: float | None, recording: bool
) -> None:
    one = assignment()
    one.owner = asyncio.ensure_future(asyncio.sleep(1))
    one.interrupt = one.cancel_owner if cancels else None
    one.guard.since, one.guard.recording = since, recording

    one.lost.set()

    await one.owner
    assert not one.interrupted


async def test_a_running_call_is_cancelled_once_however_often_it_is_told() -> None:
    one = assignment()
    one.owner = asyncio.ensure_future(asyncio.sleep(1))
    one.interrupt, one.guard.since = one.cancel_owner, 0.0

    one.lost.set()
    one.lose("fenced")

    assert one.owner.cancelling() == 1
    await asyncio.wait([one.owner])
    assert one.owner.cancelled()


async def test_halted_is_dropped_or_paused() -> None:
    one = assignment()

    states = [one.halted]
    one.set_paused(True)
    states.append(one.halted)
    one.set_paused(False)
    states.append(one.halted)
    one.drop()
    one.set_paused(False)
    states.append(one.halted)

    assert states == [False, True, False, True]


def messages(*attempts: int, base: int = 0) -> list[StoredMessage]:
    made_of: batch.Batch = made_plain(base, len(attempts))
    picked = made_of.pick(list(range(len(attempts))))
    for message, attempt in zip(picked, attempts, strict=True):
        message.attempt = attempt
    return picked


def test_a_grant_tells_of_all_messages_or_of_the_first_only() -> None:
    runs = [AttemptRun(7, 9, 1), AttemptRun(3, 4, 2)]

    assert runs_of(Grant(0)) == []
    assert runs_of(Grant(0, attempt_offset=5, attempts=2)) == [AttemptRun(5, 6, 2)]
    assert runs_of(Grant(0, attempt_offset=3, attempts=2, runs=runs)) == [AttemptRun(3, 4, 2), AttemptRun(7, 9, 1)]


@pytest.mark.parametrize(
    ("attempts", "runs"),
    [
        ([1], [(0, 1, 1)]),
        ([1, 1, 1], [(0, 3, 1)]),
        ([3, 1, 1], [(0, 1, 3), (1, 3, 1)]),
        ([1, 2, 1], [(0, 1, 1), (1, 2, 2), (2, 3, 1)]),
    ],
)
def test_neighbours_that_failed_equally_often_make_one_run(
    attempts: list[int], runs: list[tuple[int, int, int]]
) -> None:
    assert failed_runs(messages(*attempts)) == [AttemptRun(*run) for run in runs]


def test_a_run_goes_over_what_other_tags_left_out() -> None:
    first, _, third = messages(2, 9, 2)

    assert failed_runs([first, third]) == [AttemptRun(0, 3, 2)]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=50))
def test_runs_say_of_each_message_what_it_says_itself(attempts: list[int]) -> None:
    runs = failed_runs(messages(*attempts))

    assert [run.attempts for run in runs for _ in range(run.from_offset, run.end_offset)] == attempts


@pytest.mark.parametrize(("most", "dead"), [(-1, []), (1, [0, 1, 2, 3]), (3, [1, 2]), (4, [2]), (5, [])])
def test_exhausted_is_what_was_delivered_as_often_as_it_may_be(most: int, dead: list[int]) -> None:
    assert [message.queue_offset for message in exhausted(messages(1, 3, 4, 2), most)] == dead


def test_nothing_is_feared_of_a_queue_whose_owners_gave_it_back() -> None:
    assert Suspicion.of(Grant(0)) is None


@pytest.mark.parametrize(
    ("abandoned", "until", "queue_offset", "careful", "convicted"),
    [
        (1, NO_OFFSET, 7, False, False),
        (2, 20, 7, True, False),
        (2, 20, 19, True, False),
        (2, 20, 20, False, False),
        (0, 20, 7, True, False),  # the suspect was another, and what was fetched with it is not done yet
        (4, 20, 7, True, False),
        (5, 20, 7, True, True),
        (6, 20, 7, True, True),
    ],
)
def test_care_is_taken_as_far_as_the_broker_says_and_a_verdict_comes_with_the_fifth_lost_owner(
    abandoned: int, until: int, queue_offset: int, careful: bool, convicted: bool
) -> None:
    suspicion = Suspicion.of(Grant(0, abandoned=abandoned, suspect_offset=7, careful_until=until))

    assert suspicion is not None
    assert suspicion.careful(queue_offset) is careful
    assert suspicion.convicted(5) is convicted


def test_without_its_suspect_a_queue_is_still_delivered_with_care() -> None:
    suspicion = Suspicion(5, 7, 20).acquitted()

    assert not suspicion.convicted(5)
    assert suspicion.careful(8)
    assert suspicion.suspect_offset == NO_OFFSET


QUEUE_LEASE = MessageQueue("orders", 0)
EPS = 1e-6


def until(lease: LeaseBelief, answered_sent_at: float, *, grace_s: float = 5.0) -> float:
    return lease.believed_until(answered_sent_at=answered_sent_at, lock_ttl_s=30.0, grace_s=grace_s)


@pytest.mark.parametrize(("at", "believed"), [(130 - EPS, True), (130.0, True), (130 + EPS, False)])
def test_a_lease_is_believed_for_30_s_after_its_lock_was_asked_for(at: float, believed: bool) -> None:
    lease = LeaseBelief(QUEUE_LEASE, 7, lock_sent_at=100.0)

    assert (at <= until(lease, answered_sent_at=129.5)) is believed


@pytest.mark.parametrize(("at", "believed"), [(114 - EPS, True), (114.0, True), (114 + EPS, False)])
def test_a_lease_is_believed_for_the_grace_less_a_second_after_the_newest_answered_request(
    at: float, believed: bool
) -> None:
    lease = LeaseBelief(QUEUE_LEASE, 7, lock_sent_at=100.0)

    assert (at <= until(lease, answered_sent_at=110.0)) is believed


def test_a_renewal_counts_from_when_it_was_sent_and_a_late_answer_takes_nothing_back() -> None:
    lease = LeaseBelief(QUEUE_LEASE, 7, lock_sent_at=100.0)

    lease.renewed(121.0)
    lease.renewed(101.0)

    assert until(lease, answered_sent_at=150.0) == 151.0


def test_what_is_lost_is_never_believed_again() -> None:
    lease = LeaseBelief(QUEUE_LEASE, 7, lock_sent_at=100.0)
    lease.lost = True
    lease.renewed(120.0)

    assert until(lease, answered_sent_at=120.0) == float("-inf")


def test_without_any_answer_nothing_is_believed() -> None:
    assert until(LeaseBelief(QUEUE_LEASE, 7, lock_sent_at=100.0), answered_sent_at=float("-inf")) == float("-inf")


@pytest.mark.parametrize(("grace_s", "limit"), [(5.0, 4.0), (60.0, 59.0), (2.0, 1.0), (1.0, 0.5), (0.5, 0.25)])
def test_the_margin_is_a_second_and_never_the_whole_grace(grace_s: float, limit: float) -> None:
    assert silence_limit(grace_s) == limit


EPS_LEASE_BEATS = 1e-3


class Forgetful(FakeBroker):
    """A broker that gives a lease away when it is older than 60 s; at exactly 60 s it is still held."""

    def _check(self, connection: FakeConnection, group: str, queue: MessageQueue, epoch: int | None) -> None:
        held = self.leases.get((group, queue))
        if held is not None and self.now - held.renewed_at > self.lease_s:
            raise errors.Fenced(f"{queue} was not renewed since {held.renewed_at}")
        super()._check(connection, group, queue, epoch)


def consume(broker: FakeBroker, listener: Any, **settings: Any) -> Consumer:
    return Consumer(
        "fake:1", group="g", listener=listener, topics={"t": "*"}, connect=broker.connect, now=now, **settings
    )


def believed(consumer: Consumer) -> bool:
    runtime = consumer._runtime
    assert runtime is not None
    return any(runtime.keeper.believed(each) for each in runtime.assignments.values() if not each.dropped)


@pytest.mark.parametrize(
    ("missed", "believed_at", "acquired"),
    [
        (
            0,
            {
                31 - EPS_LEASE_BEATS: True,
                31.0: True,
                31 + EPS_LEASE_BEATS: True,
                51.0: True,
                61 + EPS_LEASE_BEATS: True,
            },
            [0.0],
        ),
        # The client gives up 30 s after the last granted renewal, before the next beat.
        (
            1,
            {
                31 - EPS_LEASE_BEATS: True,
                31.0: True,
                31 + EPS_LEASE_BEATS: False,
                41 - EPS_LEASE_BEATS: False,
                41 + EPS_LEASE_BEATS: True,
                61 + EPS_LEASE_BEATS: True,
            },
            [0.0],
        ),
        # The beat at exactly 60 s of age still renews.
        (
            2,
            {
                31.0: True,
                31 + EPS_LEASE_BEATS: False,
                41 + EPS_LEASE_BEATS: False,
                61 - EPS_LEASE_BEATS: False,
                61 + EPS_LEASE_BEATS: True,
                90.0: True,
            },
            [0.0],
        ),
        # Another may take over behind 61 s: ours has stopped 30 s before.
        (
            3,
            {
                31.0: True,
                31 + EPS_LEASE_BEATS: False,
                61 + EPS_LEASE_BEATS: False,
                81 - EPS_LEASE_BEATS: False,
                81 + EPS_LEASE_BEATS: True,
            },
            [0.0, 81.0],
        ),
    ],
)
async def test_beats_that_go_missing(missed: int, believed_at: dict[float, bool], acquired: list[float]) -> None:
    broker = Forgetful()
    broker.create("t")
    consumer = consume(broker, Recorder(), pull_wait_s=29.0)

    async with consumer:
        await asyncio.sleep(1.5)  # the renewal at 1 s was granted
        broker.refuse[Op.RENEW] = [errors.RequestTimeout("x")] * missed
        seen = {}
        for at in sorted(believed_at):
            await asyncio.sleep(at - now())
            seen[at] = believed(consumer)
        assert seen == believed_at

    assert broker.times(Op.RENEW)[:4] == [1.0, 21.0, 41.0, 61.0]
    assert broker.times(Op.ACQUIRE) == acquired


@pytest.mark.parametrize("op", [Op.PULL, Op.COMMIT, Op.JOIN, Op.ATTEMPT])
async def test_no_other_request_that_is_slow_keeps_a_renewal_waiting(broker: FakeBroker, make: Make, op: Op) -> None:
    """RocketMQ has one timer thread for all: a slow broker delays the renewals."""
    broker.create("t", 2)
    listener = Recorder(*[SUSPEND if op is Op.ATTEMPT else ConsumeStatus.SUCCESS] * 50, takes_s=0.1)

    async with make(listener, topics={"t": "*"}, drain_s=0.0, request_timeout_s=200.0, pull_timeout_s=300.0):
        await asyncio.sleep(0.5)
        hold = broker.hold_request(op)
        broker.send("t", 0, b"a", b"b")
        await asyncio.sleep(70)
        assert hold.reached.is_set()
        assert broker.times(Op.RENEW) == [1.0, 21.0, 41.0, 61.0]
        hold.let_go.set()


async def test_a_renewal_that_is_not_granted_stops_the_queue_before_its_next_batch(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"x"] * 10)
    lost_at: list[float] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        offsets.append(messages[0].queue_offset)
        await asyncio.sleep(0.75)
        if context.lost:
            lost_at.append(now())
        return ConsumeStatus.SUCCESS

    offsets: list[int] = []
    async with make(listener, topics={"t": "*"}, commit_every_s=5.0):
        await asyncio.sleep(0.5)
        broker.leases["g", QUEUE] = Held(b"thief", "thief", 77, now())  # and nobody is told
        await asyncio.sleep(10)
        # The second call ran when the renewal of 1 s was refused: it was told, and the last.
        assert offsets == [0, 1]
        assert lost_at == pytest.approx([1.5])

    assert broker.offsets["g", QUEUE] == 0


async def test_nothing_is_renewed_after_a_stop(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(5)
        await consumer.stop()
        await asyncio.sleep(60)

    assert broker.times(Op.RENEW) == [1.0]


async def test_a_renewal_that_got_no_answer_in_time_does_not_end_the_connection(broker: FakeBroker, make: Make) -> None:
    """RocketMQ closes the socket when a request times out: a late lock answer looks like the death of a client."""
    broker.create("t")
    hold = broker.hold_request(Op.RENEW)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(30)
        assert hold.reached.is_set()
        hold.let_go.set()
        assert broker.connections[0].connected
        assert len(broker.connections) == 1

    assert len(broker.sent(Op.ACQUIRE)) == 1


@pytest.mark.parametrize(("waits_s", "failed"), [(0.99, 0), (1.01, 1)])
async def test_a_renewal_has_a_second_to_be_answered(
    broker: FakeBroker, make: Make, waits_s: float, failed: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.RENEW)

    async with make(topics={"t": "*"}):
        await hold.reached.wait()
        await asyncio.sleep(waits_s)
        hold.let_go.set()
        await asyncio.sleep(10)

    assert caplog.text.count("lease.renewal_failed") == failed


async def test_a_queue_keeps_its_gate() -> None:
    gates = QueueGates()
    gate = gates[MessageQueue("t", 0)]

    assert isinstance(gate, asyncio.Lock)
    assert gates[MessageQueue("t", 0)] is gate
    assert gates[MessageQueue("t", 1)] is not gate
    async with gate:
        assert occupied(gates) == [MessageQueue("t", 0)]
    assert occupied(gates) == []
