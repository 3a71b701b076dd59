"""A client of the real broker that speaks bytes: frames in any order, and no patience for answers."""

from __future__ import annotations

import asyncio
from typing import Any

from rmq.testing.broker import InMemoryBroker
from rmq.wire.protocol import frames

GREETING = {"proto": [1, 1], "client": "raw", "version": "0", "session": b"s" * 16}


class Raw:
    """A socket that speaks bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, broker: InMemoryBroker) -> Raw:
        host, port = broker.address.rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, data: bytes) -> list[Any]:
        self.writer.write(data)
        return await self.next()

    async def next(self) -> list[Any]:
        (length,) = frames.LENGTH.unpack(await self.reader.readexactly(4))
        return frames.unpack(await self.reader.readexactly(length))

    async def ended(self) -> bool:
        return await self.reader.read() == b""

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()
