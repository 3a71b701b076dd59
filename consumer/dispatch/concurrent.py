"""
Concurrent dispatch: as many calls of the listener at a time as there are slots, whatever their queues.

``slots`` workers live as long as the consumer; each makes one call after the other, with a chunk of at most ``batch``
messages of the queue whose turn it is. The owner task of a queue calls no listener: it offers the queue to the workers
while there is something to take and its lease is believed, and has the lease renewed while it is not.

A finished chunk is passed in the cache, whose progress is the first offset that is not done. A failed one is given
back to the broker by the worker and delivered again later. Where that is refused, it is retried here after 5 s and
keeps the progress back; where its outcome is unknown, it is asked for again. ``Sweep`` gives up calls that take too
long, so that they do not keep the progress of their queue back. As in ordered dispatch, nothing leaves this process
but under the epoch of the lease.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.model import StoredMessage

from ..config import ConsumerConfig
from ..fetch.concurrent_queue import Chunk, ConcurrentQueue
from ..group.assignment import Assignment, ConsumeGuard
from ..group.leases import is_proven, until_proven
from ..introspection import TopicMeter
from ..listener import (
    RETRY,
    SUCCESS,
    AsyncListener,
    ConcurrentContext,
    acknowledged,
    failure_of,
    read_concurrent_status,
    result_type,
)
from .failures import EXPIRED_LEVEL, Failures, Fate, reason_of
from .invoke import Dispatch, DispatchParts, Raised, Warnings, log_raised
from .turns import RELOCK_ENTRY_S, RELOCK_FIRST_S, SLICE_S, YIELD_S

log = get_logger("rmq.consumer")
Worker = asyncio.Task[None]


class ConcurrentService(Dispatch):
    """Calls over queues: as many at a time as there are slots, in turn from each queue, none without a lease."""

    def __init__(
        self,
        listener: AsyncListener,
        config: ConsumerConfig,
        broker: GroupClient,
        parts: DispatchParts,
        *,
        failures: Failures,
    ) -> None:
        """``failures`` is where messages go that the listener failed at."""
        super().__init__(listener, config, broker, parts)
        self._failures = failures
        self._queues: dict[Assignment, ActiveQueue] = {}
        self._sweep = Sweep(self._queues, config, broker, self._failures)
        self._sweeping = False
        self._ready: deque[ActiveQueue] = deque()  # in the order of their turns
        self._workers: set[Worker] = set()
        self._resting: list[asyncio.Future[None]] = []  # what idle workers wait for
        self._waking = False  # a worker was woken and has not run yet
        self._slice_end = float("-inf")  # when the workers have to give the loop to others
        self._yielding = False  # they do so
        self._warn = Warnings()
        self._running = 0  # calls that run or are being recorded

    @property
    def turns(self) -> int:
        """How many calls run or are being recorded, and how many queues have more for others."""
        return self._running + len(self._ready)

    def start(self, assignment: Assignment) -> None:
        """Give an assignment its owner."""
        active = self._queues[assignment] = ActiveQueue(assignment, self._statistics.of(assignment.shown.topic))
        if self._cancels:
            assignment.interrupt = active.interrupt
        assignment.owner = self._tasks.start(self._own(active), f"owner of {assignment.queue}")
        if not self._sweeping:
            self._sweeping = True
            self._tasks.start(self._sweep.run(), "sweep")

    async def finish(self, assignment: Assignment, *, within_s: float | None = None) -> None:
        """
        Return when nothing of a dropped assignment runs any more; running calls end first and are recorded.

        After ``within_s`` seconds (None: never) they are cancelled; those in a thread are waited for all the same.
        """
        assert assignment.dropped, "a queue of which another call may start cannot be waited for"
        active = self._queues.get(assignment)
        if active is not None:
            active.cancel_retries()
        try:
            async with asyncio.timeout(within_s):
                await assignment.guard.free()
        except TimeoutError:
            log.warning("listener.cancelled", queue=str(assignment.queue), after_s=within_s)
            if active is not None:
                active.interrupt()
            await assignment.guard.free()
        await self._tasks.cancel(assignment.owner)
        if active is not None:
            active.flush(self._broker.now())
            self._queues.pop(assignment, None)

    def owners(self) -> list[Worker]:
        """The tasks that call the listener."""
        return list(self._workers)

    # The owner of a queue

    async def _own(self, active: ActiveQueue) -> None:
        assignment = active.assignment
        while await assignment.work():
            if not is_proven(assignment, self._leases, self._broker.now()):
                first_s = RELOCK_FIRST_S if active.doubted else RELOCK_ENTRY_S
                active.doubted = False
                await until_proven(assignment, self._leases, first_s=first_s, retry_s=self._config.lock_retry_s)
                continue
            active.offer()
            self._ready.append(active)
            self._on_turn()
            self._wake()
            await active.until_withdrawn()
            if active.cache.ready:
                await asyncio.sleep(0)  # a long run of unwanted messages: others may have the loop

    # Workers

    def _wake(self) -> None:
        """Have one more worker look for something to do, if there is one."""
        self._waking = True
        while self._resting:
            rest = self._resting.pop()
            if not rest.done():
                return rest.set_result(None)
        if len(self._workers) < self._config.slots:
            worker = self._tasks.start(self._work(), f"worker {len(self._workers) + 1}")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        else:
            self._waking = False

    async def _rest(self) -> None:
        rest: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting.append(rest)
        try:
            await rest
        except asyncio.CancelledError:
            if rest in self._resting:
                self._resting.remove(rest)
            raise

    async def _work(self) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        while True:
            try:
                await self._call_on(worker)
            except asyncio.CancelledError:
                # A listener that cancels its task and returns leaves us the exception, wherever we wait next.
                if not self._undo_cancel(worker):
                    raise
                self._warn.cancelled_its_task()

    async def _call_on(self, worker: Worker) -> None:
        """
        The hot path: call after call, without a task, a future or a lock for each.

        One reading of the clock after a call serves its own end and the start of the next. All workers together give
        the loop back after 2 ms; one that was just woken while that happens rests again, since the others go on.
        """
        clock, ready = self._broker.now, self._ready
        now, fresh = clock(), True
        while True:
            if fresh:
                self._waking = False
            if not ready or (fresh and self._yielding):
                await self._rest()
                now, fresh = clock(), True
                continue
            if now > self._slice_end:
                if fresh:
                    self._next_slice()
                else:
                    await self._give_way()
                while self._stalled(now := clock()):
                    await asyncio.sleep(YIELD_S)
            fresh = False
            if (taken := self._take(now)) is not None:
                active, chunk, messages = taken
                now = await self._call(active, Call(chunk, worker, now), messages)

    def _take(self, now: float) -> tuple[ActiveQueue, Chunk, list[StoredMessage]] | None:
        """A chunk of the queue whose turn it is; None if nothing of it can be taken, or no queue is ready."""
        if not self._ready:
            return None
        active = self._ready.popleft()
        assignment = active.assignment
        active.doubted = now > assignment.believed_until and not is_proven(assignment, self._leases, now)
        taken = None if assignment.halted or active.doubted else active.cache.take_chunk(self._config.batch)
        if taken is None:
            active.withdraw()
            return None
        if active.cache.ready:
            self._ready.append(active)
        else:
            active.withdraw()
        if self._ready and not self._waking:
            self._wake()
        chunk, messages = taken
        return active, chunk, messages

    async def _give_way(self) -> None:
        """Let all other tasks on the loop run, and go on together with the other workers."""
        while self._broker.now() > self._slice_end:
            if not self._yielding:
                self._yielding = True
                asyncio.get_running_loop().call_soon(self._next_slice)
            await asyncio.sleep(0)

    def _next_slice(self) -> None:
        self._yielding = False
        self._slice_end = self._broker.now() + SLICE_S

    # A call

    async def _call(self, active: ActiveQueue, call: Call, messages: list[StoredMessage]) -> float:
        """Make a call, or ask again where the outcome is unknown; returns the time of its end."""
        chunk, clock = call.chunk, self._broker.now
        active.calls.began(call)
        self._running += 1
        try:
            if chunk.asked is not None:
                await self._give_back(active, chunk, *chunk.asked)
                return clock()
            context = ConcurrentContext(active.assignment)
            listener = self._hooks.around(self._listener, clock) if self._hooks.any else self._listener
            status: object
            chunk.called_at = call.began_at
            try:
                status = await listener(messages, context)
            except BaseException as error:
                status = self._caught(active, call, error)
            finally:
                chunk.called_at = None
            now = clock()
            if call.worker.cancelling():
                await self._let_cancel_pass(call)
            took_s = now - call.began_at
            if (
                status is SUCCESS
                and context.ack_index is None
                and took_s < self._config.consume_timeout_s  # so it was not swept either
                and call.sweep is None
                and not context.is_left
            ):
                active.count(now, chunk.count, took_s)
                active.cache.done(chunk)
                return now
            await self._settle(active, call, status, context, now)
            return clock()
        finally:
            self._running -= 1
            active.calls.ended(call)
            if not self._running and not self._ready:
                self._on_turn()

    async def _settle(
        self, active: ActiveQueue, call: Call, status: object, context: ConcurrentContext, now: float
    ) -> None:
        """Record any result but a plain success."""
        chunk, cache, error = call.chunk, active.cache, None
        if call.sweep is not None:
            await asyncio.wait([call.sweep])  # what of the chunk is ours to decide about is known after it
        read = RETRY
        if isinstance(status, Raised):
            if not status.counts:
                return self._try_again(active, chunk)
            error = status.error
        else:
            read, warning = read_concurrent_status(status)
            if warning is not None:
                self._warn.once(*warning)
        if context.is_left and error is None:
            return
        given, left = chunk.gone + chunk.count, cache.messages_of(chunk)
        done = self._acknowledged(context, given) if read is SUCCESS else 0
        elapsed_s = now - call.began_at
        timed_out = elapsed_s >= self._config.consume_timeout_s
        meter = self._statistics.of(active.assignment.shown.topic)
        if read is SUCCESS:
            meter.succeeded(now, done, 1, elapsed_s, timed_out)
            if done < given:
                meter.failed.add(now, given - done, 0)
        else:
            meter.gave_in_vain(now, given, elapsed_s, result_type(status, error, timed_out=timed_out))
        cache.done_first(chunk, done - chunk.gone)
        if chunk.count:
            failure = failure_of(status, error)
            active.assignment.last_failure = (left[0].queue_offset, failure)
            await self._give_back(active, chunk, self._level(context), reason_of(failure, left))

    async def _give_back(self, active: ActiveQueue, chunk: Chunk, delay_level: int, reason: str) -> None:
        """Give back what is left of a chunk; what cannot be stays, and is tried again in a while."""
        assignment, cache, messages = active.assignment, active.cache, active.cache.messages_of(chunk)
        fate = await self._failures.give_back(
            assignment,
            messages,
            progress=lambda: cache.progress_without(chunk, chunk.count),
            delay_level=delay_level,
            reason=reason,
        )
        chunk.asked = (delay_level, reason) if fate is Fate.UNKNOWN else None
        if fate is Fate.GIVEN_BACK:
            cache.done(chunk)
        elif fate is not Fate.LOST and not assignment.dropped:
            if fate is Fate.REFUSED:
                for message in messages:
                    message.attempt += 1
            active.retry_later(chunk, self._config.send_back_retry_s, self._broker.now())

    def _try_again(self, active: ActiveQueue, chunk: Chunk) -> None:
        """A call that we cancelled says nothing: the chunk is given to the next, if the queue is still ours."""
        if not active.assignment.dropped:
            active.cache.try_again(chunk)
            active.assignment.arrived()

    def _acknowledged(self, context: ConcurrentContext, given: int) -> int:
        done = acknowledged(context.ack_index, given)
        if done is None:
            advice = f"context.ack_index must be the index of a message, got {context.ack_index!r}; all are tried again"
            self._warn.once("listener.bad_ack_index", advice)
        return done or 0

    def _level(self, context: ConcurrentContext) -> int:
        level: object = context.delay_level
        if isinstance(level, int) and not isinstance(level, bool):
            return level
        self._warn.once("listener.bad_delay_level", f"context.delay_level must be a level, got {level!r}; ignored")
        return 0

    # Exceptions and cancellations

    def _caught(self, active: ActiveQueue, call: Call, error: BaseException) -> Raised:
        """What a listener's exception means; raises it again if it is not the listener's."""
        if call.interrupted and isinstance(error, asyncio.CancelledError | Exception):
            if not self._undo_cancel(call.worker):
                raise asyncio.CancelledError from error
            return Raised(error, counts=False)
        if isinstance(error, asyncio.CancelledError):
            # A listener that awaited something which another task cancelled has failed; we were not cancelled.
            if call.worker.cancelling():
                if not self._undo_cancel(call.worker):
                    raise error
                self._warn.cancelled_its_task()
        elif not isinstance(error, Exception):
            raise error
        messages = active.cache.messages_of(call.chunk)
        if messages:
            log_raised(active.assignment.queue, messages[0], error)
        return Raised(error)

    async def _let_cancel_pass(self, call: Call) -> None:
        """A listener that returned although it was cancelled: that is not to meet us where its result is recorded."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        if not self._undo_cancel(call.worker):
            raise asyncio.CancelledError
        if not call.interrupted:
            self._warn.cancelled_its_task()

    def _undo_cancel(self, worker: Worker) -> bool:
        """Take a cancellation back that is meant for a call, not for its worker; False if it is for good."""
        if self._tasks.cancelled(worker) or self._tasks.ending():
            return False
        while worker.cancelling():
            worker.uncancel()
        return True


