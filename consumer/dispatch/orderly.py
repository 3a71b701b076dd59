"""
Ordered dispatch: one owner task per assignment, which gives the listener one batch after the other.

The life of an owner::

    wait for messages -> slot -> gate -> batches ... -> leave gate and slot -> pause, or wait for messages
                                  |
                                  dropped: end.  lease not proven: ask for a renewal, come back.
                                  window over: come back in 10 ms.  batch failed: have that recorded, pause.

The slot comes before the gate: a turn that queues for a slot must not keep another out of the gate. The lease is
checked against the clock before each batch. A result is recorded locally at once; it leaves this process only with a
request that carries the epoch, sent while the lease is believed (``progress``, ``puller``), so a call that outlived
its lease commits nothing. Failed messages go to ``failures``, queues that lost several owners to ``crash_guard``.
"""

from __future__ import annotations

import asyncio

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.runtime.tasks import TaskSet

from ..config import ConsumerConfig
from ..fetch.process_queue import READ_AT_ONCE
from ..group.assignment import Assignment, QueueGates
from ..group.leases import until_proven
from ..introspection import Statistics, TopicMeter
from ..listener import (
    COMMIT,
    SUCCESS,
    SUSPEND,
    AsyncListener,
    ConsumeContext,
    failure_of,
    read_status,
    result_type,
)
from .crash_guard import CrashGuard
from .failures import AWAY_S, Failed, Retries, reason_of
from .invoke import Dispatch, DispatchParts, Raised, Warnings, is_cancelled, log_raised
from .turns import RELOCK_ENTRY_S, RELOCK_FIRST_S, SLICE_S, YIELD_S, Step, next_step

log = get_logger("rmq.consumer")


class _Turn:
    """How far a turn has come."""

    __slots__ = ("began", "called_at", "calls", "context", "counted_at", "done", "listener", "look_at", "now")

    def __init__(self, context: ConsumeContext, listener: AsyncListener, now: float) -> None:
        self.context = context
        self.listener = listener  # with its hooks
        self.began = self.now = self.counted_at = self.called_at = now
        self.look_at = float("-inf")
        self.calls = self.done = 0  # calls and messages that are not in the statistics yet


