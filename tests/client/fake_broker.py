"""
A broker for client tests: real sockets on loopback, everything in memory, faults on demand.

Sends follow the rules of the real one (a producer's sequence, its last 256 answers). ``faults`` lets a test decide
the fate of each batch before or after it is stored; ``hold`` keeps answers back.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.errors import OK, OutOfSequence, QueueNotFound, Refused, TopicNotFound, UnknownOp, WireError
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.frames import PUSH, REPLY, pack, unpack
from rmq.wire.protocol.hello import (
    Hello,
    HelloReply,
    Limits,
    ProducerHello,
    ProducerOutcome,
    ProducerResumed,
    hello_from_map,
    hello_to_map,
)
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops import topics
from rmq.wire.protocol.ops.core import Op, SendResult
from rmq.wire.stores import FormerStore, StoreIds

LIMITS = Limits(max_frame=16 << 20, max_batch=layout.MAX_BATCH, max_in_flight=1024, grace_s=5.0, ping_s=1.0)


class DropBefore(Exception):
    """Close the connection instead of storing the batch."""


class DropAfter(Exception):
    """Store the batch, then close the connection instead of answering."""


@dataclass
class Producer:
    """What the broker knows of a producer."""

    last: int = 0
    answers: dict[int, SendResult] = field(default_factory=dict)


class FakeBroker:
    """``async with FakeBroker() as broker``: listens on ``broker.address``."""

    def __init__(self, *, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.topics: dict[str, ops.TopicInfo] = {}
        self.last_generation = 0
        self.queues: dict[tuple[str, int], list[bytes]] = {}
        self.parked: list[bytes] = []  # messages that wait for their time, as they came
        self.producers: dict[int, Producer] = {}
        self.hellos: list[Hello] = []
        self.hello_times: list[float] = []
        self.requests: list[tuple[float, Op, Any]] = []
        self.stored: list[layout.Header] = []
        self.arrived: list[layout.Header] = []
        self.duplicates = 0
        self.durable = True  # what its answers say of the disk
        self.answering = True  # False: nothing is answered but the hello
        self.before_store: Callable[[layout.Header], None] | None = None  # may raise Refused, DropBefore, DropAfter
        self.route_refusals: list[Refused] = []  # what the next routes are answered with
        self.frame_refusals: list[Refused] = []  # what the next send frames are answered with, as a whole
        self.spoil_next_send = False  # answer the next send with something else than results
        self.refuse_hello: WireError | None = None
        self.on_hello: Callable[[], object] | None = None  # called just before a hello is answered
        self.tells_outcomes = True  # False: an older broker, whose hello does not tell what became of batches
        self.held: list[Callable[[], None]] = []  # answers kept back while ``holding``
        self.holding = False
        self.connections: set[FakeConnection] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.log_epoch = 1
        self.store_id = 7
        self.former: list[FormerStore] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeBroker:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FakeConnection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_all()
        await self._server.wait_closed()

    async def crash(self) -> None:
        """Stop without a word, as a killed process does; everything stored is kept."""
        await self.stop()

    def drop_all(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def push(self, push: int, payload: Any) -> None:
        for connection in self.connections:
            connection.send(pack(PUSH, 0, push, payload))

    def release(self) -> None:
        """Send the answers that were held back."""
        self.holding = False
        held, self.held = self.held, []
        for answer in held:
            answer()

    def create(self, topic: str, queues: int = 4) -> ops.TopicInfo:
        self.last_generation += 1
        info = ops.TopicInfo(topic, self.last_generation, queues, [ops.QueueInfo(i, "fake") for i in range(queues)])
        self.topics[topic] = info
        return info

    def bodies(self, topic: str, queue_id: int | None = None) -> list[bytes]:
        """Everything stored in a queue, or in all queues of the topic one behind the other."""
        ids = range(len(self.topics[topic].queues)) if queue_id is None else [queue_id]
        return [body for i in ids for body in self.queues.get((topic, i), [])]

    # Operations

    def handle(self, op: int, payload: Any) -> Any:
        match op:
            case Op.PING:
                return []
            case Op.ROUTE:
                return self._route(decode(ops.Route, payload))
            case Op.CREATE_TOPIC:
                wanted = decode(ops.CreateTopic, payload)
                return self.topics.get(wanted.topic) or self.create(wanted.topic, wanted.queues)
            case Op.LIST_TOPICS:
                after = decode(ops.ListTopics, payload).after
                return [info for name, info in sorted(self.topics.items()) if name > after][:1]
            case Op.RANGES:
                refs = decode(ops.Ranges, payload).queues
                return [ops.Range(OK, 0, len(self.queues.get((ref.topic, ref.queue_id), []))) for ref in refs]
            case Op.GROW_TOPIC:
                grown = decode(topics.GrowTopic, payload)
                info = self.topics[grown.topic]
                more = [ops.QueueInfo(i, "fake") for i in range(grown.queues)]
                self.topics[grown.topic] = info._replace(queues=more)
                return self.topics[grown.topic]
            case Op.DELETE_TOPIC:
                ended = decode(topics.DeleteTopic, payload)
                return topics.DeletedTopic(ended.topic, self.topics.pop(ended.topic).generation)
            case Op.DESCRIBE_TOPIC:
                info = self.topics[decode(topics.DescribeTopic, payload).topic]
                states = [
                    topics.QueueState(queue_id, name, 0, len(self.queues.get((info.topic, queue_id), [])))
                    for queue_id, name in info.queues
                ]
                group = topics.GroupState("g", 1, [0] * len(states))
                return topics.TopicDescription(info.topic, info.generation, info.shards, 17, 0, states, [group])
            case Op.LOCK_STATUS:
                return [ops.LockRow("g", "t", 0, "me", "s", 1, 1.0, 1.0, 59.0, "held")]
        raise UnknownOp(f"no operation {op}")

    def _route(self, route: ops.Route) -> ops.TopicInfo:
        if self.route_refusals:
            raise self.route_refusals.pop(0)
        if route.topic in self.topics:
            return self.topics[route.topic]
        if not route.create:
            raise TopicNotFound(f"there is no topic {route.topic!r}")
        return self.create(route.topic)

    def store(self, queue_id: int, data: bytes, generation: int = 0) -> tuple[SendResult, bool]:
        """The answer to one batch, and whether the connection must be dropped instead of giving it."""
        header = batches.check(data, stamped=False).header
        self.arrived.append(header)
        producer = self.producers.setdefault(header.producer_id, Producer())
        if header.sequence <= producer.last:
            self.duplicates += 1
            return producer.answers[header.sequence]._replace(duplicate=True), False
        drop = False
        try:
            if header.sequence != producer.last + 1:
                raise OutOfSequence(f"{header.sequence} came where {producer.last + 1} was expected")
            self._check_queue(header.topic, queue_id, generation)
            if self.before_store is not None:
                self.before_store(header)  # at last: what it drops the connection after is stored
        except DropAfter:
            drop = True
        except Refused as error:
            answer = SendResult(error.code, text=error.text)
            if error.code not in (102, 103, 130, 140, 141):
                self._note(producer, header.sequence, answer)
            return answer, False
        return self._append(producer, queue_id, header, data), drop

    def resume(self, hello: ProducerHello) -> ProducerResumed:
        """What became of a producer's numbers, from the first unresolved on."""
        met = hello.producer_id in self.producers
        known = self.producers.setdefault(hello.producer_id, Producer())
        known.last = max(known.last, hello.first_unresolved - 1)
        told = [known.answers[number] for number in range(hello.first_unresolved, known.last + 1)]
        outcomes = [ProducerOutcome(*answer[:5], answer.text) for answer in told]
        return ProducerResumed(known.last + 1, met, hello.first_unresolved, outcomes)

    def _check_queue(self, topic: str, queue_id: int, generation: int) -> None:
        if topic not in self.topics or generation not in (0, self.topics[topic].generation):
            raise TopicNotFound(f"there is no topic {topic!r}")
        if queue_id >= len(self.topics[topic].queues):
            raise QueueNotFound(f"{topic} has no queue {queue_id}")

    def _append(self, producer: Producer, queue_id: int, header: layout.Header, data: bytes) -> SendResult:
        queue = self.queues.setdefault((header.topic, queue_id), [])
        is_delayed = bool(header.delay_level or header.deliver_at)  # they wait for ever
        offset = -1 if is_delayed else len(queue)
        answer = SendResult(OK, offset, 4096 * len(self.stored), 1_700_000_000_000_000, self.durable)
        (self.parked if is_delayed else queue).extend(_bodies(header, data))
        self.stored.append(header)
        self._note(producer, header.sequence, answer)
        return answer

    def _note(self, producer: Producer, sequence: int, answer: SendResult) -> None:
        producer.last = sequence
        producer.answers[sequence] = answer
        producer.answers.pop(sequence - 256, None)


