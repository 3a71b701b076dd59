"""
A long-lived task for each thread that calls, so that calls of one thread are those of one task.

Whoever asks for messages is known by its task: what it has in hand is waited for, and others may not ask meanwhile.
The task of a thread ends when that thread has.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

Job = tuple[Callable[[], Coroutine[Any, Any, Any]], "asyncio.Future[Any]"]


class ThreadTasks:
    """The tasks of threads; all of it is called on the loop."""

    def __init__(self) -> None:
        self._tasks: dict[threading.Thread, _ThreadTask] = {}

    async def run(self, thread: threading.Thread, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """
        Run a coroutine function in the task of a thread; cancelling cancels it there, and waits for its end.

        A thread that is in the middle of such a call (so a handler of a signal asks) gets another task.
        """
        await self._end([other for other in self._tasks if not other.is_alive()])
        task = self._tasks.get(thread)
        if task is None:
            task = self._tasks[thread] = _ThreadTask(thread.name)
        return await (function() if task.is_busy else task.run(function))

    async def end(self) -> None:
        """End all of them: nobody calls any more."""
        await self._end(list(self._tasks))

    async def _end(self, threads: list[threading.Thread]) -> None:
        ended = [self._tasks.pop(thread).task for thread in threads]
        for task in ended:
            task.cancel()
        if ended:
            await asyncio.wait(ended)


class _ThreadTask:
    """A task that runs one coroutine after the other."""

    def __init__(self, name: str) -> None:
        self.is_busy = False
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()
        self._given_up: asyncio.Future[Any] | None = None  # the job whose caller was cancelled
        self.task = asyncio.get_running_loop().create_task(self._work(), name=f"calls of {name}")

    async def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.is_busy = True
        self._jobs.put_nowait((function, ended))
        is_cancelled = False
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError:
                is_cancelled = True
                self._given_up = ended
                self.task.cancel()
        if is_cancelled:
            if not ended.cancelled():
                ended.exception()  # seen: the cancellation goes first
            raise asyncio.CancelledError
        return ended.result()

    async def _work(self) -> None:
        while True:
            try:
                function, ended = await self._jobs.get()
            except asyncio.CancelledError:
                if self._given_up is None:
                    raise  # the whole task is to end
            else:
                await self._do(function, ended)

    async def _do(self, function: Callable[[], Coroutine[Any, Any, Any]], ended: asyncio.Future[Any]) -> None:
        try:
            if ended is not self._given_up:
                ended.set_result(await function())
        except asyncio.CancelledError:
            if ended is not self._given_up:
                raise
        except BaseException as error:
            ended.set_exception(error)
        finally:
            if ended is self._given_up:
                self.task.uncancel()
                self._given_up = None
            self.is_busy = False
            if not ended.done():
                ended.cancel()
