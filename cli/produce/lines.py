"""
Reads lines from a file or from standard input as they arrive.

A pipe or terminal is read once it is readable, so a line typed now is sent now, and waiting for input neither blocks
the loop nor outlives Ctrl-C.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from typing import BinaryIO

CHUNK = 1 << 18


async def read_lines(stream: BinaryIO, longest: int) -> AsyncIterator[list[bytes]]:
    """
    Groups of whole lines without their newline; a last line without one counts.

    A line that is longer than ``longest`` without an end in sight is given as it is then, and nothing after it:
    memory is bounded, and the caller sees that it is too long.
    """
    rest = b""
    async for chunk in _chunks(stream):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
        if len(rest) > longest:
            break
    if rest:
        yield [rest]


async def _chunks(stream: BinaryIO) -> AsyncIterator[bytes]:
    try:
        fd = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        yield stream.read()
        return
    wait = _Readable(fd)
    while True:
        await wait.until_readable()
        chunk = os.read(fd, CHUNK)
        if not chunk:
            return
        yield chunk


class _Readable:
    """Waits for a descriptor; those that never block, such as files, are always readable."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pollable = True

    async def until_readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        try:
            if self._pollable:
                loop.add_reader(self._fd, _resolve, ready)
        except OSError:
            self._pollable = False  # epoll takes no regular files
        if not self._pollable:
            return await asyncio.sleep(0)
        try:
            await ready
        finally:
            loop.remove_reader(self._fd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