def _bodies(header: layout.Header, data: bytes) -> list[bytes]:
    by = layout.Stamp(1, 0, 0, 0, 0, 0, 1, header.queue_id, header.kind)
    stamped = layout.stamp(data, header.header_size, by) + data[layout.BROKER_PART :]
    return [message.body for message in batches.read(stamped, stores=StoreIds(1)).messages()]


class FakeConnection(asyncio.Protocol):
    """One client of the fake broker."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.data = b""
        self.greeted = False
        self.dead = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.broker.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.dead = True
        self.broker.connections.discard(self)

    def abort(self) -> None:
        self.dead = True
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.data += data
        while len(self.data) >= 4 and not self.dead:
            (length,) = struct.unpack_from(">I", self.data)
            if len(self.data) < 4 + length:
                return
            frame, self.data = self.data[4 : 4 + length], self.data[4 + length :]
            _, request_id, op, payload = unpack(frame)[:4]
            self.request(request_id, op, payload)

    def request(self, request_id: int, op: int, payload: Any) -> None:
        broker = self.broker
        try:
            if not self.greeted:
                self.hello(request_id, payload)
                return
            broker.requests.append((asyncio.get_running_loop().time(), Op(op), payload))
            if op == Op.SEND and broker.frame_refusals:
                raise broker.frame_refusals.pop(0)
            if op == Op.SEND:
                reply: Any = self.send_batches(payload)
                if broker.spoil_next_send:
                    reply, broker.spoil_next_send = [7], False
            else:
                reply = broker.handle(op, payload)
            self.reply(pack(REPLY, request_id, OK, reply))
        except (DropBefore, DropAfter):
            self.abort()
        except WireError as error:
            self.reply(pack(REPLY, request_id, error.code, [error.text]))

    def hello(self, request_id: int, payload: Any) -> None:
        broker = self.broker
        hello = hello_from_map(Hello, payload)
        broker.hellos.append(hello)
        broker.hello_times.append(asyncio.get_running_loop().time())
        if broker.on_hello is not None:
            broker.on_hello()
        if broker.refuse_hello is not None:
            error = broker.refuse_hello
            self.send(pack(REPLY, request_id, error.code, [error.text]))
            self.transport.close()
            return
        self.greeted = True
        resumed = None if hello.producer is None else broker.resume(hello.producer)
        member = f"{hello.client}#{hello.session.hex()[:8]}"
        reply = HelloReply(1, "fake", "test", broker.store_id, broker.log_epoch, member, broker.limits)
        reply = reply._replace(producer=resumed if broker.tells_outcomes else None, former=broker.former)
        self.send(pack(REPLY, request_id, OK, hello_to_map(reply)))

    def send_batches(self, payload: Any) -> list[SendResult]:
        results = []
        for queue_id, data, generation in payload[0]:
            result, drop = self.broker.store(queue_id, data, generation)
            if drop:
                raise DropAfter
            results.append(result)
        return results

    def reply(self, frame: bytes) -> None:
        if self.broker.holding:
            self.broker.held.append(lambda: self.send(frame))
        elif self.broker.answering:
            self.send(frame)

    def send(self, frame: bytes) -> None:
        if not self.dead:
            self.transport.write(frame)
