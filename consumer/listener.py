"""
The listener: how it is called, what it is given besides messages, hooks around it, and how its answer is read.

A coroutine function is awaited on the loop, a plain function runs in a thread. Without hooks a call costs nothing more.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, TypeVar

from rmq.runtime.logging import get_logger
from rmq.wire.errors import ConfigError
from rmq.wire.model import ConsumeStatus, MessageQueue, StoredMessage

from .group.assignment import Assignment, LeaseLost

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

        Ends when the thread has ended, also if it is cancelled: a thread cannot be stopped, and what goes on
        before it would run next to it.
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
            # A future refuses to hold it, and what awaits that future would wait for ever.
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


class CallContext:
    """What every listener is given with messages; it belongs to that call."""

    __slots__ = ("_assignment",)

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    @property
    def queue(self) -> MessageQueue:
        """The queue of the messages."""
        return self._assignment.shown

    @property
    def epoch(self) -> int:
        """The fencing token: it grows with every owner, so that a sink can refuse the writes of an older one."""
        return self._assignment.epoch

    @property
    def lost(self) -> LeaseLost:
        """True once the queue may belong to another member; ``await context.lost.wait()`` waits for that."""
        return self._assignment.lost


class ConsumeContext(CallContext):
    """
    The second argument of a listener that gets the messages of a queue one after the other.

    ``auto_commit`` (True at each call): set it to False and progress is kept until a call returns ``COMMIT``.
    ``suspend_s`` (None at each call): set it and a failed message is tried again after exactly that pause.
    """

    __slots__ = ("auto_commit", "suspend_s")

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self.auto_commit = True
        self.suspend_s: float | None = None

    def leave(self) -> None:
        """Return SUCCESS after this, and the messages are neither done nor failed: the next owner gets them."""
        self.auto_commit = False
        self._assignment.left = True


class ConcurrentContext(CallContext):
    """
    The second argument of a listener that gets messages of a queue next to others of it (``orderly=False``).

    ``ack_index`` (None at each call): with SUCCESS, the index of the last message that is done; those after it failed.
    ``delay_level`` (0 at each call): after which level a failed message comes again; 0 goes by how often it was
    delivered, and a negative one makes a dead letter of it at once.
    """

    __slots__ = ("ack_index", "delay_level", "is_left")

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self.ack_index: int | None = None
        self.delay_level = 0
        self.is_left = False

    def leave(self) -> None:
        """Whatever is returned after this, the messages are neither done nor failed: the next owner gets them."""
        self.is_left = True


log = get_logger("rmq.consumer")


@dataclass(slots=True, eq=False)
class CallInfo:
    """
    One call of the listener; ``before`` and ``after`` of all hooks get the same object.

    What comes of the call is known to ``after`` only. ``data`` is for hooks to keep things from one to the other.
    """

    group: str
    queue: MessageQueue
    epoch: int
    messages: tuple[StoredMessage, ...]
    status: ConsumeStatus | None = None  # what the listener returned, if that was a status
    result: ResultType | None = None
    success: bool = False  # whether the listener says that the messages are done
    elapsed_s: float = 0.0
    exception: BaseException | None = None
    data: dict[str, Any] = field(default_factory=dict)


class Hooks:
    """
    The hooks of a consumer: objects with a method ``before``, ``after`` or both, which take a :class:`CallInfo`.

    They run on the loop, in the order they were added, also if the listener runs in a thread. What one of them raises
    is logged and changes nothing.
    """

    def __init__(self, group: str, *, consume_timeout_s: float) -> None:
        self._group = group
        self._timeout_s = consume_timeout_s
        self._before: list[Callable[[CallInfo], object]] = []
        self._after: list[Callable[[CallInfo], object]] = []
        self._failures = 0
        self.any = False  # whether there are any

    def __bool__(self) -> bool:
        return self.any

    def add(self, hook: object) -> None:
        """
        Have a hook called from the next calls on.

        Raises:
            ConfigError: it has neither method, or one that cannot be called without being awaited.
        """
        before, after = getattr(hook, "before", None), getattr(hook, "after", None)
        if before is None and after is None:
            raise ConfigError(f"a hook needs a method before(info) or after(info), and {hook!r} has neither")
        for method in (before, after):
            if method is not None and (not callable(method) or _is_awaited(method)):
                raise ConfigError(f"before and after of a hook must be plain functions, not {method!r}")
        if before is not None:
            self._before.append(before)
        if after is not None:
            self._after.append(after)
        self.any = True

    def around(self, listener: AsyncListener, now: Callable[[], float]) -> AsyncListener:
        """The listener with its hooks."""

        async def hooked(messages: list[StoredMessage], context: CallContext) -> Result:
            info = CallInfo(self._group, context.queue, context.epoch, tuple(messages))
            self._call(self._before, info)
            began = now()
            status: Result = None
            try:
                status = await listener(messages, context)
                return status
            except BaseException as error:
                info.exception = error
                raise
            finally:
                info.elapsed_s = now() - began
                info.status = status if isinstance(status, ConsumeStatus) else None
                info.result = result_type(status, info.exception, timed_out=info.elapsed_s >= self._timeout_s)
                info.success = is_success(status, info.exception)
                self._call(self._after, info)

        return hooked

    def _call(self, methods: list[Callable[[CallInfo], object]], info: CallInfo) -> None:
        for method in methods:
            try:
                method(info)
            except Exception as error:
                self._failures += 1
                # Not each time: a hook that fails at every call would fill the log.
                if self._failures & (self._failures - 1) == 0:
                    log.error("hook.raised", hook=repr(method), times=self._failures, exc_info=error)


def _is_awaited(method: Callable[..., object]) -> bool:
    """Whether calling it only makes a coroutine; also an object whose call does."""
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None))  # noqa: B004


SUCCESS, SUSPEND = ConsumeStatus.SUCCESS, ConsumeStatus.SUSPEND
COMMIT, ROLLBACK = ConsumeStatus.COMMIT, ConsumeStatus.ROLLBACK
RETRY = ConsumeStatus.RETRY


class ResultType(Enum):
    """How a call ended, for hooks and statistics."""

    SUCCESS = "success"
    TIME_OUT = "time_out"  # it answered, but took ``consume_timeout_s`` or longer; a success is committed all the same
    EXCEPTION = "exception"
    RETURNED_NULL = "returned_null"
    FAILED = "failed"  # it asked for the messages again


class Reading(NamedTuple):
    """What an answer means, and a warning (event, advice) if it was not a good one."""

    status: ConsumeStatus
    warning: tuple[str, str] | None = None


def read_status(status: object, auto_commit: bool) -> Reading:
    """COMMIT, SUSPEND, ROLLBACK, or SUCCESS for a success that is not to be committed yet."""
    if status is None:
        advice = "return ConsumeStatus.SUCCESS when the messages are done"
        return Reading(SUSPEND, ("listener.returned_nothing", advice))
    if not isinstance(status, ConsumeStatus):
        advice = f"expected a ConsumeStatus, got {status!r}; treating it as SUSPEND"
        return Reading(SUSPEND, ("listener.returned_no_status", advice))
    if status is RETRY:
        advice = "RETRY is for orderly=False: in order the message itself is tried again; taken as SUSPEND"
        return Reading(SUSPEND, ("listener.asks_to_retry", advice))
    if not auto_commit or status is SUSPEND:
        return Reading(status)
    if status is ROLLBACK:
        # RocketMQ takes it for a success. A listener that asks for the messages again does not want them committed.
        advice = "ROLLBACK needs auto_commit = False; taken as SUSPEND"
        return Reading(SUSPEND, ("listener.rolls_back_itself", advice))
    if status is COMMIT:
        advice = "COMMIT means something only with context.auto_commit = False"
        return Reading(COMMIT, ("listener.commits_itself", advice))
    return Reading(COMMIT)


def read_concurrent_status(status: object) -> Reading:
    """SUCCESS or RETRY: what the answer means where messages of a queue are finished in any order."""
    if status is SUCCESS or status is RETRY:
        return Reading(status)
    if status is None:
        advice = "return ConsumeStatus.SUCCESS when the messages are done"
        return Reading(RETRY, ("listener.returned_nothing", advice))
    if not isinstance(status, ConsumeStatus):
        return Reading(
            RETRY, ("listener.returned_no_status", f"expected a ConsumeStatus, got {status!r}; treating it as RETRY")
        )
    meant = SUCCESS if status is COMMIT else RETRY
    advice = f"{status.name} is for orderly consumption; taken as {meant.name}"
    return Reading(meant, ("listener.returned_ordered_status", advice))


def acknowledged(ack_index: object, count: int) -> int | None:
    """How many of a call's messages are done by its ``ack_index``; None if that is not an index."""
    if ack_index is None:
        return count
    if isinstance(ack_index, bool) or not isinstance(ack_index, int):
        return None
    return min(max(ack_index + 1, 0), count)


def result_type(status: object, error: BaseException | None, *, timed_out: bool) -> ResultType:
    """The type of a result; an exception and a missing answer come before the time it took."""
    if error is not None:
        return ResultType.EXCEPTION
    if status is None:
        return ResultType.RETURNED_NULL
    if timed_out:
        return ResultType.TIME_OUT
    return ResultType.SUCCESS if status in (SUCCESS, COMMIT) else ResultType.FAILED


def is_success(status: object, error: BaseException | None) -> bool:
    """Whether the listener says that the messages are done."""
    return error is None and status in (SUCCESS, COMMIT)


def failure_of(status: object, error: BaseException | None) -> str:
    """What a listener that failed has done, for people: raised, forgot to answer, or asked for its messages again."""
    if error is not None:
        return _said_by(error)
    if status is None:
        return "the listener returned nothing; it must return ConsumeStatus.SUCCESS when messages are done"
    if not isinstance(status, ConsumeStatus):
        return f"the listener returned {_article(type(status).__name__)}, which is not a ConsumeStatus"
    return "the listener asked for it again"


def _said_by(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # a text that cannot be made must not take the queue with it
        text = "its text cannot be read"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
