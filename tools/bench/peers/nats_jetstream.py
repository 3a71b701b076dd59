"""
NATS with JetStream: a stream in files, consumed by a durable pull consumer, by the quickest way that nats-py has.

That is its plain ``publish`` and ``subscribe`` with the subjects of JetStream. Its ``publish_async`` and ``fetch`` do
the same with a future, or a timer and a queue, for each message, and cost three times the processor time. Here
acknowledgements of all messages come to one subject and are counted, and batches are requested before the last one is
handled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rmq.bench.options import Load
from rmq.bench.processes import run

from .client import Count, Listener, fetched, work
from .peer import LOCAL, PeerBroker, Server, found, free_port, missing_client, missing_server, run_server

MAX_PAYLOAD = 8 << 20
CONSUMER = "consumer"
BATCHES_ASKED_FOR = 2
NO_LIMIT = 1 << 40  # what waits in the client is bounded by what we send and ask for


def peer() -> PeerBroker:
    """NATS as it is installed: its streams have no setting that syncs before the answer."""
    return PeerBroker(
        name="nats",
        durability="fsync later",
        why_not=missing_server("nats-server", "nats-server") or missing_client("nats"),
        client="peers.nats_jetstream",
        start=start,
    )


def configuration(port: int, folder: Path) -> str:
    """The whole of its settings: nothing of the machine's own is read. Messages may be as large as ours."""
    return (
        f'listen: "{LOCAL}:{port}"\nmax_payload: {MAX_PAYLOAD}\njetstream: {{ store_dir: {json.dumps(str(folder))} }}\n'
    )


@contextmanager
def start(folder: Path) -> Iterator[Server]:
    """Start a server; it greets every connection."""
    port = free_port()
    settings = folder / "nats.conf"
    settings.write_text(configuration(port, folder))
    command = [found("nats-server"), "--config", str(settings)]
    with run_server("nats-server", command, port, folder, answer=b"INFO ") as server:
        yield server


class NatsClient:
    """One connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._jetstream = connection.jetstream(timeout=60)

    async def create(self, stream: str) -> None:
        """Make the stream; also where another client did."""
        from nats.js.api import StorageType

        await self._jetstream.add_stream(name=stream, subjects=[stream], storage=StorageType.FILE)

    async def produce(self, stream: str, load: Load, batches: list[list[bytes]]) -> None:
        """Publish each message by itself, as many unacknowledged as ``in_flight`` batches have."""
        count = Count()

        async def acknowledged(answer: Any) -> None:
            if b'"error"' in answer.data:
                count.fail(f"nats refused a message: {answer.data.decode()}")
            count.add()

        inbox = self._connection.new_inbox()
        subscription = await self._subscribe(inbox, acknowledged)
        publish, sent, in_flight = self._connection.publish, 0, load.in_flight * load.batch
        for bodies in batches:
            for body in bodies:
                await publish(stream, body, reply=inbox)
            sent += len(bodies)
            await count.reaches(sent - in_flight)
        await count.reaches(sent)
        await subscription.unsubscribe()

    async def consume(self, stream: str, load: Load, listener: Listener) -> None:
        """Use a durable pull consumer; an acknowledgement covers all messages before it."""
        from nats.js.api import AckPolicy, ConsumerConfig

        settings = ConsumerConfig(durable_name=CONSUMER, ack_policy=AckPolicy.ALL, max_ack_pending=1 << 20)
        await self._jetstream.add_consumer(stream, settings)
        count, batch = Count(), fetched(load)
        inbox, more = self._connection.new_inbox(), f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{CONSUMER}"
        order = json.dumps({"batch": batch}).encode()
        publish = self._connection.publish

        async def handle(message: Any) -> None:
            if message.headers:
                count.fail(f"nats sent no message: {message.headers}")
            await listener(message)
            count.add()
            if count.value % batch == 0:
                await publish(message.reply, b"+ACK")
                await publish(more, order, reply=inbox)
            elif count.value == load.messages:
                await publish(message.reply, b"+ACK")

        subscription = await self._subscribe(inbox, handle)
        for _ in range(BATCHES_ASKED_FOR):
            await publish(more, order, reply=inbox)
        await count.reaches(load.messages)
        await self._connection.flush()
        await subscription.unsubscribe()

    async def stored(self, stream: str) -> int:
        """Return the count of the stream."""
        return int((await self._jetstream.stream_info(stream)).state.messages)

    async def _subscribe(self, inbox: str, callback: Any) -> Any:
        return await self._connection.subscribe(
            inbox, cb=callback, pending_msgs_limit=NO_LIMIT, pending_bytes_limit=NO_LIMIT
        )


async def main(role: str, port: int, load: dict[str, Any]) -> None:
    """One client."""
    import nats

    connection = await nats.connect(f"nats://{LOCAL}:{port}", allow_reconnect=False)
    await work(NatsClient(connection), role, Load(**load))
    await connection.close()


if __name__ == "__main__":
    run(main)
