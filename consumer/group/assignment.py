"""
A queue in this consumer's hands, from a granted lease to its hand-over, and what its tasks share about it. Pure.

``Assignment`` has the marks and wake-ups, ``LeaseBelief`` what this client knows of the lease, ``ConsumeGuard`` covers
one listener call, and ``QueueGates`` keeps turns of successive assignments of a queue apart. The rest is about
deliveries: failed ones (attempts), lost owners (``Suspicion``), and messages that the log lost before the group got
them (``LogGap``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from rmq.wire.errors import Damaged, MessagesLost, OffsetOutOfRange, OtherHistory, code_name
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.core import NO_OFFSET, Grant, PullResult

from ..fetch.process_queue import ProcessQueue
from .tag_filter import Selection

Task = asyncio.Task[None]


class LeaseLost(asyncio.Event):
    """
    True in a condition, and set, when the lease is gone or can no longer be proven.

    It reads the clock by ``expired``: after a stop of the whole process a listener may run before the timer that would
    set it. ``was_set`` is whether it was set, which is what wakes the waiting tasks.
    """

    def __init__(self, expired: Callable[[], bool] = bool, on_set: Callable[[], object] = bool) -> None:
        super().__init__()
        self._expired = expired
        self._on_told = on_set

    @property
    def was_set(self) -> bool:
        """Whether it was set, not only expired."""
        return super().is_set()

    def set(self) -> None:
        """Wake the waiting tasks."""
        super().set()
        self._on_told()

    def is_set(self) -> bool:
        """Whether the lease is gone or can no longer be proven, at this moment."""
        return super().is_set() or self._expired()

    def __bool__(self) -> bool:
        return self.is_set()

    async def wait(self) -> Literal[True]:
        """Wait until it is set. Cancelling is safe."""
        return True if self.is_set() else await super().wait()


class ConsumeGuard:
    """
    Taken by the owner for one listener call and the recording of its result; the hand-over waits for it.

    It does what an ``asyncio.Lock`` per call would, without its cost for every message. Only the owner takes it, so
    taking never waits; and no other task has to take it to keep the owner out: a waiting task has marked the assignment
    as dropped before, and the owner looks at that mark and sets ``since`` in one stretch without an ``await``.
    """

    __slots__ = ("recording", "since", "waiters")

    def __init__(self) -> None:
        self.since: float | None = None  # when the call began; None if it is free. Written by the owner only
        self.recording = False  # the call has ended, and its failure is not recorded yet
        # A waiting task has dropped the assignment, so the owner looks for them there, and not after each call.
        self.waiters: list[asyncio.Future[None]] = []

    @property
    def busy(self) -> bool:
        """Whether a call is running, or has ended and is not recorded."""
        return self.since is not None

    def release(self) -> None:
        """The result is recorded."""
        self.since = None
        self.recording = False
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def free(self) -> None:
        """Wait until no call is running and unrecorded; the assignment must be dropped. Cancelling is safe."""
        while self.busy:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiters.append(waiter)
            await waiter


class Assignment:
    """
    A queue under one lease: its cache, its guard, and its marks.

    ``dropped``: no further batch may start (final). ``lease.lost``: nothing of it may be committed either (final, and
    dropped with it). A queue that comes back is another assignment.
    """

    def __init__(
        self,
        lease: LeaseBelief,
        cache: ProcessQueue,
        *,
        on_lost: Callable[[Assignment, str], None],
        topic_generation: int | None = None,
        agreed: int = 0,
        suspicion: Suspicion | None = None,
    ) -> None:
        self.lease = lease
        self.shown = lease.queue  # as the user knows it: without the namespace; the rebalancer's
        self.topic_generation = topic_generation  # which of the topics of this name
        self.agreed = agreed  # the log epoch of the broker that last had what our progress is about; see agrees()
        self.cache = cache
        self.guard = ConsumeGuard()
        self.dropped = False
        self.ended = asyncio.Event()  # nothing of it runs any more; written by the rebalancer
        self._expired: Callable[[], bool] = bool  # bool() is False: it is not watched yet
        self.lost = LeaseLost(on_set=self._on_lost_set)
        self.believed_until = float("-inf")  # a lower bound, renewed by the owner when it has passed
        self.reported = NO_OFFSET  # newest progress that was sent; the sender of a failed request sets it back
        self.stopped: Stopped | None = None  # it waits at a gap; the puller's
        self.selection = Selection()  # what its tag expression let through; the puller's
        self.found_start = NO_OFFSET  # where a group without progress was found to begin; the puller's
        self.left = False  # the listener is done with the queue and finishes nothing more of it; the listener's
        self.uncommitted_logged_at = float("-inf")  # when it was last warned of; the puller's
        self.suspicion = suspicion  # owners before us were lost with this queue; the scheduler's
        self.interrupt: Callable[[], None] | None = None  # called when the lease is lost; the service's
        self.interrupted = False  # a call was cancelled for that, and has not ended yet; the scheduler's
        self.on_work: Callable[[], None] | None = None  # called when something may be taken; the service's
        self.retry_at: float | None = None  # when a failed message is given again; the scheduler's
        self.last_failure: tuple[int, str] | None = None  # a message the listener failed at, and why; the service's
        self.crash_loop: str | None = None  # why nothing is dispatched any more; the scheduler's
        self.halted = False  # dropped or paused: what a turn looks at before each batch
        self.paused = False  # nothing is pulled or dispatched, by the user's wish; the puller's
        self.flow_control: str | None = None  # which limit keeps the queue from being pulled; the puller's
        self.pulled_at = float("-inf")  # when a pull was last asked for or found not to be needed; the puller's
        self.tries_to_unlock = 0  # how often the hand-over found a call running; the rebalancer's
        self.topic_gone = False  # its end need not be reported; the rebalancer's
        self.owner: Task | None = None
        self.puller: Task | None = None
        self._on_lost = on_lost
        self._arrived = asyncio.Event()
        self._dropped = asyncio.Event()
        self._proven = asyncio.Event()
        self._ask = asyncio.Event()  # the puller has to ask now, whatever it waits for

    @property
    def queue(self) -> MessageQueue:
        """The queue."""
        return self.lease.queue

    @property
    def epoch(self) -> int:
        """The fencing token of the lease."""
        return self.lease.epoch

    @property
    def called_at(self) -> float | None:
        """When the running call of the listener began; None while none runs."""
        return None if self.guard.recording else self.guard.since

    def drop(self) -> None:
        """No further batch starts; a running call ends and is recorded."""
        self.dropped = self.halted = True
        self._dropped.set()
        self._arrived.set()
        self._proven.set()
        self._ask.set()

    def agrees(self, log_epoch: int) -> bool:
        """
        Whether the log of a broker that started under ``log_epoch`` is known to have what our progress is about.

        A broker that crashed may have lost messages and given their offsets to others. Progress that was made before
        is not reported to it until a pull has shown that the two still agree: it would pass undelivered messages.
        """
        return self.agreed == log_epoch

    def set_paused(self, paused: bool) -> None:
        """From here on nothing is pulled and no batch starts, until it is taken back; a running call ends."""
        self.paused = paused
        self.halted = paused or self.dropped
        if not paused:
            self.arrived()
            self._ask.set()

    def ask_now(self) -> None:
        """Have the puller ask at once: the broker is another than it was."""
        self._ask.set()
        self.cache.starved()

    def lose(self, reason: str) -> None:
        """The lease is gone: warn the running listener, and drop."""
        if self.lease.lost:
            return
        self.lease.lost = True
        self.lost.set()
        self._on_lost(self, reason)
        self.drop()

    def resumed(self) -> None:
        """The broker confirmed the lease: what waited for that may go on."""
        self.believed_until = float("-inf")  # the grace may be another than before
        if self.lost.was_set and not self.lease.lost:
            self.lost = LeaseLost(self._expired, self._on_lost_set)
        self._proven.set()

    def watched(self, expired: Callable[[], bool]) -> None:
        """From here on ``lost`` reads the clock."""
        self._expired = expired
        self.lost = LeaseLost(expired, self._on_lost_set)

    def _on_lost_set(self) -> None:
        """The listener learns that the lease is lost: running calls are cancelled, if that is wished."""
        if self.interrupt is not None:
            self.interrupt()

    def cancel_owner(self) -> None:
        """Cancel the running call of the owner, once."""
        if self.called_at is not None and self.owner is not None and not self.interrupted:
            self.interrupted = True
            self.owner.cancel()

    def arrived(self) -> None:
        """Messages were put into the cache, or may be taken from it again."""
        self._arrived.set()
        if self.on_work is not None:
            self.on_work()

    async def work(self) -> bool:
        """Wait until there is something to take, and may be; False if it was dropped. Cancelling is safe."""
        while not self.dropped and (self.paused or not self.cache.ready):
            if not self.cache.ready:
                self.cache.starved()
            self._arrived.clear()
            await self._arrived.wait()
        return not self.dropped

    async def pause(self, seconds: float) -> None:
        """Sleep, cut short when the assignment is dropped; arriving messages do not cut it. Cancelling is safe."""
        await _wait(self._dropped, seconds)

    async def pause_asking(self, seconds: float) -> None:
        """Sleep, cut short by :meth:`ask_now` or when the assignment is dropped. Cancelling is safe."""
        self._ask.clear()
        if not self.dropped:
            await _wait(self._ask, seconds)

    async def wait_resumed(self, seconds: float) -> None:
        """Sleep, cut short when the broker confirms the lease or the assignment is dropped. Cancelling is safe."""
        self._proven.clear()
        if not self.dropped:
            await _wait(self._proven, seconds)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


# The broker gives a queue away `grace` after the last request it answered; we stop believing this much earlier.
GRACE_MARGIN_S = 1.0


class LeaseBelief:
    """
    One grant of a queue to this session, distinguished from all others by its epoch.

    It is believed until the earlier of two limits, both counted from when a request was *sent*, since what the
    broker did cannot be older than that:

    - the newest granted lock or renewal of it + ``lock_ttl_s``: the broker frees a lease that is not renewed;
    - the newest answered request of any kind + (grace - 1 s): the broker frees the leases of a silent connection.

    At exactly a limit it is still believed. ``lost`` is final.
    """

    __slots__ = ("epoch", "lock_sent_at", "lost", "queue")

    def __init__(self, queue: MessageQueue, epoch: int, lock_sent_at: float) -> None:
        self.queue = queue
        self.epoch = epoch
        self.lock_sent_at = lock_sent_at
        self.lost = False

    def renewed(self, sent_at: float) -> None:
        """A renewal that was sent at ``sent_at`` was granted; an older answer that comes late changes nothing."""
        self.lock_sent_at = max(self.lock_sent_at, sent_at)

    def believed_until(self, *, answered_sent_at: float, lock_ttl_s: float, grace_s: float) -> float:
        """The last moment at which a batch may start under this lease."""
        if self.lost:
            return float("-inf")
        return min(self.lock_sent_at + lock_ttl_s, answered_sent_at + silence_limit(grace_s))


def silence_limit(grace_s: float) -> float:
    """How long after an answered request the broker surely keeps our leases."""
    # A grace so short that the margin would eat it is for tests; half of it is margin then.
    return max(grace_s - GRACE_MARGIN_S, grace_s / 2)


class QueueGates:
    """
    The gates: one turn at a time for each queue in this process.

    A gate outlives the assignment that used it: when a queue leaves and comes back while a listener of before is
    still inside, the new assignment waits here until that one has really ended.
    """

    def __init__(self) -> None:
        self._gates: dict[MessageQueue, asyncio.Lock] = {}

    def __getitem__(self, queue: MessageQueue) -> asyncio.Lock:
        gate = self._gates.get(queue)
        if gate is None:
            gate = self._gates[queue] = asyncio.Lock()
        return gate


NO_LIMIT = -1


def runs_of(grant: Grant) -> list[AttemptRun]:
    """All failed deliveries that a grant reports, in the order of their offsets."""
    if grant.runs or grant.attempt_offset == NO_OFFSET:
        return sorted(grant.runs)
    return [AttemptRun(grant.attempt_offset, grant.attempt_offset + 1, grant.attempts)]


def failed_runs(messages: Sequence[StoredMessage]) -> list[AttemptRun]:
    """
    What is to be recorded when the delivery of these, which are in the order of their offsets, has failed.

    Neighbours that failed equally often make one run, whatever lies between them: messages of other tags do no harm.
    """
    runs: list[AttemptRun] = []
    for message in messages:
        offset, attempts = message.queue_offset, message.attempt
        if runs and runs[-1].attempts == attempts:
            runs[-1] = runs[-1]._replace(end_offset=offset + 1)
        else:
            runs.append(AttemptRun(offset, offset + 1, attempts))
    return runs


def exhausted(messages: Sequence[StoredMessage], max_attempts: int) -> list[StoredMessage]:
    """Those that are dead letters now that this delivery has failed too."""
    if max_attempts == NO_LIMIT:
        return []
    return [message for message in messages if message.attempt >= max_attempts]


class Suspicion(NamedTuple):
    """
    Owners in a row were lost while ``suspect_offset`` was being processed; see
    :class:`~rmq.wire.protocol.ops.core.Grant`.

    One lost owner is an accident. From the second on the broker says how far care is to be taken, and goes on saying
    so while the suspect changes.
    """

    abandoned: int
    suspect_offset: int
    careful_until: int

    @classmethod
    def of(cls, grant: Grant) -> Self | None:
        """What a grant says; None if no owner was lost."""
        if not grant.abandoned and grant.careful_until == NO_OFFSET:
            return None
        return cls(grant.abandoned, grant.suspect_offset, grant.careful_until)

    def convicted(self, crash_limit: int) -> bool:
        """Whether the message may not be given to a listener again."""
        return self.suspect_offset != NO_OFFSET and self.abandoned >= crash_limit

    def careful(self, queue_offset: int) -> bool:
        """Whether a message has to be announced before it is given to a listener."""
        return queue_offset < self.careful_until

    def acquitted(self) -> Self:
        """The suspect is out of the way; what was fetched together with it is still delivered with care."""
        return self._replace(suspect_offset=NO_OFFSET)

    def __str__(self) -> str:
        return f"CRASH_LOOP: {self.abandoned} owners in a row were lost while processing offset {self.suspect_offset}"


FIRST_PAUSE_S = 5.0  # before a stopped queue is asked for again; doubles
MOST_PAUSE_S = 30.0
REMIND_S = 300.0  # a queue that stays stopped is reported this often


@dataclass(frozen=True, slots=True)
class LogGap:
    """
    The messages from ``from_offset`` to before ``end_offset`` cannot be read, and the reason.

    In a copy of the store (``OTHER_HISTORY``) they are others than those that this reader has read.
    """

    status: int
    from_offset: int
    end_offset: int

    @property
    def count(self) -> int:
        """How many messages are missing."""
        return self.end_offset - self.from_offset

    @property
    def reason(self) -> str:
        """The broker's word for it."""
        # An offset below the log is the same loss, in the words of a broker that does not look closer.
        return code_name(MessagesLost.code if self.status == OffsetOutOfRange.code else self.status)

    def __str__(self) -> str:
        return f"{self.reason}: offsets {self.from_offset} to {self.end_offset - 1}"

    def advice(self) -> str:
        """Return what an operator has to do before the queue continues."""
        if self.status == OtherHistory.code:
            return (
                "the broker's store is a copy and is not known to have the messages that were read from "
                f"{self.from_offset} on: to get all that it has from there on, run `rmq-admin broker accept-history`"
            )
        cause = "a part of the log is damaged" if self.status == Damaged.code else "retention was faster than the group"
        return f'{cause}: to go on at {self.end_offset} without them, run with on_gap = "skip"'


@dataclass(slots=True)
class Stopped:
    """A queue that waits at a gap: how often it was found there, and when that was last reported."""

    gap: LogGap
    logged_at: float = float("-inf")
    times: int = 0

    def found_again(self, now: float) -> bool:
        """The same answer came; says whether to log that."""
        self.times += 1
        if now - self.logged_at < REMIND_S:
            return False
        self.logged_at = now
        return True

    @property
    def pause_s(self) -> float:
        """How long to wait before the queue is asked for again."""
        return min(FIRST_PAUSE_S * 2.0 ** min(self.times - 1, 16), MOST_PAUSE_S)


def gap_of(asked: int, result: PullResult) -> LogGap | None:
    """The gap that an answer to a pull at ``asked`` reports; None if it reports none, or not where that ends."""
    end = result.next_offset
    if result.status == OtherHistory.code:
        return LogGap(result.status, min(end, asked), asked)
    if result.status in (MessagesLost.code, OffsetOutOfRange.code):
        end = max(end, result.min_offset) if asked < result.min_offset else asked
    elif result.status != Damaged.code:
        return None
    return LogGap(result.status, asked, end) if end > asked else None
