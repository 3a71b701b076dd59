"""
The line of requests that copy messages: one is worked off at a time, so that memory is bounded and nobody's message is
copied twice. Groups take turns, and a large request is done in portions, so that nobody waits for all of another's.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from rmq.wire.errors import Refused, TooManyInFlight

from ..net.connection import Connection

MAX_MESSAGES: Final = 1 << 18  # that all requests in line name together; each takes about 100 bytes


class Pool(Protocol):
    """Where jobs run."""

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run a job in a thread, and hand its result or exception to ``done`` on the loop."""


class Task(Protocol):
    """A request that copies. What it raises is its answer; ``messages`` is how many it names."""

    group: str
    messages: int
    connection: Connection
    request_id: int

    def begin(self) -> Callable[[], Any] | None:
        """Judge what is left to be done: the job that reads a portion; None if there is nothing, and it is answered."""

    def finish(self, result: Any) -> bool:
        """Judge anew, and append what the job made of it; says whether more is left."""


class CopyLine:
    """Tasks by group, the oldest of a group first."""

    def __init__(self, pool: Pool, most: int = MAX_MESSAGES) -> None:
        self._pool = pool
        self._most = most
        self._messages = 0  # that the tasks in line name
        self._groups: OrderedDict[str, deque[Task]] = OrderedDict()  # the one whose turn is next comes first
        self._is_busy = False

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def add(self, task: Task) -> None:
        """
        Put a task in line, and begin with it if nothing is under way.

        Raises:
            TooManyInFlight: too many messages wait already.
        """
        if self._messages + task.messages > self._most:
            raise TooManyInFlight(f"{self._messages} messages wait to be copied already: try again soon")
        self._groups.setdefault(task.group, deque()).append(task)
        self._messages += task.messages
        self._work()

    def _next(self) -> Task:
        group, tasks = self._groups.popitem(last=False)
        task = tasks.popleft()
        self._messages -= task.messages
        if tasks:
            self._groups[group] = tasks  # behind all others
        return task

    def _again(self, task: Task) -> None:
        """The rest of a task comes before others of its group, and after other groups."""
        self._groups.setdefault(task.group, deque()).appendleft(task)
        self._messages += task.messages

    def _work(self) -> None:
        """Begin with the next task that somebody still waits for, unless one is under way."""
        while self._groups and not self._is_busy:
            task = self._next()
            if not task.connection.closing:
                self._guard(task, partial(self._begin, task))

    def _begin(self, task: Task) -> None:
        job = task.begin()
        if job is not None:
            self._pool.submit(job, partial(self._done, task))
            self._is_busy = True

    def _done(self, task: Task, result: Any) -> None:
        """The job is done. What held when it began may not hold any more."""
        self._is_busy = False
        if not task.connection.closing:
            self._guard(task, lambda: self._finish(task, result))
        self._work()

    def _finish(self, task: Task, result: Any) -> None:
        if task.finish(result):
            self._again(task)

    @staticmethod
    def _guard(task: Task, step: Callable[[], None]) -> None:
        try:
            step()
        except Refused as error:
            task.connection.refuse(task.request_id, error)
        except Exception as error:
            task.connection.refuse(task.request_id, task.connection.defect(error, task.request_id))
