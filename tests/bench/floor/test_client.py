"""The clients of the floor send all, and the listener sees all: over real sockets, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from rmq.bench.floor.client import FloorConsumer, FloorPinger, FloorProducer, connected, per_queue
from rmq.bench.floor.server import HOST, Appender, Echo, Log, Reader
from rmq.bench.options import Load


async def served(protocol: Callable[[], asyncio.BufferedProtocol]) -> tuple[asyncio.Server, int]:
    server = await asyncio.get_running_loop().create_server(protocol, HOST, 0)
    return server, server.sockets[0].getsockname()[1]


async def test_the_listener_gets_each_message_of_the_backlog(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", 3)
    load = Load(messages=1_003, size=10, batch=10, queues=3, in_flight=4)
    batches = load.bodies()
    appending, append_port = await served(lambda: Appender(log))
    reading, read_port = await served(lambda: Reader(log))
    sender = await connected(FloorProducer(load.queues, load.in_flight), append_port)
    await sender.send(batches)
    puller = await connected(FloorConsumer(), read_port)

    seen = await puller.consume(per_queue(len(batches), load.queues))

    assert log.ends == [340, 333, 330]
    assert seen == 1_003
    for closed in (sender, puller, appending, reading):
        (closed.transport if isinstance(closed, FloorProducer | FloorConsumer) else closed).close()


async def test_fewer_batches_than_queues_are_enough(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", 8)
    appending, append_port = await served(lambda: Appender(log))
    reading, read_port = await served(lambda: Reader(log))
    sender = await connected(FloorProducer(8, 64), append_port)
    await sender.send([[b"a"], [b"b", b"c"]])
    puller = await connected(FloorConsumer(), read_port)

    assert await puller.consume(per_queue(2, 8)) == 3

    for closed in (sender, puller, appending, reading):
        (closed.transport if isinstance(closed, FloorProducer | FloorConsumer) else closed).close()


async def test_each_ping_is_timed() -> None:
    server, port = await served(Echo)
    pinger = await connected(FloorPinger(), port)

    took = await pinger.ping(20)

    assert len(took) == 20
    assert min(took) > 0
    pinger.transport.close()
    server.close()


def test_the_queues_take_turns() -> None:
    assert per_queue(10, 4) == [3, 3, 2, 2]
