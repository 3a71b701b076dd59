"""How much room there is for what a command prints."""

from __future__ import annotations

import shutil
import sys


def columns() -> int:
    """The columns of the terminal; 0, which is room for everything, where standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def fits(text: str, columns: int) -> bool:
    """Whether each line goes into so many columns; 0 is room for everything."""
    return not columns or all(len(line) <= columns for line in text.splitlines())
