"""
RabbitMQ: a durable queue, persistent messages and publisher confirms, in a node of its own.

The quickest way that Python has is pika's connection on our loop, its callbacks, and batches of confirms: aio-pika, and
aiormq below it, have a future for each message and cost five to ten times the processor time.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rmq.bench.options import Load
from rmq.bench.processes import run

from .client import Confirms, Listener, fetched, work
from .peer import LOCAL, PeerBroker, Server, found, free_port, missing_client, missing_server, run_server

GREETING = b"AMQP\x00\x00\x09\x01"
START_FRAME = b"\x01\x00\x00"  # of a method, on channel 0: the server introduces itself
NAMES = b"\x00\x01n"  # asks epmd for the nodes it knows; the answer begins with its port
PREFETCH = 4  # batches that the server sends before the first of them is acknowledged
MAX_PREFETCH = 65_535  # what the protocol has room for


def peer() -> PeerBroker:
    """RabbitMQ as it is installed."""
    return PeerBroker(
        name="rabbitmq",
        durability="fsync before confirms",
        why_not=missing_server("rabbitmq-server", "rabbitmq-server") or missing_client("pika"),
        client="peers.rabbitmq",
        start=start,
    )


def script(wrapper: Path) -> Path:
    """The server itself: Debian's command of that name insists on a user and on directories of its own."""
    debian = wrapper.parent.parent / "lib" / "rabbitmq" / "bin" / wrapper.name
    return debian if debian.exists() else wrapper


def configuration(port: int) -> str:
    """Its settings."""
    return f"listeners.tcp.1 = {LOCAL}:{port}\nlog.file.level = warning\nlog.console.level = warning\n"


def environment(folder: Path, epmd_port: int, node_port: int) -> dict[str, str]:
    """Return the environment that keeps it away from the files, ports and node names of the machine's own."""
    return {
        "HOME": str(folder),  # where its cookie is
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": LOCAL,
        "RABBITMQ_NODENAME": f"rmq-bench-{node_port}@localhost",
        "RABBITMQ_DIST_PORT": str(node_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }


@contextmanager
def start(folder: Path) -> Iterator[Server]:
    """Start a node with a port mapper of its own: one that Erlang starts would keep running."""
    port, epmd_port = free_port(), free_port()
    names = folder / "epmd"
    names.mkdir()
    (folder / "rabbitmq.conf").write_text(configuration(port))
    (folder / "plugins").write_text("[].\n")
    command = [str(script(Path(found("rabbitmq-server"))))]
    surroundings = {**os.environ, **environment(folder, epmd_port, free_port())}
    epmd = [found("epmd"), "-port", str(epmd_port), "-address", LOCAL]
    with (
        run_server("epmd", epmd, epmd_port, names, ask=NAMES, answer=epmd_port.to_bytes(4, "big")),
        run_server(
            "rabbitmq-server", command, port, folder, ask=GREETING, answer=START_FRAME, environment=surroundings
        ) as server,
    ):
        yield server


class RabbitClient:
    """One connection; a channel for each stream, since confirms are numbered by channel."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._channels: dict[str, Any] = {}
        self._confirms: dict[str, Confirms] = {}

    async def create(self, stream: str) -> None:
        """Make the queue; also where another client did."""
        channel = await called(lambda done: self._connection.channel(on_open_callback=done))
        confirms = Confirms()
        channel.add_on_close_callback(lambda _, why: confirms.fail(f"rabbitmq closed the channel: {why}"))
        await called(lambda done: channel.queue_declare(stream, durable=True, callback=done))
        self._channels[stream], self._confirms[stream] = channel, confirms

    async def produce(self, stream: str, load: Load, batches: list[list[bytes]]) -> None:
        """Publish persistent messages, as many unconfirmed as ``in_flight`` batches have."""
        import pika

        channel, confirms = self._channels[stream], self._confirms[stream]
        persistent = pika.BasicProperties(delivery_mode=2)

        def answered(frame: Any) -> None:
            if not isinstance(frame.method, pika.spec.Basic.Ack):
                confirms.fail(f"rabbitmq refused a message: {frame.method}")
            confirms.confirm(frame.method.delivery_tag, frame.method.multiple)

        await called(lambda done: channel.confirm_delivery(answered, callback=done))
        publish, sent, in_flight = channel.basic_publish, 0, load.in_flight * load.batch
        for bodies in batches:
            for body in bodies:
                publish("", stream, body, persistent)
            sent += len(bodies)
            await asyncio.sleep(0)  # lets the connection write and read
            await confirms.reaches(sent - in_flight)
        await confirms.reaches(sent)

    async def consume(self, stream: str, load: Load, listener: Listener) -> None:
        """Handle what was prefetched, in order, with one acknowledgement a batch."""
        channel, batch = self._channels[stream], min(fetched(load), MAX_PREFETCH // PREFETCH)
        arrived: deque[tuple[Any, Any, bytes]] = deque()
        more = asyncio.Event()

        def deliver(_: Any, method: Any, properties: Any, body: bytes) -> None:
            arrived.append((method, properties, body))
            more.set()

        await called(lambda done: channel.basic_qos(prefetch_count=PREFETCH * batch, callback=done))
        tag = channel.basic_consume(stream, deliver)
        for number in range(1, load.messages + 1):
            while not arrived:
                more.clear()
                await more.wait()
            message = arrived.popleft()
            await listener(message)
            if number % batch == 0 or number == load.messages:
                channel.basic_ack(message[0].delivery_tag, multiple=True)
                await asyncio.sleep(0)  # lets the connection write and read
        await called(lambda done: channel.basic_cancel(tag, callback=done))  # it answers after it took what we acked

    async def stored(self, stream: str) -> int:
        """Return the number of confirms: a queue does not count what was consumed."""
        return self._confirms[stream].value


async def called(begin: Callable[[Callable[[Any], None]], Any]) -> Any:
    """Return what a call of pika gives to its callback."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    begin(answer.set_result)
    return await answer


async def main(role: str, port: int, load: dict[str, Any]) -> None:
    """One client."""
    import pika
    from pika.adapters.asyncio_connection import AsyncioConnection

    loop = asyncio.get_running_loop()
    opened = loop.create_future()
    AsyncioConnection(
        pika.ConnectionParameters(LOCAL, port),
        on_open_callback=opened.set_result,
        on_open_error_callback=lambda _, why: opened.set_exception(ConnectionError(str(why))),
        custom_ioloop=loop,
    )
    connection = await opened
    await work(RabbitClient(connection), role, Load(**load))
    closed = loop.create_future()
    connection.add_on_close_callback(lambda _, why: closed.set_result(why))
    connection.close()
    await closed


if __name__ == "__main__":
    run(main)
