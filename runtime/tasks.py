"""
Tasks with an owner: sets of tasks of which none fails unseen, and periodic tasks that live as long as a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from .logging import get_broker_logger

log = get_broker_logger("rmq.broker.timers")

Task = asyncio.Task[None]


class TaskSet:
    """
    Starts tasks, keeps them, and tells ``on_failure`` of the exception that ended one.

    A cancellation that nobody asked for by :meth:`cancel` is such an exception: the work of that task is not done by
    anybody from then on.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._tasks: set[Task] = set()
        self._cancelled: set[Task] = set()  # those we cancelled
        self._on_failure = on_failure

    def start(self, work: Coroutine[Any, Any, None], name: str) -> Task:
        """Run ``work`` beside the caller."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: Task) -> None:
        self._tasks.discard(task)
        asked = task in self._cancelled
        self._cancelled.discard(task)
        if not task.cancelled():
            if (error := task.exception()) is not None:
                self._on_failure(error)
        elif not asked and not self.ending():
            self._on_failure(RuntimeError(f"the task {task.get_name()!r} was cancelled by somebody else"))

    def others(self) -> list[Task]:
        """The running tasks, without the one that asks."""
        return [task for task in self._tasks if task is not asyncio.current_task()]

    def ending(self) -> bool:
        """Whether every other task is being cancelled as well, as ``asyncio.run`` does at its end."""
        return all(task.cancelling() for task in self.others())

    def cancelled(self, task: Task) -> bool:
        """Whether we have cancelled a task, by :meth:`cancel`."""
        return task in self._cancelled

    def end(self, *tasks: Task | None) -> list[Task]:
        """Cancel tasks: none of them goes on behind where it waits now. Returns those that have not ended yet."""
        running = [task for task in tasks if task is not None and not task.done()]
        self._cancelled.update(running)
        for task in running:
            task.cancel()
        return running

    async def cancel(self, *tasks: Task | None) -> None:
        """Cancel tasks and wait until they have really ended; how they ended does not matter here."""
        if running := self.end(*tasks):
            await asyncio.wait(running)


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
