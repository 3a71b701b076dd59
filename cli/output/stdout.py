"""
Standard output for commands that write while a loop runs.

Promises: what :meth:`Output.write` returned from has left the process. A slow reader (``| less``) does not block the
loop, and with it the pings that keep leases. A reader that went away is detected, even while there is nothing to
write, and distinguished from other errors such as a full disk.
"""

from __future__ import annotations

import asyncio
import io
import os
import select
import sys
import threading
from contextlib import suppress
from typing import BinaryIO

# A pipe that polls as writable takes this much without blocking (PIPE_BUF on Linux).
_SAFE_BYTES = 4096
_POLL_S = 0.25


class OutputClosed(Exception):
    """Raised when the reader of standard output has gone."""


class OutputFailed(Exception):
    """Raised when standard output cannot be written; the text says why."""


class Output:
    """Writes whole pieces to standard output, in order."""

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout.buffer
        self._turn = asyncio.Lock()
        self._poll = select.poll()
        try:
            self._fd = self._stream.fileno()
        except (OSError, io.UnsupportedOperation):
            self._fd = -1  # a stream in memory
        else:
            self._stream.flush()
            self._poll.register(self._fd, select.POLLOUT)

    @property
    def closed(self) -> bool:
        """True once the reader has gone."""
        gone = select.POLLERR | select.POLLHUP | select.POLLNVAL
        return self._fd >= 0 and any(event & gone for _, event in self._poll.poll(0))

    async def wait_closed(self) -> None:
        """Return when the reader has gone, which :meth:`write` notices only while there is something to print."""
        while not self.closed:
            await asyncio.sleep(_POLL_S)

    async def write(self, data: bytes) -> None:
        """
        Hand ``data`` to the reader. Cancelling may leave a piece half written.

        Raises:
            OutputClosed: the reader has gone.
            OutputFailed: it cannot be written.
        """
        if len(data) <= _SAFE_BYTES and not self._turn.locked() and self._ready():
            self._write_now(data)
            return
        async with self._turn:
            await self._write_in_thread(data)

    def _ready(self) -> bool:
        # An error is ready too: the write then says which it is.
        return self._fd < 0 or bool(self._poll.poll(0))

    async def _write_in_thread(self, data: bytes) -> None:
        """Not in the loop's pool: its threads keep a process from ending, and a reader may never read again."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def write() -> None:
            error: Exception | None = None
            try:
                self._write_now(data)
            except Exception as caught:
                error = caught
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                loop.call_soon_threadsafe(_settle, done, error)

        threading.Thread(target=write, name="rmq-output", daemon=True).start()
        await done

    def _write_now(self, data: bytes) -> None:
        try:
            if self._fd < 0:
                self._stream.write(data)
                return
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        except BrokenPipeError as error:
            raise OutputClosed from error
        except OSError as error:
            raise OutputFailed(error.strerror) from error


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def silence_stdout() -> None:
    """Point standard output at nothing, so that the interpreter's last flush does not fail."""
    try:
        fd = sys.stdout.fileno()
    except (OSError, io.UnsupportedOperation):
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, fd)
    os.close(nothing)
