"""What the answer of a listener that is called in order means: recorded at once, or what has to be done about it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from rmq.runtime.logging import get_logger
from rmq.runtime.tasks import TaskSet

from ..config import ConsumerConfig
from ..context import ConsumeContext
from ..fetch.process_queue import in_order
from ..group.assignment import Generation
from ..results import COMMIT, SUCCESS, SUSPEND, failure_of, read_status, result_type
from ..statistics import Statistics
from .failures import Failed, reason_of
from .turns import Step

log = get_logger("rmq.consumer")


class Raised(NamedTuple):
    """What stands for the answer of a listener that raised; ``counts`` is False if we made it do so."""

    error: BaseException
    counts: bool = True


class OrderlyResults:
    """Reads answers, exceptions and cancellations of calls; warns once of each kind of misuse."""

    def __init__(self, config: ConsumerConfig, tasks: TaskSet, statistics: Statistics) -> None:
        self._config = config
        self._tasks = tasks
        self._statistics = statistics
        self._warned: set[str] = set()

    def settle(
        self, generation: Generation, count: int, status: object, context: ConsumeContext, now: float
    ) -> Step | Failed | None:
        """Record any result but a plain success; what ends the turn is returned. The guard is freed by whoever does."""
        cache, guard, error = in_order(generation.cache), generation.guard, None
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
                self._warn_once(*warning)
        if read is COMMIT:
            cache.commit()
        if read is COMMIT or read is SUCCESS:
            return None
        elapsed_s = 0.0 if guard.since is None else now - guard.since
        kind = result_type(status, error, timed_out=elapsed_s >= self._config.consume_timeout_s)
        self._statistics.of(generation.shown.topic).gave_in_vain(now, count, elapsed_s, kind)
        guard.recording = True
        messages = cache.again(count) if read is SUSPEND else cache.rollback()
        failure = failure_of(status, error)
        generation.last_failure = (messages[0].queue_offset, failure)
        return Failed(messages, reason_of(failure, messages), self._asked_pause(context))

    def _asked_pause(self, context: ConsumeContext) -> float | None:
        asked: object = context.suspend_s
        if asked is None or (isinstance(asked, int | float) and not isinstance(asked, bool)):
            return asked
        self._warn_once("listener.bad_pause", f"context.suspend_s = {asked!r} is no number of seconds; left out")
        return None

    def caught(self, generation: Generation, count: int, error: BaseException) -> Raised:
        """What a listener's exception means; raises it again if it is not the listener's."""
        if generation.interrupted and isinstance(error, asyncio.CancelledError | Exception):
            if not self.undo_cancel(generation):
                raise asyncio.CancelledError from error  # whatever the listener made of it
            return Raised(error, counts=False)
        if isinstance(error, asyncio.CancelledError):
            # A listener that awaited something which somebody else cancelled has failed; we were not cancelled.
            if is_cancelled() and not self.undo_cancel(generation):
                raise error
        elif not isinstance(error, Exception):
            raise error
        head = generation.cache.in_flight[-count]
        if head.attempt & (head.attempt - 1) == 0:
            log.error(
                "listener.raised",
                queue=str(generation.queue),
                queue_offset=head.queue_offset,
                attempt=head.attempt,
                exc_info=error,
            )
        return Raised(error)

    def undo_cancel(self, generation: Generation) -> bool:
        """Take a cancellation back that came from the listener or a doubted lease; False if it is for good."""
        task = asyncio.current_task()
        if task is None or generation.dropped or self._tasks.ending():
            return False
        while task.cancelling():
            task.uncancel()
        if generation.interrupted:
            generation.interrupted = False
        else:
            self._warn_once("listener.cancelled_its_task", "a listener must not cancel the task that calls it")
        return True

    async def let_cancel_pass(self, generation: Generation) -> None:
        """A listener that failed may have cancelled its task: that is not to meet us where the failure is recorded."""
        if not is_cancelled() or generation.dropped:
            return
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if not self.undo_cancel(generation):
                generation.guard.release()
                raise

    def _warn_once(self, event: str, advice: str) -> None:
        if event not in self._warned:
            self._warned.add(event)
            log.warning(event, advice=advice)


def is_cancelled() -> bool:
    """Whether the running task itself was cancelled, rather than something it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
