"""
The quickest way to RabbitMQ that Python has: pika's connection on our loop, its callbacks, and batches of confirms.

aio-pika, and aiormq below it, have a future for each message and cost five to ten times the processor time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from ..options import Load
from ..processes import run
from .client import Listener, fetched, work
from .counts import Confirms
from .server import LOCAL

PREFETCH = 4  # batches that the server sends before the first of them is acknowledged
MAX_PREFETCH = 65_535  # what the protocol has room for
PERSISTENT = pika.BasicProperties(delivery_mode=2)


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
        """Persistent messages, as many unconfirmed as ``in_flight`` batches have."""
        channel, confirms = self._channels[stream], self._confirms[stream]

        def answered(frame: Any) -> None:
            if not isinstance(frame.method, pika.spec.Basic.Ack):
                confirms.fail(f"rabbitmq refused a message: {frame.method}")
            confirms.confirm(frame.method.delivery_tag, frame.method.multiple)

        await called(lambda done: channel.confirm_delivery(answered, callback=done))
        publish, sent, in_flight = channel.basic_publish, 0, load.in_flight * load.batch
        for bodies in batches:
            for body in bodies:
                publish("", stream, body, PERSISTENT)
            sent += len(bodies)
            await asyncio.sleep(0)  # lets the connection write and read
            await confirms.reaches(sent - in_flight)
        await confirms.reaches(sent)

    async def consume(self, stream: str, load: Load, listener: Listener) -> None:
        """What was prefetched, in turn; one acknowledgement a batch."""
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
        """As it confirmed: it does not count what was consumed."""
        return self._confirms[stream].value


async def called(begin: Callable[[Callable[[Any], None]], Any]) -> Any:
    """What a call of pika gives to its callback."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    begin(answer.set_result)
    return await answer


async def main(role: str, port: int, load: dict[str, Any]) -> None:
    """One client."""
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
