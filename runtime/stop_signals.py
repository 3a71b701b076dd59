"""
SIGINT and SIGTERM as requests to stop, for programs and for consumers that run inside them.

The first signal asks to stop, the second insists, and those after it do what they did before. Signals that come
together are one: ``timeout`` sends its signal to the process and then to its whole group, and so do some shells and
supervisors. Everything that handles signals at the time is asked, so that a program with several consumers stops all of
them.

Only the main thread can handle signals: in any other this does nothing. A handler that the program has installed, or a
signal that it ignores, stays as it is, unless ``always`` says otherwise.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

from .clock import boottime

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
TOGETHER_S: Final = 0.1

_DEFAULTS: Final = (signal.SIG_DFL, signal.default_int_handler)
_handling: list[StopSignals] = []
_before: dict[int, Any] = {}  # the handlers that ours has replaced


class StopSignals:
    """
    Handles signals within a ``with`` block.

    ``ask(number)`` and ``insist()`` are called in the main thread between any two of its instructions: they hand the
    work over, for example by ``loop.call_soon_threadsafe``. What ``insist`` raises is raised there.
    """

    def __init__(
        self,
        ask: Callable[[signal.Signals], object],
        insist: Callable[[], object],
        *,
        always: bool = False,
        together_s: float | None = None,
    ) -> None:
        self._ask = ask
        self._insist = insist
        self._always = always
        self._together_s = TOGETHER_S if together_s is None else together_s
        self._asked_at: float | None = None
        self._insisted = False

    @property
    def asked(self) -> bool:
        """Whether a signal came."""
        return self._asked_at is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            _handling.append(self)
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if handler is not _on_signal and (self._always or _is_default(handler)):
                    _before[number] = handler
                    signal.signal(number, _on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        if self in _handling:
            _handling.remove(self)
            if not _handling:
                _restore()

    def _step(self, number: signal.Signals, now: float) -> Callable[[], object] | None:
        """Return what a signal means that came now; None if it belongs to the one before it."""
        if self._asked_at is None:
            self._asked_at = now
            return functools.partial(self._ask, number)
        if self._insisted or now - self._asked_at < self._together_s:
            return None
        self._insisted = True
        return self._insist


def _on_signal(number: int, frame: FrameType | None) -> None:
    if not _handling:  # a program that had saved this handler has put it back
        signal.signal(number, _former(number))
        signal.raise_signal(number)
        return
    now = boottime()
    steps = [one._step(signal.Signals(number), now) for one in _handling]
    if all(one._insisted for one in _handling):
        _restore()  # first: a step may raise
    for step in steps:
        if step is not None:
            step()


def _restore() -> None:
    """Put the former handlers back, except where the program has installed one of its own meanwhile."""
    for number in _before:
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, _former(number))


def _former(number: int) -> Any:
    """Return the handler that ours has replaced; in place of one of an ``asyncio.run`` that has ended, Python's own."""
    handler = _before.get(number, signal.SIG_DFL)
    if _is_of_runner(handler) and handler.keywords["main_task"].done():
        return signal.default_int_handler
    return handler


def _forget_in_child() -> None:
    """Give a forked process its signals back: the loops that would stop the consumers do not run there."""
    _handling.clear()
    _restore()


os.register_at_fork(after_in_child=_forget_in_child)


def _is_default(handler: Any) -> bool:
    """Whether a handler is one that Python or ``asyncio.run`` has installed, and not the program."""
    return handler in _DEFAULTS or _is_of_runner(handler)


def _is_of_runner(handler: Any) -> bool:
    owner = getattr(handler.func, "__self__", None) if isinstance(handler, functools.partial) else None
    return isinstance(owner, asyncio.Runner)
