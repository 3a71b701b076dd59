"""Delayed messages for tests: a wall clock to set, clients that send with a delay, and one that notes what arrives."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import ProducerMark, Rows
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.deferrals import DelayPage, ListDelays
from rmq.wire.stores import StoreIds

from .builders import BORN_AT, ORDERS
from .harness import Client

SECOND = 1_000_000
NOON = 1_700_000_000_000_000


class Wall:
    """A wall clock that goes with the loop's, from noon on; ``shift_s`` is how far somebody has set it forward."""

    def __init__(self) -> None:
        self.shift_s = 0.0

    def __call__(self) -> int:
        return NOON + round((asyncio.get_running_loop().time() + self.shift_s) * SECOND)


def delayed(
    *bodies: bytes, level: int = 0, at: int = 0, to: MessageQueue = ORDERS, by: ProducerMark | None = None, **rows: Any
) -> bytes:
    """A batch with a delay, as a producer sends it."""
    data = batches.encode(
        to.topic, to.queue_id, Rows(bodies, BORN_AT, **rows), by=by or ProducerMark(), delay_level=level, deliver_at=at
    )
    return bytes(data)


async def park(client: Client, *bodies: bytes, to: MessageQueue = ORDERS, **delay: Any) -> ops.SendResult:
    """Send with a delay."""
    return (await client.send_batches(ops.OutgoingBatch(to.queue_id, delayed(*bodies, to=to, **delay))))[0]


class Arrived(NamedTuple):
    """A message that a reader got, and how late after noon (us)."""

    body: bytes
    at: int


class Watcher:
    """Reads a queue for as long as the test lives, and notes what comes when."""

    def __init__(self, client: Client, queue: MessageQueue = ORDERS, wall: Wall | None = None) -> None:
        self._client = client
        self._queue = queue
        self._wall = wall or Wall()
        self.arrived: list[Arrived] = []
        self._offset = 0
        self._task = asyncio.get_running_loop().create_task(self._watch())

    @property
    def bodies(self) -> list[bytes]:
        return [arrived.body for arrived in self.arrived]

    async def _watch(self) -> None:
        while True:
            result = await self._client.pull(self._offset, queue=self._queue, wait_ms=20_000)
            now = self._wall() - NOON
            for batch in batches.read_all(result.batches, stores=StoreIds(1)):
                self.arrived += [Arrived(message.body, now) for message in batch.messages(self._offset)]
            self._offset = result.next_offset

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def waiting(client: Client, limit: int = 100, **ask: Any) -> DelayPage:
    """A page of what waits."""
    payload = ListDelays(limit=limit, **ask)
    return decode(DelayPage, await client.request(Op.LIST_DELAYS, payload))


async def stored(client: Client, queue: MessageQueue = ORDERS) -> list[bytes]:
    """Every message of a queue."""
    found: list[bytes] = []
    while len(found) < (await client.range(queue, group=None)).max_offset:
        result = await client.pull(len(found), queue=queue)
        assert result.status == 0, result
        for batch in batches.read_all(result.batches, stores=StoreIds(1)):
            found += [message.body for message in batch.messages(len(found))]
    return found


def copy_of(broker: InMemoryBroker, to: Path, wall: Wall, **settings: Any) -> InMemoryBroker:
    """A broker on a copy of a running one's data, as ``kill -9`` would leave it."""
    shutil.copytree(broker.config.data_dir, to)
    return InMemoryBroker(data_dir=str(to), wall_us=wall, recognise_copies=False, **settings)
