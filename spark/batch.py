"""
Reads topics for Spark: ranges on the driver, rows in the tasks.

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

from rmq.client.scan.options import ScanOptions
from rmq.client.scan.plan import plan
from rmq.engine.native.source import QueueRange

from .shipping import shipped

if TYPE_CHECKING:
    import pyarrow as pa


class TopicReader(DataSourceReader):
    """The reader of one ``load()``; it is pickled, so it holds no connection."""

    def __init__(self, options: ScanOptions) -> None:
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to workers in a way that tells what is missing there."""
        return shipped(TopicReader, (self._options,))

    def partitions(self) -> list[InputPartition]:
        """
        The ranges to read, one a task.

        Raises:
            RmqError: no broker, no such topic or queue, or messages that were asked for are gone.
        """
        return [InputPartition(part) for part in plan(self._options, cores=os.cpu_count() or 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        The rows of a partition, as Arrow record batches.

        Raises:
            RmqError: the range cannot be read whole; the sentence names topic, queue, offset and broker.
        """
        part: QueueRange | None = partition.value
        if part is None:  # what Spark makes of no partitions at all
            return iter(())
        from rmq.client.scan.reader import rows_of

        return rows_of(part, self._options.manner)