class OrderlyScheduler(Dispatch):
    """Turns over queues: as many at a time as there are slots, one at a time for each queue, none without a lease."""

    def __init__(
        self, listener: AsyncListener, config: ConsumerConfig, broker: GroupClient, parts: DispatchParts
    ) -> None:
        super().__init__(listener, config, broker, parts)
        self._results = OrderlyResults(config, self._tasks, self._statistics)
        self._retries = Retries(config, broker)
        self._crash_guard = CrashGuard(config, broker)
        self._slots = asyncio.Semaphore(config.slots)
        self._queueing = 0  # owners that wait for a slot
        self._owners: set[asyncio.Task[None]] = set()
        self.turns = 0  # turns that are running
        self.gates = QueueGates()

    def start(self, assignment: Assignment) -> None:
        """Give an assignment its owner; ``crash_loop`` is set from here on if nothing of it may be delivered."""
        if self._cancels:
            assignment.interrupt = assignment.cancel_owner
        self._crash_guard.judge(assignment)
        assignment.owner = owner = self._tasks.start(self._own(assignment), f"owner of {assignment.queue}")
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)

    async def finish(self, assignment: Assignment, *, within_s: float | None = None) -> None:
        """
        Return when the owner of a dropped assignment has ended; a running call ends first and is recorded.

        After ``within_s`` seconds (None: never) the call is cancelled; one in a thread is waited for all the same.
        """
        assert assignment.dropped, "an owner that may start another batch cannot be waited for"
        try:
            async with asyncio.timeout(within_s):
                await assignment.guard.free()
        except TimeoutError:
            log.warning("listener.cancelled", queue=str(assignment.queue), after_s=within_s)
        # No call is running and none will start: what is cancelled is a wait for messages, a slot, a gate or a pause.
        await self._tasks.cancel(assignment.owner)

    def owners(self) -> list[asyncio.Task[None]]:
        """The tasks that call the listener: one for each queue."""
        return list(self._owners)

    # The owner

    async def _own(self, assignment: Assignment) -> None:
        while True:
            try:
                await self._take_turns(assignment)
                if is_cancelled():
                    await asyncio.sleep(0)  # it is to meet us here: a task that ends before it does counts as cancelled
                return
            except asyncio.CancelledError:
                if assignment.dropped:
                    return  # whatever cancelled us, there is nothing left to do
                # A listener that cancels its task and returns leaves us the exception, wherever we wait next.
                if not self._results.undo_cancel(assignment):
                    raise

    async def _take_turns(self, assignment: Assignment) -> None:
        if assignment.crash_loop is not None:
            return await self._crash_guard.stand_still(assignment)
        while await assignment.work():
            if assignment.suspicion is None:
                end = await self._turn(assignment)
            else:
                async with self._crash_guard.calls:  # before the slot: others may have that meanwhile
                    end = await self._turn(assignment)
            await self._after_turn(assignment, end)

    async def _after_turn(self, assignment: Assignment, end: Step | Failed) -> None:
        """What a turn leaves to be done outside its gate and slot."""
        if isinstance(end, Failed):
            await self._results.let_cancel_pass(assignment)
            pause_s = await self._retries.settle(assignment, end)
            if pause_s is not None:
                assignment.retry_at = self._broker.now() + pause_s
                await assignment.pause(pause_s)
                assignment.retry_at = None
            elif end.convicted and assignment.suspicion is not None:
                assignment.suspicion = assignment.suspicion.acquitted()
        elif end is Step.YIELD:
            await assignment.pause(YIELD_S)
        elif end in (Step.RELOCK, Step.RELOCK_ENTRY):
            first_s = RELOCK_FIRST_S if end is Step.RELOCK else RELOCK_ENTRY_S
            await until_proven(assignment, self._leases, first_s=first_s, retry_s=self._config.lock_retry_s)
        elif end is Step.WAIT:
            await assignment.pause(self._config.lock_retry_s if self._broker.connected else AWAY_S)
        elif assignment.cache.ready:
            await asyncio.sleep(0)  # a long run of unwanted messages: others may have the loop

    async def _turn(self, assignment: Assignment) -> Step | Failed:
        """One stay inside the gate; says why it ended, RUN if there was nothing left to take."""
        self._queueing += 1
        try:
            await self._slots.acquire()
        finally:
            self._queueing -= 1
        try:
            async with self.gates[assignment.queue]:
                self.turns += 1
                self._on_turn()
                try:
                    run = self._run if assignment.suspicion is None else self._run_one
                    return await run(assignment)
                except BaseException:
                    assignment.guard.release()
                    raise
                finally:
                    self.turns -= 1
                    self._on_turn()
        finally:
            self._slots.release()

    async def _run(self, assignment: Assignment) -> Step | Failed:
        """
        The hot path: batch after batch, without a task, a future or a lock for each.

        One reading of the clock after a call serves its own end and the start of the next batch: nothing else can
        run in between. ``look_at`` is the first moment at which any limit has to be looked at; until then one
        comparison is enough, since all limits only move on, except by ``halted``, which is read every time. A call
        that takes too long for ``consume_timeout_s`` ends after ``look_at``, so that is looked at there, too.
        """
        give = self._give_each if self._config.batch == 1 else self._give_batch
        guard, meter = assignment.guard, self._statistics.of(assignment.shown.topic)
        turn = _Turn(ConsumeContext(assignment), self._listener, self._broker.now())
        try:
            while True:
                if turn.now > turn.look_at or assignment.halted:
                    guard.release()
                    self._count(turn, meter)
                    entering = turn.look_at < turn.began
                    step, turn.now, turn.look_at = await self._look(assignment, turn.began, entering=entering)
                    if step is not Step.RUN:
                        return step
                    turn.counted_at, turn.listener = turn.now, self._hooked()
                end = await give(assignment, turn)
                if end is not None:
                    return end
        finally:
            self._count(turn, meter)

    async def _give_batch(self, assignment: Assignment, turn: _Turn) -> Step | Failed | None:
        """One call of the listener, with a batch; None if the turn goes on."""
        cache, guard, context = assignment.cache, assignment.guard, turn.context
        messages = cache.take(self._config.batch)
        count = len(messages)  # the list is the listener's from here on: it may change it
        if not count:
            return Step.RUN
        context.auto_commit, context.suspend_s = True, None
        guard.since = turn.called_at = turn.now
        status: object
        try:
            status = await turn.listener(messages, context)
        except BaseException as error:
            status = self._results.caught(assignment, count, error)
        now = self._broker.now()
        if status is SUCCESS and context.auto_commit:
            cache.commit()
        elif (end := self._results.settle(assignment, count, status, context, now)) is not None:
            return end  # this call is counted already
        turn.now = now
        turn.calls += 1
        turn.done += count
        guard.since = None
        return None

    async def _give_each(self, assignment: Assignment, turn: _Turn) -> Step | Failed | None:
        """
        One call after the other, each with one message, until there is something to look at; None if the turn goes on.

        The cursors of the cache are moved here, and the guard is freed only where another task can run: what a
        message costs besides its call is a third less for it.
        """
        cache, guard, context = assignment.cache, assignment.guard, turn.context
        clock, listener, now, look_at = self._broker.now, turn.listener, turn.now, turn.look_at
        begin = at = cache.fill()
        called_at = now
        status: object
        context.auto_commit, context.suspend_s = True, None
        try:
            for message in cache.line[begin : begin + READ_AT_ONCE]:  # after a rollback there may be many more
                cache.next = at + 1
                guard.since = called_at = now
                try:
                    status = await listener([message], context)
                except BaseException as error:
                    status = self._results.caught(assignment, 1, error)
                now = clock()
                if status is not SUCCESS or not context.auto_commit:
                    end = self._results.settle(assignment, 1, status, context, now)
                    if end is not None:
                        now = called_at  # this call is counted already
                        return end
                    at += 1
                    break
                cache.first = at = cache.next
                if at >= cache.mark:
                    cache.settle()
                    break
                if now > look_at or assignment.halted:
                    break
                context.suspend_s = None
            if at == begin:
                return Step.RUN
            guard.since = None
            return None
        finally:
            turn.now, turn.called_at = now, called_at
            turn.calls += at - begin
            turn.done += at - begin

    def _count(self, turn: _Turn, meter: TopicMeter) -> None:
        """Add what was not counted yet to the statistics."""
        timed_out = turn.now - turn.called_at >= self._config.consume_timeout_s
        meter.succeeded(turn.now, turn.done, turn.calls, turn.now - turn.counted_at, timed_out)
        turn.calls = turn.done = 0

    async def _run_one(self, assignment: Assignment) -> Step | Failed:
        """One message of a suspected queue: announced, then given to the listener on its own."""
        clock, cache, guard = self._broker.now, assignment.cache, assignment.guard
        began = clock()
        step, now, _ = await self._look(assignment, began, entering=True)
        if step is not Step.RUN:
            return step
        messages = cache.take(1)
        if not messages:
            return Step.RUN
        (message,) = messages
        if self._crash_guard.is_convicted(assignment, message):
            guard.since, guard.recording = now, True
            return Failed(cache.again(1), str(assignment.suspicion), convicted=True)
        if self._crash_guard.is_over(assignment, message):
            cache.again(1)
            assignment.suspicion = None
            return Step.RUN
        if not await self._crash_guard.announce(assignment, message):
            step = Step.WAIT
        else:
            step, now, _ = await self._look(assignment, began, entering=False)
        if step is not Step.RUN or assignment.dropped:
            cache.again(1)
            return step
        context = ConsumeContext(assignment)
        guard.since = now
        status: object
        try:
            status = await self._hooked()(messages, context)
        except BaseException as error:
            status = self._results.caught(assignment, 1, error)
        ended = clock()
        if (end := self._results.settle(assignment, 1, status, context, ended)) is not None:
            return end
        timed_out = ended - now >= self._config.consume_timeout_s
        self._statistics.of(assignment.shown.topic).succeeded(ended, 1, 1, ended - now, timed_out)
        guard.release()
        return Step.RUN

    def _hooked(self) -> AsyncListener:
        """The listener, with its hooks if there are any."""
        return self._hooks.around(self._listener, self._broker.now) if self._hooks else self._listener

    async def _look(self, assignment: Assignment, began: float, *, entering: bool) -> tuple[Step, float, float]:
        """What to do before the next batch, the time, and when to look again; gives the loop back first."""
        config = self._config
        if assignment.interrupted and not assignment.dropped:
            self._results.undo_cancel(assignment)  # the listener did not let itself be cancelled
        if not entering:
            # A listener that never suspends would stop every timer of the process.
            await asyncio.sleep(0)
        now = self._broker.now()
        if now > assignment.believed_until:
            assignment.believed_until = self._leases.believed_until(assignment)
        step = next_step(
            dropped=assignment.dropped,
            now=now,
            believed_until=assignment.believed_until,
            began=began,
            entering=entering,
            max_continuous_s=config.max_continuous_s,
            turn_share_s=config.turn_share_s,
            others_wait=self._queueing > 0,
            paused=assignment.paused,
            stalled=self._stalled(now),
        )
        if step is Step.RUN and assignment.lost.was_set:
            self._leases.proven(assignment)
        slice_s = min(SLICE_S, config.consume_timeout_s / 2)
        return step, now, min(assignment.believed_until, began + config.max_continuous_s, now + slice_s)


