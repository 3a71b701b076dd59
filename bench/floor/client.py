"""
Clients of the floor: each prepares, warms up, waits for the start signal, and reports how long its work took.

``produce`` packs lists of bodies, keeps so many batches in flight, and waits for all answers; ``consume`` pulls them
from all queues at once and awaits an ``async def`` listener for each message; ``echo`` sends empty frames one at a
time; ``pour`` only fills a socket.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

import msgpack

from ..options import Load
from ..processes import run, say, settle, wait_for_go
from .server import ANSWER, HEADER, HOST, LENGTH, PULL, Receiver, packed, unpacked

P = TypeVar("P", bound=asyncio.BaseProtocol)

WARM = 20_000  # messages at most before the clock runs
PULLED = 16  # batches a pull, for each queue at once


class FloorProducer(asyncio.Protocol):
    """Sends batches, the queues in turn, so many in flight: each callback packs as many as were answered."""

    transport: asyncio.Transport

    def __init__(self, queues: int, in_flight: int) -> None:
        self.queues = queues
        self.in_flight = in_flight

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way out."""
        self.transport = transport  # type: ignore[assignment]  # uvloop's is none by class

    async def send(self, batches: Sequence[Sequence[bytes]]) -> None:
        """All of them, until the last is answered."""
        self.batches = batches
        self.sent = self.answered = 0  # bytes of answers: all have the same size
        self.done = asyncio.get_running_loop().create_future()
        self._more(self.in_flight)
        await self.done

    def data_received(self, data: bytes) -> None:
        """Answers come in order, so it is enough to count them."""
        before = self.answered // ANSWER.size
        self.answered += len(data)
        answers = self.answered // ANSWER.size
        if answers == len(self.batches):
            self.batches = ()  # may be a gigabyte
            self.done.set_result(None)
        else:
            self._more(answers - before)

    def _more(self, many: int) -> None:
        first = self.sent
        self.sent = min(first + many, len(self.batches))
        frames: list[bytes] = []
        for i in range(first, self.sent):
            frames += packed(i % self.queues, self.batches[i])
        self.transport.writelines(frames)


class FloorMessage:
    """The message that the listener gets."""

    __slots__ = ("body", "offset", "queue")

    def __init__(self, queue: int, offset: int, body: bytes) -> None:
        self.queue = queue
        self.offset = offset
        self.body = body


