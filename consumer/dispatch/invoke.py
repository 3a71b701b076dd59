"""What all ways to call a listener share: an exception as its answer, and warnings of misuse, each logged once."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from rmq.runtime.logging import get_logger
from rmq.wire.model import MessageQueue, StoredMessage

log = get_logger("rmq.consumer")


class Raised(NamedTuple):
    """Stands for the answer of a listener that raised; ``counts`` is False if we made it do so."""

    error: BaseException
    counts: bool = True


class Warnings:
    """Logs each kind of misuse once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def once(self, event: str, advice: str) -> None:
        if event not in self._logged:
            self._logged.add(event)
            log.warning(event, advice=advice)

    def cancelled_its_task(self) -> None:
        """Warn of a listener that cancelled its own task."""
        self.once("listener.cancelled_its_task", "a listener must not cancel the task that calls it")


def log_raised(queue: MessageQueue, head: StoredMessage, error: BaseException) -> None:
    """Log what a listener raised, at attempts 1, 2, 4 ...: a queue that is retried every 10 ms would fill the log."""
    if head.attempt & (head.attempt - 1) == 0:
        log.error(
            "listener.raised",
            queue=str(queue),
            queue_offset=head.queue_offset,
            attempt=head.attempt,
            exc_info=error,
        )


def is_cancelled() -> bool:
    """Return whether the running task itself was cancelled, rather than something it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
