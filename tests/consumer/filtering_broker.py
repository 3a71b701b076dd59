"""The fake broker with a filter: batches without a wanted tag are neither sent nor wake a parked pull."""

from __future__ import annotations

from typing import Any

from rmq.wire.batch import batch
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import NO_OFFSET
from rmq.wire.stores import StoreIds

from .fake_broker import FakeBroker
from .fake_connection import FakeConnection
from .fake_log import STORE_ID


class FilteringBroker(FakeBroker):
    """``colliding`` are tags that it cannot tell from wanted ones, as one that compares hashes."""

    def __init__(self) -> None:
        super().__init__()
        self.expressions: dict[str, str] = {}
        self.colliding: set[str] = set()

    def _join(self, connection: FakeConnection, payload: Any) -> Any:
        self.expressions = dict(decode(ops.Join, payload).subscriptions)
        return super()._join(connection, payload)

    async def _pull(self, connection: FakeConnection, pull: ops.Pull) -> Any:
        expires_at = self.now + pull.wait_ms / 1000
        while True:
            (result,) = await super()._pull(connection, pull)
            if result.status != 0 or result.batches or self.now >= expires_at:
                return [result]
            wanted = pull.queues[0]._replace(
                queue_offset=result.next_offset, commit_offset=NO_OFFSET, log_epoch=self.log_epoch
            )
            pull = pull._replace(queues=[wanted], wait_ms=round((expires_at - self.now) * 1000))

    def _found(self, queue: MessageQueue, offset: int, room: int, low: int, high: int) -> ops.PullResult:
        blob, following = b"", offset
        for stored in self.logs[queue]:
            if stored.end_offset <= offset:
                continue
            if blob and len(blob) + len(stored.data) > room:
                break
            following = stored.end_offset
            if self._matches(queue.topic, stored.data):
                blob += stored.data
        return ops.PullResult(0, 0, following, low, high, blob)

    def _matches(self, topic: str, data: bytes) -> bool:
        expression = self.expressions.get(topic, "*")
        if expression == "*":
            return True
        wanted = {tag.strip() for tag in expression.split("||")} | self.colliding
        tags = batch.read(data, 0, stores=StoreIds(STORE_ID)).columns.tags
        return tags is not None and not wanted.isdisjoint(tags.names)
