"""
Reads a topic for Spark: ranges on the driver, rows in the tasks.

:meth:`TopicReader.partitions` asks the broker once and freezes ``[start, end)`` of every queue, so a DataFrame is a
fixed set of messages however often it is used. :meth:`TopicReader.read` is a pure function of its partition: no
group, no commit, nothing remembered; a task that is run again gives the same rows. It gives every offset of its range
exactly once and in order, or fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rmq.client.blocking import BlockingConnection
from rmq.client.naming import naming
from rmq.client.scan_plan import QueueRange
from rmq.wire import ops
from rmq.wire.codec import decode, decode_list
from rmq.wire.errors import OK, QueueNotFound, TopicNotFound, from_wire
from rmq.wire.ops import Op

from .options import ReadOptions
from .partitions import resolve, split
from .shipping import shipped

if TYPE_CHECKING:
    import pyarrow as pa


class TopicReader(DataSourceReader):
    """The reader of one ``load()``; it is pickled, so it holds no connection."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to workers in a way that tells what is missing there."""
        return shipped(TopicReader, (self._options, self._columns))

    def partitions(self) -> list[InputPartition]:
        """
        The ranges to read, one a task.

        Raises:
            RmqError: no broker, no such topic or queue, or messages that were asked for are gone.
        """
        options = self._options
        with (
            naming(f"topic {options.topic}, broker {options.broker}"),
            BlockingConnection(options.broker) as connection,
        ):
            topic = self._topic(connection)
            ranges = self._ranges(connection, topic)
        cores = os.cpu_count() or 1
        return [InputPartition(part) for part in split(ranges, max_rows=options.max_rows, cores=cores)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        The rows of a partition, as Arrow record batches.

        Raises:
            RmqError: the range cannot be read whole; the sentence names topic, queue, offset and broker.
        """
        part: QueueRange | None = partition.value
        if part is None:  # what Spark makes of no partitions at all
            return iter(())
        from rmq.client.fetch import rows_of

        return rows_of(part, self._columns)

    def _topic(self, connection: BlockingConnection) -> ops.TopicInfo:
        try:
            return decode(ops.TopicInfo, connection.request(Op.ROUTE, ops.Route(self._options.topic)))
        except TopicNotFound:
            known = decode_list(ops.TopicInfo, connection.request(Op.LIST_TOPICS, []))
            names = ", ".join(sorted(info.topic for info in known)) or "no topic at all"
            raise TopicNotFound(f"there is no such topic; the broker has {names}") from None

    def _ranges(self, connection: BlockingConnection, topic: ops.TopicInfo) -> list[QueueRange]:
        options = self._options
        chosen = self._queue_ids([queue.queue_id for queue in topic.queues])
        asked = ops.Ranges(None, [ops.QueueRef(topic.topic, queue_id) for queue_id in chosen])
        found = decode_list(ops.Range, connection.request(Op.RANGES, asked))
        ranges = []
        for queue_id, held in zip(chosen, found, strict=True):
            if held.status != OK:
                raise from_wire(held.status, f"queue {queue_id}: {held.text}")
            start, end = resolve(options.start, options.end, queue_id, held)
            ranges.append(
                QueueRange(
                    options.broker, connection.hello.store_id, topic.topic, topic.generation, queue_id, start, end
                )
            )
        return ranges

    def _queue_ids(self, existing: list[int]) -> list[int]:
        options = self._options
        named = {*(options.queues or ()), *options.start.by_queue, *options.end.by_queue}
        if missing := named.difference(existing):
            raise QueueNotFound(f"there is no queue {min(missing)}; the topic has the queues {sorted(existing)}")
        return sorted(existing if options.queues is None else options.queues)
