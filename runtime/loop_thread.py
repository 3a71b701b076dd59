"""
An event loop in a thread of its own, for code without asyncio: :mod:`rmq.client.sync` and :mod:`rmq.consumer.sync`.

Promises: the calls of one thread begin in the order in which they were made; calls of many threads that come close
together reach the loop with one wake-up, so that their messages can share batches. A call that is interrupted (Ctrl-C)
is cancelled on the loop, and has ended there, before the interruption continues; a second interruption does not wait
for that, and ends the loop. Errors are raised in the calling thread, with the class they have on the loop and a
traceback that begins at the caller's line.

The thread is a daemon, and ends when its owner was collected as garbage or the interpreter exits. It closes what its
owner left open; an exit waits at most a second for that.

Each calling thread has a long-lived task on the loop, since a pull consumer knows its caller by the task: it waits for
the messages that this task has, and lets no other poll meanwhile. The task ends with its thread.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import copy
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

import uvloop

from rmq.wire.errors import RmqError

P = ParamSpec("P")
T = TypeVar("T")
SIGNAL_S: Final = 0.25  # how late Ctrl-C may be heard
EXIT_S: Final = 1.0  # how long an interpreter that exits waits for the threads that nobody ended
_inside: contextvars.ContextVar[LoopThread | None] = contextvars.ContextVar("rmq_loop_thread", default=None)
_running: weakref.WeakSet[LoopThread] = weakref.WeakSet()


class LoopEnded(Exception):
    """The loop has ended, or ended before the call did."""


class LoopThread:
    """
    A thread with a loop; ``what`` names its owner in sentences (``producer``), ``instead`` the class for asyncio.

    ``close`` is the last that runs on the loop, whoever ended it; it must not refer to the owner. The thread is new,
    then running, then ended for good.
    """

    def __init__(self, what: str, *, instead: str, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._what = what
        self._close = close
        self._instead = instead
        self._pid: int | None = None  # where it was started
        # One that its own thread can take again: a signal, or the collection of garbage, may come while it is held.
        self._lock = threading.RLock()
        self._calls: deque[_Call] = deque()
        self._is_woken = False
        self._is_running = False
        self._is_ended = False
        self._is_second_next = False  # the next interruption of a call is as a second one
        self._is_hurried = False  # nobody waits for the end any more
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._context: contextvars.Context

    # Life

    def start(self) -> None:
        """
        Let the loop run; does nothing if it runs.

        Raises:
            LoopEnded: it ended.
            RuntimeError: of this thread another loop would be blocked, or this process is a fork.
        """
        self._check_caller()
        with self._lock:
            if self._is_ended:
                raise LoopEnded
            if not self._is_running:
                self._loop = uvloop.new_event_loop()
                self._context = contextvars.copy_context()
                self._context.run(_inside.set, self)
                # Not to be entered while the thread is in it: what other threads ask for runs in a copy.
                within = self._context.copy()
                name = f"rmq-{self._what}"
                self._thread = threading.Thread(target=within.run, args=(self._main,), name=name, daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # there are too many
                    self._loop.close()
                    raise
                self._pid = os.getpid()
                self._is_running = True
                _running.add(self)

    def end(self, within_s: float | None = None) -> None:
        """
        End the loop, cancel what is under way, and wait for that, at most so long; may be called again, by anybody.

        Called on the loop, or by what runs for it, it does not wait. In a fork there is nothing to end.
        """
        self.abandon()
        if self._pid == os.getpid() and not self.is_inside() and not self._is_hurried:
            self._thread.join(within_s)

    def abandon(self) -> None:
        """End the loop soon, and do not wait; in a fork there is none."""
        if self.is_forked():
            return
        with self._lock:
            if self._is_running and not self._is_ended:
                self._loop.call_soon_threadsafe(self._loop.stop, context=self._context)
            self._is_ended = True

    def hurry(self) -> None:
        """Let the next interruption of a call be as a second one: it does not wait."""
        self._is_second_next = True

    def end_with(self, owner: object) -> None:
        """End the loop when nothing refers to its owner any more."""
        # At the exit of the interpreter all of them end together, see below.
        weakref.finalize(owner, self.abandon).atexit = False

    @property
    def is_new(self) -> bool:
        """Whether it was neither started nor ended."""
        return self._pid is None and not self._is_ended

    def is_inside(self) -> bool:
        """Whether the caller runs on this loop, or in a thread on its behalf (as a listener does)."""
        return _inside.get() is self

    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that has the thread."""
        return self._pid not in (None, os.getpid())

    # Calls

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **named: P.kwargs) -> T:
        """
        Run a coroutine function on the loop, and wait for its result.

        Raises:
            LoopEnded: the loop does not run, or ended before.
            RuntimeError: of this thread another loop would be blocked, or this process is a fork.
        """
        self._check_caller()
        call = _Call(function, args, named)
        with self._lock:
            if not self._is_running or self._is_ended:
                raise LoopEnded
            self._submit(call)
        return self._wait(call)  # type: ignore[no-any-return]

    def run(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """
        Call a plain function on the loop, and wait for its result; before the start, call it on the spot.

        Raises:
            LoopEnded: the loop ended before.
            RuntimeError: this process is a fork.
        """
        self._check_fork()
        if self._pid is not None and threading.get_ident() == self._thread.ident:
            return function(*args, **named)
        call = _Call(function, args, named)
        with self._lock:
            if self._pid is None:
                return function(*args, **named)
            if not self._is_running:
                raise LoopEnded
            self._submit(call)
        return self._wait(call)  # type: ignore[no-any-return]

    def post(self, function: Callable[P, object], *args: P.args, **named: P.kwargs) -> None:
        """Call a function, or start a coroutine function, on the loop, and do not wait; of an ended one nothing."""
        self._check_fork()
        with self._lock:
            if self._is_running:
                self._submit(_Call(function, args, named))

    def _submit(self, call: _Call) -> None:
        # In this order: if Ctrl-C comes in between, the next call wakes the loop for both.
        self._calls.append(call)
        if not self._is_woken:
            self._loop.call_soon_threadsafe(self._begin_calls, context=self._context)
            self._is_woken = True

    def _wait(self, call: _Call) -> Any:
        try:
            call.wait()
        except BaseException:  # Ctrl-C, or what a handler of a signal raised
            if self._is_second_next:
                self._give_up()
                raise
            self.post(call.cancel)
            try:
                call.wait()
            except BaseException:  # once more: somebody is in a hurry
                self._give_up()
                raise
            raise
        return call.result()

    def _give_up(self) -> None:
        self._is_hurried = True
        self.abandon()

    def _check_caller(self) -> None:
        self._check_fork()
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(
                f"this {self._what} blocks, and would stop the event loop that runs here: use {self._instead} with it"
            )

    def _check_fork(self) -> None:
        if self.is_forked():
            raise RuntimeError(f"this {self._what} belongs to process {self._pid}: after a fork make another one")

    # On the loop

    def _begin_calls(self) -> None:
        with self._lock:  # not while somebody is about to note that we were woken
            self._is_woken = False
        while self._calls:
            self._calls.popleft().begin()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._close())
        finally:
            self._cancel_all()
            with self._lock:
                self._is_running = False
                self._is_ended = True
                left = list(self._calls)
                self._calls.clear()
            for call in left:
                call.fail(LoopEnded())
            self._loop.close()

    def _cancel_all(self) -> None:
        """As ``asyncio.run`` ends."""
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())


