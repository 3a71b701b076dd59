"""
Fetches a range of a queue and turns it into Arrow record batches, about as large as Spark likes them.

Every batch is judged as a consumer would judge it, and has to be the next one of the queue: what is damaged, missing,
deleted or of another topic ends the task with an error, never with fewer rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from rmq.wire import ops
from rmq.wire.batch import Batch, read
from rmq.wire.codec import decode_list
from rmq.wire.errors import OK, ConnectionLost, Damaged, Fatal, LogTruncated, from_wire
from rmq.wire.layout import KIND_DATA
from rmq.wire.ops import Op

from .arrow import record_batch
from .blocking import BlockingConnection
from .naming import naming
from .scan_plan import QueueRange

MAX_PULL: Final = 8 << 20
MIN_PULL: Final = 64 << 10
ENOUGH_ROWS: Final = 16_384
ENOUGH_BYTES: Final = 4 << 20
MOST_BYTES: Final = 16 << 20  # only what was compressed takes as many: the rest of that answer waits for the next turn
FIRST_GUESS: Final = 512  # bytes a message, until some have been seen


def rows_of(part: QueueRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a range in order; ends behind its last one or raises."""
    fetcher = Fetcher(part)
    try:
        at = part.start
        while at < part.end:
            with naming(part.place(at)):
                batches = fetcher.next_batches(at)
            skipped = at - batches[0].header.base_offset
            rows = min(batches[-1].header.end_offset, part.end) - at
            yield record_batch(batches, columns).slice(skipped, rows)
            at += rows
    finally:
        fetcher.close()


class Fetcher:
    """Pulls from one queue; connects when first asked."""

    def __init__(self, part: QueueRange) -> None:
        self._part = part
        self._connection: BlockingConnection | None = None
        self._message_bytes: float = FIRST_GUESS
        self._answered = b""  # batches that came, and how far they were read
        self._read = 0

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def next_batches(self, at: int) -> list[Batch]:
        """Batches without a gap, the first of which holds ``at``: a good amount, or up to the end of the range."""
        batches: list[Batch] = []
        rows = size = stored = 0
        while at < self._part.end and size < MOST_BYTES:
            if self._read == len(self._answered):
                if rows >= ENOUGH_ROWS or size >= ENOUGH_BYTES:
                    break
                self._pull(at)
            batch = read(self._answered, self._read, store_id=self._part.store_id)
            self._check(batch, at, exact=bool(batches))
            batches.append(batch)
            self._read += batch.header.size
            at = batch.header.end_offset
            rows += batch.header.count
            size += batch.header.open_size
            stored += batch.header.size
            self._message_bytes = stored / rows
        return batches

    def _check(self, batch: Batch, at: int, *, exact: bool) -> None:
        header, part = batch.header, self._part
        if (header.topic, header.queue_id, header.kind) != (part.topic, part.queue_id, KIND_DATA):
            raise Damaged(f"the broker sent a batch of {header.topic}, queue {header.queue_id}, kind {header.kind}")
        if header.topic_gen != part.generation:
            raise LogTruncated("the topic was deleted and made again since the query was planned: load() it again")
        if not header.base_offset <= at < header.end_offset or (exact and header.base_offset != at):
            raise Damaged(
                f"the next batch holds {header.base_offset} to {header.end_offset}, so offset {at} is missing"
            )

    def _pull(self, at: int) -> None:
        answer = self._answer(at)
        if not answer.batches:
            raise LogTruncated(
                f"the queue ends at {answer.max_offset}; it went to {self._part.end} when the query was planned"
            )
        self._answered, self._read = answer.batches, 0

    def _answer(self, at: int) -> ops.PullResult:
        # No more than is left of the range: what lies behind it is another task's.
        wanted = int((self._part.end - at) * self._message_bytes * 1.1) + MIN_PULL
        queue = ops.PullQueue(self._part.topic, self._part.queue_id, at)
        found = decode_list(ops.PullResult, self._request(ops.Pull(None, 0, min(wanted, MAX_PULL), [queue])))
        if not found:
            return ops.PullResult(0, ops.EMPTY, at, 0, at, b"")
        answer = found[0]
        if answer.status not in (OK, ops.EMPTY):
            raise from_wire(
                answer.status,
                f"{answer.text or 'refused'} (the queue holds {answer.min_offset} to {answer.max_offset})",
            )
        return answer

    def _request(self, pull: ops.Pull) -> Any:
        if self._connection is not None:
            try:
                return self._connection.request(Op.PULL, pull)
            except (ConnectionLost, Fatal):
                # While Spark was busy with the last rows the connection was idle, and the broker may have ended it.
                self.close()
        self._connection = self._connect()
        return self._connection.request(Op.PULL, pull)

    def _connect(self) -> BlockingConnection:
        connection = BlockingConnection(self._part.broker)
        if connection.hello.store_id != self._part.store_id:
            connection.close()
            raise LogTruncated("the broker has another store than when the query was planned: load() the topic again")
        return connection
