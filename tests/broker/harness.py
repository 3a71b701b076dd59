"""A client of the real broker for tests: each operation as a method, answers as the shapes of the protocol."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from rmq.engine.native.connection import Connection
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import ProducerMark
from rmq.wire.errors import ConnectionLost
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol import hello
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import NO_OFFSET, Op, Push
from rmq.wire.protocol.ops.redelivery import SendBack, SentBack
from rmq.wire.stores import StoreIds

from .builders import ORDERS, make_batch

LONG_S = 100.0


class Client:
    """A session with a broker; ``pushes`` is what it was told unasked."""

    def __init__(self, broker: InMemoryBroker, name: str = "c", *, keep_alive: bool = False) -> None:
        self.broker = broker
        self.pushes: list[tuple[int, list[Any]]] = []
        self.connection = Connection(
            broker.address,
            client=name,
            keep_alive=keep_alive,
            on_push=lambda push, payload: self.pushes.append((push, payload)),
            now=asyncio.get_running_loop().time,
            chance=lambda: 0.0,
        )

    async def __aenter__(self) -> Self:
        await self.connection.open(timeout_s=5.0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.connection.close()

    @property
    def member(self) -> str:
        return self.connection.member

    @property
    def hello(self) -> hello.HelloReply:
        assert self.connection.hello is not None
        return self.connection.hello

    async def blip(self) -> None:
        """Lose the connection and make a new one."""
        self.connection.drop(ConnectionLost("a blip"))
        await self.connection.wait_connected()

    def of(self, push: Push) -> list[list[Any]]:
        """The payloads of one kind of push."""
        return [payload for kind, payload in self.pushes if kind == push]

    async def request(self, op: Op, payload: Sequence[Any]) -> Any:
        return await self.connection.request(op, payload, timeout_s=LONG_S)

    # ---- topics

    async def create(self, topic: str = "orders", queues: int = 4) -> ops.TopicInfo:
        return decode(ops.TopicInfo, await self.request(Op.CREATE_TOPIC, ops.CreateTopic(topic, queues)))

    async def delete_topic(self, topic: str = "orders") -> None:
        await self.request(Op.DELETE_TOPIC, (topic, 0))

    async def route(self, topic: str, *, create: bool = False) -> ops.TopicInfo:
        return decode(ops.TopicInfo, await self.request(Op.ROUTE, ops.Route(topic, create)))

    async def range(self, queue: MessageQueue = ORDERS, *, group: str | None = "g") -> ops.Range:
        (found,) = await self.request(Op.RANGES, ops.Ranges(group, [ops.QueueRef(*queue)]))
        return decode(ops.Range, found)

    async def committed(self, queue: MessageQueue = ORDERS, *, group: str = "g") -> int:
        return (await self.range(queue, group=group)).committed

    # ---- sending and pulling

    async def send(self, *bodies: bytes, to: MessageQueue = ORDERS, by: ProducerMark | None = None) -> ops.SendResult:
        return (await self.send_batches(ops.OutgoingBatch(to.queue_id, make_batch(*bodies, to=to, by=by))))[0]

    async def send_batches(self, *outgoing: ops.OutgoingBatch) -> list[ops.SendResult]:
        return decode_list(ops.SendResult, await self.request(Op.SEND, ops.Send(list(outgoing))))

    async def pull(
        self, offset: int, *, queue: MessageQueue = ORDERS, group: str | None = None, epoch: int | None = None,
        wait_ms: int = 0, max_bytes: int = 1 << 20, commit: int = NO_OFFSET,
    ) -> ops.PullResult:  # fmt: skip
        asked = ops.PullQueue(*queue, offset, epoch, commit)
        return (await self.pull_many(asked, group=group, wait_ms=wait_ms, max_bytes=max_bytes))[0]

    async def pull_many(
        self, *queues: ops.PullQueue, group: str | None = None, wait_ms: int = 0, max_bytes: int = 1 << 20
    ) -> list[ops.PullResult]:
        answer = await self.request(Op.PULL, ops.Pull(group, wait_ms, max_bytes, list(queues)))
        return decode_list(ops.PullResult, answer)

    async def stored(self, queue: MessageQueue, offset: int = 0) -> list[StoredMessage]:
        """All messages of a queue from an offset on, as anybody can read them; none if there is no such queue."""
        found: list[StoredMessage] = []
        end = (await self.range(queue)).max_offset
        while offset < end:
            answer = await self.pull(offset, queue=queue)
            found += messages(answer, offset)
            offset = answer.next_offset
        return found

    # ---- groups

    async def join(
        self, group: str = "g", *, ordered: bool = True, topics: Sequence[str] = ("orders",), model: str = "clustering",
        strategy: str = "average", expression: str = "*",
    ) -> ops.JoinReply:  # fmt: skip
        payload = ops.Join(group, ordered, model, strategy, dict.fromkeys(topics, expression))
        return decode(ops.JoinReply, await self.request(Op.JOIN, payload))

    async def acquire(self, queue: MessageQueue = ORDERS, *, group: str = "g") -> ops.Grant:
        (grant,) = await self.request(Op.ACQUIRE, ops.Acquire(group, [ops.QueueRef(*queue)]))
        return decode(ops.Grant, grant)

    async def renew(
        self, epoch: int, queue: MessageQueue = ORDERS, *, group: str = "g", leaving: bool = False
    ) -> ops.Outcome:
        (outcome,) = await self.request(Op.RENEW, ops.Renew(group, [ops.LeaseRef(*queue, epoch)], leaving))
        return decode(ops.Outcome, outcome)

    async def release(
        self, epoch: int, offset: int = NO_OFFSET, queue: MessageQueue = ORDERS, *, group: str = "g"
    ) -> ops.Outcome:
        (outcome,) = await self.request(Op.RELEASE, ops.Release(group, [ops.LeaseEnd(*queue, epoch, offset)]))
        return decode(ops.Outcome, outcome)

    async def leave(self, *leases: ops.LeaseEnd, group: str = "g") -> list[ops.Outcome]:
        return decode_list(ops.Outcome, await self.request(Op.LEAVE, ops.Leave(group, list(leases))))

    async def commit(
        self, epoch: int | None, offset: int, queue: MessageQueue = ORDERS, *, group: str = "g"
    ) -> ops.Outcome:
        (outcome,) = await self.request(Op.COMMIT, ops.Commit(group, [ops.CommitEntry(*queue, epoch, offset)]))
        return decode(ops.Outcome, outcome)

    async def attempt(
        self, epoch: int, offset: int, attempts: int, queue: MessageQueue = ORDERS, *, group: str = "g",
        runs: Sequence[tuple[int, int, int]] = (),
    ) -> ops.Outcome:  # fmt: skip
        payload = ops.Attempt(group, *queue, epoch, offset, attempts, [hello.AttemptRun(*run) for run in runs])
        return decode(ops.Outcome, await self.request(Op.ATTEMPT, payload))

    async def starting(
        self, epoch: int, offset: int, commit: int = NO_OFFSET, queue: MessageQueue = ORDERS, *, group: str = "g"
    ) -> ops.Outcome:
        payload = ops.Starting(group, *queue, epoch, offset, commit)
        return decode(ops.Outcome, await self.request(Op.STARTING, payload))

    async def dead_letter(
        self, epoch: int, *offsets: int, commit: int = NO_OFFSET, queue: MessageQueue = ORDERS, group: str = "g",
        reason: str = "poison", attempts: Sequence[int] = (),
    ) -> ops.Outcome:  # fmt: skip
        payload = ops.DeadLetter(group, *queue, epoch, list(offsets), commit, reason, list(attempts))
        return decode(ops.Outcome, await self.request(Op.DEAD_LETTER, payload))

    async def send_back(
        self, epoch: int, attempts: dict[int, int], *, level: int = 0, most: int = -1, commit: int = NO_OFFSET,
        queue: MessageQueue = ORDERS, group: str = "g", reason: str = "failed",
    ) -> list[int]:  # fmt: skip
        """Send messages back that were delivered so often; what became of each."""
        payload = SendBack(
            group, *queue, epoch, list(attempts), list(attempts.values()), level, most, commit, reason
        )  # fmt: skip
        return decode(SentBack, await self.request(Op.SEND_BACK, payload)).fates

    async def reset(
        self, offset: int, queue: MessageQueue = ORDERS, *, group: str = "g", dry_run: bool = False
    ) -> ops.ResetResult:
        payload = ops.ResetOffsets(group, [ops.ResetEntry(*queue, offset)], dry_run)
        (result,) = await self.request(Op.RESET_OFFSETS, payload)
        return decode(ops.ResetResult, result)

    async def locks(self, group: str | None = None) -> list[ops.LockRow]:
        return decode_list(ops.LockRow, await self.request(Op.LOCK_STATUS, ops.LockStatus(group)))


def messages(result: ops.PullResult, offset: int = 0) -> list[StoredMessage]:
    """The messages of a pull's answer, from an offset on."""
    found = batches.read_all(result.batches, stores=StoreIds(1))
    return [message for batch in found for message in batch.messages(offset)]


