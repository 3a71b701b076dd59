"""What a broker does from time to time: tasks that live as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from .logging import get_logger

log = get_logger(__name__)


class Timers:
    """Tasks that are kept from being collected, and ended together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` again and again; what it raises is logged."""
        self.keep(_repeat(seconds, action))

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """End them all."""
        for task in list(self._tasks):
            task.cancel()

    def __len__(self) -> int:
        return len(self._tasks)


async def _repeat(seconds: float, action: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            action()
        except Exception:  # a defect in one pass must not end the timer
            log.exception("timer.failed", action=getattr(action, "__name__", "?"))
