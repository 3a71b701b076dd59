"""
Draws on the alternate screen of a terminal, reads single keys, and restores the terminal at the end.

q, Escape, Ctrl-C, SIGTERM and SIGHUP end it; Ctrl-Z gives the screen back to the shell until the command is continued.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KEYS: Final = frozenset((b"\x1b", b"\x03", b"\x04"))


def is_end(typed: bytes) -> bool:
    """Return whether the keys pressed quit. An arrow or function key is an Escape followed by more bytes."""
    return typed in _KEYS or b"q" in typed.lower()


class Screen:
    """Owns the terminal within a ``with`` block, inside a running loop."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._keys = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] | None = None
        self.is_over = False

    @property
    def size(self) -> tuple[int, int]:
        """The current number of columns and lines."""
        width, height = self._console.size
        return width, height

    def __enter__(self) -> Self:
        for number in _ENDS:
            self._loop.add_signal_handler(number, self._end)
        self._loop.add_signal_handler(signal.SIGWINCH, self.wake)
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop_for_a_while)
        if self._keys is not None:
            self._loop.add_reader(self._keys, self._typed)
        self._begin()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._leave()
        if self._keys is not None:
            self._loop.remove_reader(self._keys)
        for number in (*_ENDS, signal.SIGWINCH, signal.SIGTSTP):
            self._loop.remove_signal_handler(number)

    def draw(self, lines: Sequence[Text]) -> None:
        """Replace the contents of the screen."""
        from rich.console import Group

        self._live.update(Group(*lines), refresh=True)

    def wake(self) -> None:
        """End a pause."""
        self._woken.set()

    async def pause(self, timeout_s: float) -> None:
        """Wait for the timeout, the end, a change of the size or :meth:`wake`."""
        if not self.is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._woken.wait()
        self._woken.clear()

    def _begin(self) -> None:
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSANOW)
        self._live.start()

    def _leave(self) -> None:
        self._live.stop()
        if self._keys is not None and self._before is not None:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def _end(self) -> None:
        self.is_over = True
        self.wake()

    def _typed(self) -> None:
        assert self._keys is not None
        try:
            typed = os.read(self._keys, 64)
        except OSError:
            typed = b""
        if not typed or is_end(typed):  # nothing: the terminal is gone
            self._end()

    def _stop_for_a_while(self) -> None:
        self._leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._begin()  # continued
        self.wake()