COUNT_AFTER_S = 0.002  # calls are added to the statistics together, not one by one


class Calls(ConsumeGuard):
    """Busy while any call of a queue runs or its result is being recorded; ``since`` is the oldest of them."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[Call, None] = {}

    def began(self, call: Call) -> None:
        """A call begins."""
        if self.since is None:
            self.since = call.began_at
        self._running[call] = None

    def ended(self, call: Call) -> None:
        """A call has ended, and all that is to be recorded of it is."""
        del self._running[call]
        if self._running:
            self.since = next(iter(self._running)).began_at
        elif self.waiters:
            self.release()
        else:
            self.since = None

    def running(self) -> list[Call]:
        """The calls, the oldest first."""
        return list(self._running)


class Call:
    """One call of the listener; ``worker`` makes it."""

    __slots__ = ("began_at", "chunk", "interrupted", "sweep", "worker")

    def __init__(self, chunk: Chunk, worker: asyncio.Task[None], began_at: float) -> None:
        self.chunk = chunk
        self.worker = worker
        self.began_at = began_at
        self.interrupted = False  # we cancelled it
        self.sweep: asyncio.Future[None] | None = None  # its first messages are being given up: the result waits

    def interrupt(self) -> None:
        """Cancel the listener, if it still runs."""
        if self.chunk.called_at is not None and not self.interrupted:
            self.interrupted = True
            self.worker.cancel()


class ActiveQueue:
    """An assignment, and what the service keeps about it."""

    def __init__(self, assignment: Assignment, meter: TopicMeter) -> None:
        cache = assignment.cache
        assert isinstance(cache, ConcurrentQueue), "a queue of another service"
        self.assignment = assignment
        self.cache = cache
        self.calls = Calls()
        assignment.guard = self.calls
        self.offered = False  # workers may take from it
        self.doubted = False  # they could not, since the lease is not proven
        self._withdrawn = asyncio.Event()
        self._retries: dict[Chunk, tuple[float, asyncio.TimerHandle]] = {}
        self._meter = meter
        self._counted_at = float("-inf")
        self._done = self._called = 0  # not in the statistics yet
        self._seconds = 0.0

    # Whether workers take from it

    def offer(self) -> None:
        """Workers may take from it."""
        self.offered = True
        self.doubted = False
        self._withdrawn.clear()

    def withdraw(self) -> None:
        """There is nothing to take, or it may not be taken."""
        self.offered = False
        self._withdrawn.set()

    async def until_withdrawn(self) -> None:
        """Wait until workers take nothing from it any more. Cancelling is safe."""
        await self._withdrawn.wait()

    def interrupt(self) -> None:
        """Cancel the calls that run."""
        for call in self.calls.running():
            call.interrupt()

    # What is tried again

    def retry_later(self, chunk: Chunk, seconds: float, now: float) -> None:
        """Have a chunk taken again after a pause; it keeps the progress back."""
        timer = asyncio.get_running_loop().call_later(seconds, self._due, chunk)
        self._retries[chunk] = (now + seconds, timer)
        self._note_retry()

    def _due(self, chunk: Chunk) -> None:
        del self._retries[chunk]
        self._note_retry()
        self.cache.try_again(chunk)
        self.assignment.arrived()

    def cancel_retries(self) -> None:
        """Nothing is tried again here."""
        for _, timer in self._retries.values():
            timer.cancel()
        self._retries.clear()
        self._note_retry()

    def _note_retry(self) -> None:
        self.assignment.retry_at = min((due for due, _ in self._retries.values()), default=None)

    # Statistics

    def count(self, now: float, messages: int, seconds: float) -> None:
        """A call has finished ``messages`` messages."""
        self._called += 1
        self._done += messages
        self._seconds += seconds
        if not self.offered or now > self._counted_at + COUNT_AFTER_S:
            self.flush(now)

    def flush(self, now: float) -> None:
        """Add what was counted to the statistics."""
        self._counted_at = now
        self._meter.succeeded(now, self._done, self._called, self._seconds)
        self._done = self._called = 0
        self._seconds = 0.0


class Sweep:
    """
    Looks at all queues every ``consume_timeout_s``.

    Up to 16 messages at the head of a queue, whose calls have run for longer than that, are given back, to come again
    after 10 s, and passed. The calls go on, and what they say of those messages counts for nothing.
    """

    def __init__(
        self, queues: Mapping[Assignment, ActiveQueue], config: ConsumerConfig, broker: GroupClient, failures: Failures
    ) -> None:
        self._queues = queues
        self._config = config
        self._broker = broker
        self._failures = failures

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._config.consume_timeout_s)
            for active in list(self._queues.values()):
                await self.sweep(active)

    async def sweep(self, active: ActiveQueue) -> None:
        """Give up what has expired of one queue; ends at the first that cannot be given back."""
        expired = active.cache.expired(self._broker.now() - self._config.consume_timeout_s)
        calls = {call.chunk: call for call in active.calls.running()}
        for chunk, count in expired:
            # A call that ended while others were given back has said what becomes of its messages.
            if chunk.called_at is not None and not await self._give_up(active, calls[chunk], chunk, count):
                return

    async def _give_up(self, active: ActiveQueue, call: Call, chunk: Chunk, count: int) -> bool:
        """Give back the first messages of a chunk; a call that ends meanwhile waits for what comes of that."""
        call.sweep = asyncio.get_running_loop().create_future()
        ran_s = round(self._broker.now() - call.began_at, 3)
        messages = active.cache.messages_of(chunk)[:count]
        try:
            fate = await self._failures.give_back(
                active.assignment,
                messages,
                progress=lambda: active.cache.progress_without(chunk, count),
                delay_level=EXPIRED_LEVEL,
                reason=f"delivery {messages[0].attempt} took longer than {ran_s:g} s",
            )
            if fate is Fate.GIVEN_BACK:
                log.warning(
                    "message.expired",
                    queue=str(active.assignment.queue),
                    queue_offset=messages[0].queue_offset,
                    count=count,
                    call_runs_s=ran_s,
                )
                active.cache.done_first(chunk, count)
            return fate is Fate.GIVEN_BACK
        finally:
            call.sweep.set_result(None)
            call.sweep = None
