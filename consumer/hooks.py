"""Hooks around the calls of a listener, for tracing and auditing. Without any, a call costs nothing more."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rmq.runtime.logging import get_logger
from rmq.wire.errors import ConfigError
from rmq.wire.model import ConsumeStatus, MessageQueue, StoredMessage

from .context import CallContext
from .listener import AsyncListener, Result
from .results import ResultType, is_success, result_type

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
