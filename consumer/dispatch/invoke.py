"""What all ways to call a listener share: what they are given, an exception as an answer, and warnings of misuse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.runtime.tasks import TaskSet
from rmq.wire.model import MessageQueue, StoredMessage

from ..config import ConsumerConfig
from ..group.leases import Leases
from ..introspection import Statistics
from ..listener import AsyncListener, Hooks, Threads

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchParts:
    """What a dispatch is given; ``stalled`` says whether the loop is too late to start anything, at a broker's time."""

    tasks: TaskSet
    leases: Leases
    on_turn: Callable[[], None]
    hooks: Hooks
    statistics: Statistics
    stalled: Callable[[float], bool]


class Dispatch:
    """Calls a listener: base of the ordered and the concurrent one."""

    def __init__(
        self, listener: AsyncListener, config: ConsumerConfig, broker: GroupClient, parts: DispatchParts
    ) -> None:
        self._listener = listener
        self._config = config
        self._broker = broker
        self._tasks = parts.tasks
        self._leases = parts.leases
        self._on_turn = parts.on_turn
        self._hooks = parts.hooks
        self._statistics = parts.statistics
        self._stalled = parts.stalled
        self._cancels = config.cancel_on_loss and not isinstance(listener, Threads)


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
