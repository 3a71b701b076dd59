"""
Ends the processes and removes the directories of a benchmark that was killed and could not do so itself.

It is a process of its own, in a session of its own, that is told by lines what there is: ``+`` or ``-`` and a process
group or a directory. When its standard input ends, what is left is left over. It imports next to nothing, so that it
takes no share of what is measured.
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
    """The other end: tells it what there is. It runs only while there is something."""

    def __init__(self) -> None:
        self._there: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()  # several threads may measure

    def add(self, what: int | str) -> None:
        """There is a process group, or a directory."""
        with self._lock:
            if self._process is None:
                command = [sys.executable, "-S", "-E", __file__]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, start_new_session=True
                )
            self._there.add(str(what))
            self._tell(f"+{what}\n")

    def remove(self, what: int | str) -> None:
        """It is gone."""
        with self._lock:
            if str(what) not in self._there:
                return
            self._there.remove(str(what))
            self._tell(f"-{what}\n")
            if not self._there and self._process is not None:
                process, self._process = self._process, None
                process.communicate()

    def _tell(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
        except BrokenPipeError:
            pass  # somebody ended it: then we have to do without


JANITOR = Janitor()  # of this process


def left_over(lines: Iterable[str]) -> list[str]:
    """What was told of and is not gone, processes first; half a line is none."""
    there: dict[str, None] = {}
    for line in lines:
        sign, what = line[:1], line[1:-1]
        if sign == "+" and line.endswith("\n"):
            there[what] = None
        else:
            there.pop(what, None)
    return sorted(there, key=lambda what: not what.isdigit())


def main() -> None:
    """Wait for the end, then clean up."""
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
