"""Progress bars on standard error, and the width of the terminal; without a terminal neither applies."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import click

_REFRESH_S = 0.1


@asynccontextmanager
async def progress(label: str, total: int, done: Callable[[], int]) -> AsyncIterator[None]:
    """Show a bar that follows ``done()`` up to ``total``, within the block."""
    if not sys.stderr.isatty():
        yield
        return
    bar = asyncio.create_task(_draw(label, total, done))
    try:
        yield
    finally:
        bar.cancel()
        await asyncio.gather(bar, return_exceptions=True)


async def _draw(label: str, total: int, done: Callable[[], int]) -> None:
    with click.progressbar(length=total, label=label, file=sys.stderr) as bar:
        try:
            while True:
                bar.update(done() - bar.pos)
                await asyncio.sleep(_REFRESH_S)
        finally:
            bar.update(done() - bar.pos)


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar that each call advances, within the block; for work that blocks."""
    if not sys.stderr.isatty():
        yield lambda more: None
        return
    with click.progressbar(length=max(total, 1), label=label, file=sys.stderr) as bar:
        yield bar.update


def columns() -> int:
    """Return the columns of the terminal, or 0 (unlimited) if standard output is not one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def fits(text: str, columns: int) -> bool:
    """Return whether each line fits into ``columns`` (0: unlimited)."""
    return not columns or all(len(line) <= columns for line in text.splitlines())
