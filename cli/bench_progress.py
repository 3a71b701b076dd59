"""The progress bar of ``rmq-bench``: on standard error, where somebody looks; elsewhere nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import click

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

_PARTS = 1000
_LABEL = 30  # columns, so that the bar does not move with its label
_WIDTH = 24


class Bar:
    """Shows which part of a whole is done, and what is measured now."""

    def __init__(self) -> None:
        self._bar: ProgressBar[int] | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = click.progressbar(length=_PARTS, label=_label("starting"), file=sys.stderr, width=_WIDTH)
            self._bar.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._clear()
            sys.stderr.write("\x1b[?25h")  # the bar hides the cursor; its own end would leave a line behind
            sys.stderr.flush()

    def __call__(self, done: float, what: str) -> None:
        """Draw it anew."""
        if self._bar is not None:
            self._bar.label = _label(what)
            self._bar.update(round(done * _PARTS) - self._bar.pos)
            self._bar.render_progress()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within the block there is room for lines of text; afterwards the bar is there again."""
        self._clear()
        yield
        if self._bar is not None:
            sys.stderr.write(self._bar.format_progress_line())
            sys.stderr.flush()

    def _clear(self) -> None:
        if self._bar is not None:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def _label(what: str) -> str:
    return what[:_LABEL].ljust(_LABEL)
