"""A peer that sends what it likes: raw bytes over a real socket, and whatever frames come back."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any, Self, cast

from rmq.wire.protocol import frames
from rmq.wire.protocol.hello import Hello, hello_to_map
from rmq.wire.protocol.ops.core import PROTOCOL, Op, Push

PATIENCE_S = 20.0


def request(request_id: int, op: int, payload: object) -> bytes:
    """A request as it travels."""
    return frames.pack(frames.REQUEST, request_id, op, payload)


def hello(**changed: object) -> dict[str, Any]:
    """A greeting that a broker accepts, but for what is changed."""
    return {**hello_to_map(Hello([PROTOCOL, PROTOCOL], "raw", "0", os.urandom(16))), **changed}


class RawPeer:
    """One socket. ``async with RawPeer(address)`` has greeted, ``RawPeer(address, greet=False)`` has not."""

    def __init__(self, address: str, *, greet: bool = True) -> None:
        self._address = address
        self._greet = greet
        self._number = 0
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        host, port = self._address.rsplit(":", 1)
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        if self._greet:
            answer = await self.ask(Op.HELLO, hello())
            assert answer[2] == 0, answer
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def write(self, data: bytes) -> None:
        """Send bytes, without waiting for anything."""
        self._writer.write(data)

    def pause(self) -> None:
        """Read nothing more, ever."""
        cast(asyncio.Transport, self._writer.transport).pause_reading()

    def abort(self) -> None:
        """Be gone without a word."""
        self._writer.transport.abort()

    async def drained(self) -> None:
        """Wait until the system has taken what was written."""
        await self._writer.drain()

    async def ask(self, op: int, payload: object) -> list[Any]:
        """Send a request and wait for its answer."""
        self._number += 1
        self.write(request(self._number, op, payload))
        while True:
            answer = await self.frame()
            assert answer is not None, "the broker closed the connection instead of answering"
            if answer[:2] == [frames.REPLY, self._number]:
                return answer

    async def frame(self) -> list[Any] | None:
        """The next frame, None if the broker has closed."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                (length,) = frames.LENGTH.unpack(await self._reader.readexactly(4))
                return frames.unpack(await self._reader.readexactly(length), trusted=True)
            except (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError):
                return None

    async def reason(self) -> tuple[int, str] | None:
        """Read until the broker closes; the reason it gave."""
        reason: tuple[int, str] | None = None
        while (answer := await self.frame()) is not None:
            if answer[0] == frames.PUSH and answer[2] == Push.CLOSING:
                reason = (answer[3][0], answer[3][1])
            elif answer[0] == frames.REPLY and answer[2]:
                reason = (answer[2], answer[3][0])
        return reason