class OrderlyResults:
    """Reads answers, exceptions and cancellations of calls; warns once of each kind of misuse."""

    def __init__(self, config: ConsumerConfig, tasks: TaskSet, statistics: Statistics) -> None:
        self._config = config
        self._tasks = tasks
        self._statistics = statistics
        self._warn = Warnings()

    def settle(
        self, assignment: Assignment, count: int, status: object, context: ConsumeContext, now: float
    ) -> Step | Failed | None:
        """Record any result but a plain success; returns what ends the turn. What records that frees the guard."""
        cache, guard, error = assignment.cache, assignment.guard, None
        read = SUSPEND
        if isinstance(status, Raised):
            if not status.counts:
                cache.again(count)
                guard.release()
                return Step.RELOCK
            error = status.error
        else:
            read, warning = read_status(status, context.auto_commit)
            if warning is not None:
                self._warn.once(*warning)
        if read is COMMIT:
            cache.commit()
        if read is COMMIT or read is SUCCESS:
            return None
        elapsed_s = 0.0 if guard.since is None else now - guard.since
        kind = result_type(status, error, timed_out=elapsed_s >= self._config.consume_timeout_s)
        self._statistics.of(assignment.shown.topic).gave_in_vain(now, count, elapsed_s, kind)
        guard.recording = True
        messages = cache.again(count) if read is SUSPEND else cache.rollback()
        failure = failure_of(status, error)
        assignment.last_failure = (messages[0].queue_offset, failure)
        return Failed(messages, reason_of(failure, messages), self._asked_pause(context))

    def _asked_pause(self, context: ConsumeContext) -> float | None:
        asked: object = context.suspend_s
        if asked is None or (isinstance(asked, int | float) and not isinstance(asked, bool)):
            return asked
        self._warn.once("listener.bad_pause", f"context.suspend_s must be a number of seconds, got {asked!r}; ignored")
        return None

    def caught(self, assignment: Assignment, count: int, error: BaseException) -> Raised:
        """What a listener's exception means; raises it again if it is not the listener's."""
        if assignment.interrupted and isinstance(error, asyncio.CancelledError | Exception):
            if not self.undo_cancel(assignment):
                raise asyncio.CancelledError from error  # whatever the listener made of it
            return Raised(error, counts=False)
        if isinstance(error, asyncio.CancelledError):
            # A listener that awaited something which another task cancelled has failed; we were not cancelled.
            if is_cancelled() and not self.undo_cancel(assignment):
                raise error
        elif not isinstance(error, Exception):
            raise error
        log_raised(assignment.queue, assignment.cache.in_flight[-count], error)
        return Raised(error)

    def undo_cancel(self, assignment: Assignment) -> bool:
        """Take a cancellation back that came from the listener or a doubted lease; False if it is for good."""
        task = asyncio.current_task()
        if task is None or assignment.dropped or self._tasks.ending():
            return False
        while task.cancelling():
            task.uncancel()
        if assignment.interrupted:
            assignment.interrupted = False
        else:
            self._warn.cancelled_its_task()
        return True

    async def let_cancel_pass(self, assignment: Assignment) -> None:
        """A listener that failed may have cancelled its task: that is not to meet us where the failure is recorded."""
        if not is_cancelled() or assignment.dropped:
            return
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if not self.undo_cancel(assignment):
                assignment.guard.release()
                raise
