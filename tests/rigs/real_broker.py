"""A broker as a process of its own, and the shortest way to put batches into it."""

from __future__ import annotations

from pathlib import Path

from rmq.engine.native.blocking import BlockingConnection
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.batch.compression import Codec
from rmq.wire.errors import OK
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.topics import DeleteTopic

from rigs.processes import BrokerProcess


class RealBroker(BrokerProcess):
    """``rmq-broker start`` in a data folder of its own; stopped cleanly at the end of a ``with`` block."""

    def __init__(self, data: Path, *options: str) -> None:
        super().__init__(data, "127.0.0.1:0", *options)

    def __exit__(self, *_: object) -> None:
        self.stop()

    def create(self, topic: str, queues: int = 1) -> None:
        """Make a topic."""
        with BlockingConnection(self.address) as connection:
            connection.request(Op.CREATE_TOPIC, ops.CreateTopic(topic, queues))

    def delete(self, topic: str) -> None:
        """Remove a topic; one of the same name may be made at once."""
        with BlockingConnection(self.address) as connection:
            connection.request(Op.DELETE_TOPIC, DeleteTopic(topic))

    def held(self, topic: str, queue_id: int) -> range:
        """Return the offsets that can be read."""
        with BlockingConnection(self.address) as connection:
            asked = ops.Ranges(None, [ops.QueueRef(topic, queue_id)])
            (found,) = decode_list(ops.Range, connection.request(Op.RANGES, asked))
        return range(found.min_offset, found.max_offset)

    def append(self, topic: str, queue_id: int, rows: Rows, codec: Codec | None = None) -> None:
        """Store one batch, durably."""
        batch = ops.OutgoingBatch(queue_id, bytes(encode(topic, queue_id, rows, codec=codec)))
        with BlockingConnection(self.address) as connection:
            (result,) = decode_list(ops.SendResult, connection.request(Op.SEND, ops.Send([batch])))
        assert result.status == OK, result.text
