"""
One TCP connection to a broker: frames in, buffers out.

A link knows no request and no session; :class:`~rmq.engine.native.connection.Connection` makes a new one whenever the
old one ended. Everything that is written in one loop turn is sent by one ``writelines``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import ConnectionLost, WireError
from rmq.wire.protocol.frames import FrameReader, unpack

RECEIVE_BUFFER: Final = 256 << 10
FLUSH_AT: Final = 256 << 10  # gathered bytes that are worth a system call before the turn ends
HIGH_WATER: Final = 1 << 20
LOW_WATER: Final = 256 << 10


class Link(asyncio.BufferedProtocol):
    """One connection; ``on_frame(link, parts)`` for each frame, ``on_end(link, error)`` once when it is over."""

    def __init__(
        self,
        receive: memoryview,
        on_frame: Callable[[Link, list[Any]], None],
        on_end: Callable[[Link, Exception], None],
        on_writable: Callable[[], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(receive)
        self._on_frame = on_frame
        self._on_end = on_end
        self._on_writable = on_writable
        self._transport: asyncio.Transport | None = None
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        self._paused = False
        self._drainers: list[asyncio.Future[None]] = []
        self._ending = False  # no frame is handed out any more
        self.reason: Exception | None = None  # why it ended, or is about to
        self.heard = False  # set by every byte received; cleared by the keep-alive
        self.ended: asyncio.Future[None] = self._loop.create_future()

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard = True
        try:
            for frame in self._reader.received(nbytes):
                if not self._ending:
                    self._on_frame(self, unpack(frame, trusted=True))
        except WireError as error:
            self.drop(error)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake()
        if self._on_writable is not None and not self._ending:
            self._on_writable()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionLost("the broker closed the connection"))
        if not self.ended.done():
            self.ended.set_result(None)

    # Called by the connection

    @property
    def writable(self) -> bool:
        """Whether more may be written without filling memory."""
        return not (self._paused or self._ending)

    def write(self, parts: list[Buffer], size: int) -> None:
        """Queue buffers of ``size`` bytes together; they are sent at the end of this loop turn at the latest."""
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._gathered += parts
        self._gathered_bytes += size
        if self._gathered_bytes >= FLUSH_AT:
            self.flush()

    def flush(self) -> None:
        """Pass the gathered buffers to the transport."""
        if not self._gathered or self._transport is None or self._ending:
            return
        gathered, self._gathered = self._gathered, []
        self._gathered_bytes = 0
        self._transport.writelines(gathered)

    async def drain(self) -> None:
        """Wait until the link is writable or over; cancelling is safe."""
        while self._paused and not self._ending:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drainers.append(waiter)
            await waiter

    def drop(self, error: Exception) -> None:
        """Abort it; what was not written is discarded."""
        self._end(error)
        if self._transport is not None:
            self._transport.abort()

    async def close(self, error: Exception, *, within_s: float) -> None:
        """Close it when everything was sent, at the latest after ``within_s``."""
        self.flush()
        self._end(error)
        if self._transport is None:
            return
        self._transport.close()
        await asyncio.wait([self.ended], timeout=within_s)
        self._transport.abort()

    def _end(self, error: Exception) -> None:
        if self._ending:
            return
        self._ending = True
        self._gathered.clear()
        self.reason = self.reason or error
        self._wake()
        self._on_end(self, self.reason)

    def _wake(self) -> None:
        drainers, self._drainers = self._drainers, []
        for waiter in drainers:
            if not waiter.done():
                waiter.set_result(None)
