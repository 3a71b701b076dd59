"""How a listener is called: a coroutine function is awaited on the loop, a plain function runs in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from rmq.wire.errors import ConfigError
from rmq.wire.model import ConsumeStatus, StoredMessage

from .context import CallContext

T = TypeVar("T")
Result = ConsumeStatus | None
# The context is a ConsumeContext or a ConcurrentContext, as the consumer is set.
AsyncListener = Callable[[list[StoredMessage], Any], Awaitable[Result]]
BlockingListener = Callable[[list[StoredMessage], Any], Result]
Listener = AsyncListener | BlockingListener

# What pools say from the moment on at which the interpreter exits; the first also when they were shut down.
_EXITING = ("cannot schedule new futures", "interpreter shutdown")


class Threads:
    """A pool with a thread for each slot; the loop's own has too few on a small machine."""

    def __init__(self, listener: BlockingListener, slots: int) -> None:
        self._listener = listener
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="rmq-listener")
        self._is_closed = False
        self.is_exiting = False  # the interpreter: no call begins any more

    async def __call__(self, messages: list[StoredMessage], context: CallContext) -> Result:
        """
        Call the listener in a thread.

        Ends when the thread has ended, also if it is cancelled: a thread cannot be stopped, and whoever goes on
        before it would run beside it.
        """
        run = partial(contextvars.copy_context().run, self._call, messages, context)
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._pool, run)
        except RuntimeError as error:
            if self._is_closed or not any(words in str(error) for words in _EXITING):
                raise
            # The program ends while the loop runs on in a thread: no call begins any more, and none has failed.
            self.is_exiting = True
            await loop.create_future()
            raise
        result = await outlast(running)
        # A function that only makes a coroutine, such as a lambda around one, was meant to be awaited.
        return await result if inspect.isawaitable(result) else result

    def _call(self, messages: list[StoredMessage], context: CallContext) -> Result:
        try:
            return self._listener(messages, context)
        except StopIteration as error:
            # A future refuses to hold it, and whoever awaits that future would wait for ever.
            raise RuntimeError("the listener raised StopIteration") from error

    def close(self) -> None:
        """Let idle threads end."""
        self._is_closed = True
        self._pool.shutdown(wait=False)


async def outlast(running: asyncio.Future[T]) -> T:
    """The result of ``running``; a cancellation is kept back until it has ended."""
    cancelled = False
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not running.cancelled():
            running.exception()  # seen: the cancellation goes first
        raise asyncio.CancelledError
    return running.result()


def adapt(listener: Listener, slots: int) -> tuple[AsyncListener, Threads | None]:
    """
    The listener as something to await, and its threads if it needs any.

    Raises:
        ConfigError: it cannot be called with messages and context, or it yields.
    """
    if not callable(listener) or not _takes_two(listener):
        raise ConfigError(f"listener must be a function of (messages, context), not {listener!r}")
    target = listener
    while isinstance(target, partial):
        target = target.func
    called = getattr(target, "__call__", None)  # noqa: B004  an object whose call is a coroutine function
    if inspect.isasyncgenfunction(target) or inspect.isasyncgenfunction(called):
        raise ConfigError(f"listener must return its status, and {listener!r} yields: use return")
    if inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(called):
        return listener, None  # type: ignore[return-value]
    threads = Threads(listener, slots)  # type: ignore[arg-type]
    return threads, threads


def _takes_two(listener: Callable[..., object]) -> bool:
    """Whether it can be called with two arguments; what does not tell is believed."""
    try:
        signature = inspect.signature(listener)
    except (TypeError, ValueError):
        return True  # some that are written in C have none
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    return True
