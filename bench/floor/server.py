"""
Servers of the floor: a file that batches are appended to and read from, an echo, a socket that is emptied into a file.

Our broker is measured against the log, so it is as bare as possible: no check, no flush, no index on disk, no recovery;
all frames of a callback share one write to the file and one to the socket. A batch is a header and a msgpack array of
two, the lengths of all bodies and the bodies in a row; its bytes are the same in both directions and in the file.

As a process (see :mod:`rmq.bench.floor.floor`) it reports its ports, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack

from ..processes import run, say

HOST = "127.0.0.1"
BUFFER = 1 << 20

HEADER = struct.Struct("<IIIQ")  # bytes that follow, queue, messages, place of the first in its queue
OFFSET = struct.Struct("<Q")  # the last field alone: the server fills it in
OFFSET_AT = HEADER.size - OFFSET.size
ANSWER = struct.Struct("<Q")  # to a batch: where its first message is
PULL = struct.Struct("<III")  # queue, number of its first batch that is wanted, how many batches
LENGTH = struct.Struct("<I")  # before the frames of the echo

_ARRAY_OF_2 = b"\x92"
_BIN_32 = struct.Struct(">BI")  # its mark, and how many bytes follow
_AROUND = len(_ARRAY_OF_2) + _BIN_32.size

_pack = msgpack.Packer().pack  # one for all: each new one gets a megabyte of memory first
_unpack = msgpack.unpackb


def packed(queue: int, bodies: Sequence[bytes]) -> tuple[bytes, bytes]:
    """One batch to send, in two parts: all that goes before the bodies, and the bodies in a row."""
    # An array is made twice as fast of a list as of an iterator, whose length it cannot know.
    lengths = _pack(array("I", list(map(len, bodies))).tobytes())
    row = b"".join(bodies)
    # The row is not copied into a packer and out again: what msgpack puts before it is put there by hand.
    start = HEADER.pack(len(lengths) + len(row) + _AROUND, queue, len(bodies), 0)
    return start + _ARRAY_OF_2 + lengths + _BIN_32.pack(0xC6, len(row)), row


def unpacked(payload: memoryview) -> tuple[array[int], bytes]:
    """The lengths of the bodies, and the bodies in a row."""
    lengths, bodies = _unpack(payload)
    return array("I", lengths), bodies


class Log:
    """A file of batches, and where those of each queue are."""

    def __init__(self, path: Path, queues: int) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.end = 0
        self.ends = [0] * queues  # messages of each queue
        self.batches: list[list[tuple[int, int]]] = [[] for _ in range(queues)]  # size and position of each


class Receiver(asyncio.BufferedProtocol):
    """Bytes are received into one buffer, which grows where a frame does not fit; subclasses take whole frames."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.buffer = bytearray(BUFFER)
        self.view = memoryview(self.buffer)
        self.filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self.transport = transport  # type: ignore[assignment]  # uvloop's is none by class

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room after what is kept of a frame that is not complete."""
        return self.view[self.filled :]

    def keep(self, at: int, filled: int) -> None:
        """The frames before this place are done with: the rest moves to the front."""
        rest = filled - at
        if at:
            self.view[:rest] = self.view[at:filled]  # the same memory: moved as a whole, whether or not it overlaps
        elif rest == len(self.buffer):
            self.buffer = self.buffer + bytes(rest)
            self.view = memoryview(self.buffer)
        self.filled = rest


class Appender(Receiver):
    """A producer's connection: its batches go to the file as they come, with their offsets filled in."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def buffer_updated(self, nbytes: int) -> None:
        """All whole batches: one write to the file, then all answers at once."""
        buffer, log = self.buffer, self.log
        ends, batches, position = log.ends, log.batches, log.end
        at, filled, answers = 0, self.filled + nbytes, []
        while filled - at >= HEADER.size:
            length, queue, count, _ = HEADER.unpack_from(buffer, at)
            size = HEADER.size + length
            if filled - at < size:
                break
            offset = ends[queue]
            OFFSET.pack_into(buffer, at + OFFSET_AT, offset)
            ends[queue] = offset + count
            batches[queue].append((size, position + at))
            answers.append(ANSWER.pack(offset))
            at += size
        if at:
            os.write(log.file, self.view[:at])
            log.end = position + at
            self.transport.write(b"".join(answers))
        self.keep(at, filled)


class Reader(Receiver):
    """A consumer's connection: what it asks for is sent as it is in the file."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def buffer_updated(self, nbytes: int) -> None:
        """All batches of all pulls that have come, in one go."""
        at, filled, file = 0, self.filled + nbytes, self.log.file
        found: list[bytes] = []
        while filled - at >= PULL.size:
            queue, first, many = PULL.unpack_from(self.buffer, at)
            found += [os.pread(file, *place) for place in self.log.batches[queue][first : first + many]]
            at += PULL.size
        self.transport.writelines(found)
        self.keep(at, filled)


class Echo(Receiver):
    """Each msgpack frame is unpacked, packed again and sent back."""

    def buffer_updated(self, nbytes: int) -> None:
        """All whole frames."""
        at, filled = 0, self.filled + nbytes
        answers: list[bytes] = []
        while filled - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self.buffer, at)
            following = at + LENGTH.size + length
            if filled < following:
                break
            payload = msgpack.packb(msgpack.unpackb(self.view[at + LENGTH.size : following]))
            answers += (LENGTH.pack(len(payload)), payload)
            at = following
        if answers:
            self.transport.writelines(answers)
        self.keep(at, filled)


def drain(connection: socket.socket, file: int, size: int) -> None:
    """Write so many bytes from the socket to the file, and acknowledge the last of them."""
    buffer = memoryview(bytearray(BUFFER))
    while size:
        got = connection.recv_into(buffer)
        if not got:
            return
        os.write(file, buffer[:got])
        size -= got
    connection.sendall(b"\0")


async def _serve(**protocols: Callable[[], asyncio.BufferedProtocol]) -> None:
    loop = asyncio.get_running_loop()
    ports = {}
    for name, protocol in protocols.items():
        server = await loop.create_server(protocol, HOST, 0)
        ports[name] = server.sockets[0].getsockname()[1]
    say(ports=ports)
    await loop.run_in_executor(None, sys.stdin.read)


def _serve_drain(path: Path, sizes: list[int]) -> None:
    """Connections one after the other, each with so many bytes."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with socket.create_server((HOST, 0)) as listening:
        say(ports={"drain": listening.getsockname()[1]})
        for size in sizes:
            connection, _ = listening.accept()
            with connection:
                drain(connection, file, size)


async def main(what: str, **orders: Any) -> None:
    """Be the server that is asked for."""
    if what == "log":
        log = Log(Path(orders["path"]), orders["queues"])
        await _serve(append=lambda: Appender(log), read=lambda: Reader(log))
    elif what == "echo":
        await _serve(echo=Echo)
    else:
        _serve_drain(Path(orders["path"]), orders["sizes"])


if __name__ == "__main__":
    run(main)
