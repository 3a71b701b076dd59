"""Standard error for log lines: nobody who fails to read or store them may stop or fail what they tell of."""

from __future__ import annotations

import io
import os
import select
from typing import Final, TextIO

PIECE: Final = 4096  # a pipe that polls as writable takes this much without blocking (PIPE_BUF on Linux)


class LogSink:
    """
    Writes what can be written at once and drops the rest.

    A pipe that nobody reads would stop a process that writes its log from the event loop, and with it everybody it
    serves. Dropped lines are counted, and the number is written as soon as there is room again.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._poll = select.poll()
        self.dropped = 0
        try:
            self._fd = stream.fileno()
        except (OSError, ValueError, io.UnsupportedOperation):
            self._fd = -1  # a stream in memory
        else:
            self._poll.register(self._fd, select.POLLOUT)

    def write(self, text: str) -> None:
        """Write a line, or drop it; never raises, never waits."""
        if self.dropped:
            text = f"{self.dropped} log lines were dropped: nobody read them\n{text}"
        try:
            self._put(text)
            self.dropped = 0
        except (OSError, ValueError):  # not now, a full disk, a closed pipe, a closed stream
            self.dropped += 1

    def _put(self, text: str) -> None:
        if self._fd < 0:
            self._stream.write(text)
            return
        data = memoryview(text.encode(errors="backslashreplace"))
        while data:
            if not self._poll.poll(0):
                raise BlockingIOError
            data = data[os.write(self._fd, data[:PIECE]) :]

    def flush(self) -> None:
        """Nothing is kept back."""