class FloorConsumer(Receiver):
    """Pulls all queues at once, up to the number of batches that each has."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: deque[tuple[int, int, Any, bytes]] = deque()  # queue, first offset, lengths, bodies

    def pull(self, batches: list[int]) -> None:
        """So many batches of each queue, from its first on."""
        self.batches = batches
        self.got = [0] * len(batches)
        self.arrived = asyncio.get_running_loop().create_future()
        self.transport.write(b"".join(PULL.pack(queue, 0, min(PULLED, many)) for queue, many in enumerate(batches)))

    def buffer_updated(self, nbytes: int) -> None:
        """Unpack all whole batches; where those of a pull have come, send the next."""
        at, filled, pulls = 0, self.filled + nbytes, []
        while filled - at >= HEADER.size:
            length, queue, _, offset = HEADER.unpack_from(self.buffer, at)
            begin = at + HEADER.size
            if filled - begin < length:
                break
            at = begin + length
            self.ready.append((queue, offset, *unpacked(self.view[begin:at])))
            self.got[queue] = got = self.got[queue] + 1
            if got % PULLED == 0 and got < self.batches[queue]:
                pulls.append(PULL.pack(queue, got, min(PULLED, self.batches[queue] - got)))
        if pulls:
            self.transport.write(b"".join(pulls))
        self.keep(at, filled)
        if self.ready and not self.arrived.done():
            self.arrived.set_result(None)

    async def consume(self, batches: list[int]) -> int:
        """Pull these, await the listener for each message, and say how many it got."""
        seen = 0

        async def listener(message: FloorMessage) -> None:
            nonlocal seen
            seen += 1

        self.pull(batches)
        for _ in range(sum(batches)):
            if not self.ready:
                self.arrived = asyncio.get_running_loop().create_future()
                await self.arrived
            queue, offset, lengths, bodies = self.ready.popleft()
            begin = 0
            for length in lengths:
                end = begin + length
                await listener(FloorMessage(queue, offset, bodies[begin:end]))
                offset += 1
                begin = end
        return seen


class FloorPinger(Receiver):
    """Sends an empty frame and waits for it, again and again."""

    async def ping(self, times: int) -> list[float]:
        """Return how long each ping took, in seconds."""
        took = []
        for _ in range(times):
            self.answered = asyncio.get_running_loop().create_future()
            began = perf_counter()
            payload = msgpack.packb([])
            self.transport.writelines((LENGTH.pack(len(payload)), payload))
            await self.answered
            took.append(perf_counter() - began)
        return took

    def buffer_updated(self, nbytes: int) -> None:
        """One frame at most is on its way."""
        filled = self.filled + nbytes
        if filled < LENGTH.size or filled - LENGTH.size < LENGTH.unpack_from(self.buffer)[0]:
            self.keep(0, filled)
            return
        self.answered.set_result(msgpack.unpackb(self.view[LENGTH.size : filled]))
        self.keep(filled, filled)


def per_queue(batches: int, queues: int) -> list[int]:
    """Return how many batches each queue gets when they take turns."""
    return [len(range(queue, batches, queues)) for queue in range(queues)]


def _batches(load: Load) -> int:
    return -(-load.messages // load.batch)


def warm(load: Load) -> Load:
    """Return the load that warms up."""
    return replace(load, messages=min(load.messages, WARM))


async def connected(protocol: P, port: int) -> P:
    """A connection to the server at this port."""
    await asyncio.get_running_loop().create_connection(lambda: protocol, HOST, port)
    return protocol


async def produce(load: Load, ports: dict[str, int]) -> None:
    """Send the load."""
    sender = await connected(FloorProducer(load.queues, load.in_flight), ports["append"])
    await sender.send(warm(load).bodies())
    batches = load.bodies()
    settle()
    wait_for_go()
    began = perf_counter()
    await sender.send(batches)
    say(took=perf_counter() - began, messages=sum(map(len, batches)))


async def consume(load: Load, ports: dict[str, int]) -> None:
    """Lay down the load as a backlog, then consume it."""
    sender = await connected(FloorProducer(load.queues, load.in_flight), ports["append"])
    await sender.send(load.bodies())
    puller = await connected(FloorConsumer(), ports["read"])
    await puller.consume(per_queue(_batches(warm(load)), load.queues))
    wait_for_go()
    began = perf_counter()
    seen = await puller.consume(per_queue(_batches(load), load.queues))
    say(took=perf_counter() - began, messages=seen)


def pour(load: Load, ports: dict[str, int]) -> None:
    """Fill a socket with the bodies of each batch in a row, until all that was said to be written."""
    before, blobs = _blobs(warm(load)), _blobs(load)
    _poured(before, ports["drain"])
    wait_for_go()
    say(took=_poured(blobs, ports["drain"]), messages=load.messages)


def _blobs(load: Load) -> list[bytes]:
    return [b"".join(bodies) for bodies in load.bodies()]


def _poured(blobs: list[bytes], port: int) -> float:
    with socket.create_connection((HOST, port)) as connection:
        began = perf_counter()
        for blob in blobs:
            connection.sendall(blob)
        connection.recv(1)
        return perf_counter() - began


async def echo(times: int, ports: dict[str, int]) -> None:
    """Median round trip of so many empty frames, one at a time."""
    pinger = await connected(FloorPinger(), ports["echo"])
    await pinger.ping(times // 10)
    wait_for_go()
    say(took=median(await pinger.ping(times)))


async def main(what: str, ports: dict[str, int], load: dict[str, Any] | None = None, times: int = 0) -> None:
    """Be the client that is asked for."""
    if what == "echo":
        await echo(times, ports)
    elif what == "pour":
        pour(Load(**(load or {})), ports)
    else:
        await {"produce": produce, "consume": consume}[what](Load(**(load or {})), ports)


if __name__ == "__main__":
    run(main)