class _Call:
    """Something to be done on the loop that one thread waits for, or nobody."""

    __slots__ = ("_args", "_done", "_error", "_function", "_is_settled", "_named", "_result", "_task")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._function = function
        self._args = args
        self._named = named
        self._task: asyncio.Task[Any] | None = None
        self._is_settled = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    # In the thread that waits

    def wait(self) -> None:
        """Wait for the end; may be called again when something interrupted it."""
        while not self._is_settled:
            # A signal that comes at the very moment the wait begins does not end it: so it ends by itself.
            self._done.acquire(timeout=SIGNAL_S)

    def result(self) -> Any:
        """What came of it; raises what it raised."""
        if self._error is None:
            return self._result
        try:
            raise _own(self._error)
        finally:
            self._error = None  # else its traceback would keep us, and we it

    # On the loop

    def begin(self) -> None:
        """Call; a coroutine goes on as a task."""
        try:
            result = self._function(*self._args, **self._named)
        except BaseException as error:
            self.fail(error)
            return
        if asyncio.iscoroutine(result):
            self._task = asyncio.get_running_loop().create_task(result)
            self._task.add_done_callback(self._ended)
        else:
            self._settle(result, None)

    def cancel(self) -> None:
        """Cancel what is under way."""
        if self._task is not None:
            self._task.cancel()

    def fail(self, error: BaseException) -> None:
        """It did not come to anything."""
        self._settle(None, error)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.fail(LoopEnded())  # or the caller was interrupted, and does not look
        elif (error := task.exception()) is not None:
            self.fail(error)
        else:
            self._settle(task.result(), None)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        self._result, self._error = result, error
        self._is_settled = True  # before anybody wakes up
        self._done.release()


def _own(error: BaseException) -> BaseException:
    """The error for one thread alone: on the loop the same one may be raised to many, each with its own traceback."""
    if not isinstance(error, RmqError):
        return error
    mine = copy.copy(error)
    mine.__cause__, mine.__context__ = error.__cause__, error.__context__
    mine.__suppress_context__ = error.__suppress_context__
    return mine.with_traceback(error.__traceback__)


def _end_all() -> None:
    """The interpreter exits: end what nobody ended, within a moment."""
    left = [thread for thread in _running if not thread.is_forked()]
    for thread in left:
        thread.abandon()
    for thread in left:
        thread.end(EXIT_S / len(left))


atexit.register(_end_all)
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
