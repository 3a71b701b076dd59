"""
Ends the processes and removes the directories of a benchmark that was killed.

The janitor is a process in a session of its own. It reads lines, ``+`` or ``-`` and a process group or a directory, and
cleans up what is left when its standard input ends. It imports next to nothing, so that it does not distort
measurements.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from threading import Lock


class Janitor:
    """Starts the janitor while there is something to clean up, and reports to it what there is."""

    def __init__(self) -> None:
        self._there: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()  # several threads may measure

    def add(self, what: int | str) -> None:
        """Report a process group or a directory."""
        with self._lock:
            if self._process is None:
                command = [sys.executable, "-S", "-E", __file__]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, start_new_session=True
                )
            self._there.add(str(what))
            self._write(f"+{what}\n")

    def remove(self, what: int | str) -> None:
        """Report that it is gone."""
        with self._lock:
            if str(what) not in self._there:
                return
            self._there.remove(str(what))
            self._write(f"-{what}\n")
            if not self._there and self._process is not None:
                process, self._process = self._process, None
                process.communicate()

    def _write(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
        except BrokenPipeError:
            pass  # it was killed: continue without it


JANITOR = Janitor()  # of this process


def left_over(lines: Iterable[str]) -> list[str]:
    """Return what was added and not removed, processes first; an incomplete line does not count."""
    there: dict[str, None] = {}
    for line in lines:
        sign, what = line[:1], line[1:-1]
        if sign == "+" and line.endswith("\n"):
            there[what] = None
        else:
            there.pop(what, None)
    return sorted(there, key=lambda what: not what.isdigit())


def main() -> None:
    """Wait for the end of standard input, then clean up."""
    for what in left_over(sys.stdin):
        if what.isdigit():
            try:
                os.killpg(int(what), signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        else:
            shutil.rmtree(what, ignore_errors=True)


if __name__ == "__main__":
    main()