def bodies(result: ops.PullResult, offset: int = 0) -> list[bytes]:
    """The bodies of a pull's answer, from an offset on."""
    found = batches.read_all(result.batches, stores=StoreIds(1))
    return [message.body for batch in found for message in batch.messages(offset)]


async def holder(broker: InMemoryBroker, name: str = "a", *, keep_alive: bool = False) -> tuple[Client, int]:
    """A client that has joined the group and holds orders/0; the topic is made if it is missing."""
    client = await Client(broker, name, keep_alive=keep_alive).__aenter__()
    await client.create()
    await client.join()
    grant = await client.acquire()
    assert grant.status == 0
    return client, grant.epoch


def crash_copy(broker: InMemoryBroker, to: Path) -> InMemoryBroker:
    """A broker on a copy of a running one's data, as ``kill -9`` would leave it."""
    shutil.copytree(broker.config.data_dir, to)
    return InMemoryBroker(data_dir=str(to), wall_us=broker._wall_us, recognise_copies=False)


def until(moment: float) -> asyncio.Future[None]:
    """Sleep to an exact moment of the loop's clock."""
    loop = asyncio.get_running_loop()
    reached = loop.create_future()
    loop.call_at(moment, _reach, reached)
    return reached


def _reach(moment: asyncio.Future[None]) -> None:
    if not moment.done():
        moment.set_result(None)
