"""
Fetches a range of a queue and turns it into Arrow record batches, about as large as Spark likes them.

Every batch has to be sound and the next one of the queue. Anything damaged, missing, deleted or of another topic ends
the scan with an error, never with fewer rows, unless the options allow to leave it out; then each such range is
reported. Errors name topic, queue, offset and broker, as users of Spark see only the message.

Memory is bounded by an answer of the broker, the batches of one record batch, and that record batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rmq.engine.native.source import Manner, QueueRange, Source, source_of
from rmq.wire.batch import layout
from rmq.wire.batch.batch import RawBatch, read_raw
from rmq.wire.batch.layout import KIND_DATA
from rmq.wire.batch.tags import parse
from rmq.wire.errors import (
    OK,
    BadBatch,
    BatchTooLarge,
    Damaged,
    LogTruncated,
    MessagesLost,
    OffsetOutOfRange,
    RmqError,
    UnsupportedFormat,
    from_wire,
)
from rmq.wire.protocol.ops import core as ops

from .arrow import record_batch, tags_of
from .ranges import naming

log = logging.getLogger("rmq.client.scan.reader")
MAX_PULL: Final = 4 << 20
MIN_PULL: Final = 64 << 10
ENOUGH_ROWS: Final = 16_384
ENOUGH_BYTES: Final = 4 << 20
MOST_BYTES: Final = 16 << 20  # only what was compressed takes as many: the rest of that answer waits for the next turn
FIRST_GUESS: Final = 512  # bytes a message, until some have been seen
UNSOUND: Final = (BadBatch, BatchTooLarge, UnsupportedFormat)
_NOTHING: Final = memoryview(b"")


class Skipped(NamedTuple):
    """Offsets ``[start, end)`` that a scan left out, as its options allow."""

    topic: str
    queue_id: int
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"left out: topic {self.topic}, queue {self.queue_id}, offsets {self.start} to {self.end}: {self.reason}"


Report = Callable[[Skipped], object]


def rows_of(
    part: QueueRange, manner: Manner, *, source: Source | None = None, report: Report = log.warning
) -> Iterator[pa.RecordBatch]:
    """
    The rows of a range in order; ends behind its last one or raises.

    Raises:
        RmqError: the range cannot be read whole; the sentence names topic, queue, offset and broker.
    """
    fetcher = Fetcher(part, manner, source or source_of(part, manner), report)
    wanted = parse(manner.tags)
    values = None if wanted is None else pa.array(sorted(wanted), pa.string())
    try:
        while batches := fetcher.next_batches():
            rows = fetcher.built(batches)
            if rows is not None and values is not None:
                rows = rows.filter(pc.is_in(fetcher.tags, values))
            batches.clear()  # Spark may take its time: what the rows were made of is not kept meanwhile
            if rows is not None and rows.num_rows:
                yield rows
    finally:
        fetcher.close()


class Fetcher:
    """Reads one range; asks for the next answer before the last one is used."""

    def __init__(self, part: QueueRange, manner: Manner, source: Source, report: Report) -> None:
        self._part = part
        self._manner = manner
        self._source = source
        self._report = report
        self._is_filtered = parse(manner.tags) is not None
        self._with_bodies = "body" in manner.columns
        self._at = part.start  # where the next batch is due
        self._message_bytes: float = FIRST_GUESS
        self._asked: int | None = None
        self._answered = _NOTHING  # batches that came, how far they were read, and where the next answer begins
        self._read = 0
        self._next_offset = part.start
        self.tags: pa.Array = None  # of the rows that were built last, if only some are wanted

    def close(self) -> None:
        """End what was opened."""
        self._source.close()

    def next_batches(self) -> list[RawBatch]:
        """Batches in line, a good amount, or up to the end of the range; none if there is no more."""
        batches: list[RawBatch] = []
        rows = size = 0
        while self._at < self._part.end and size < MOST_BYTES:
            if self._read == len(self._answered):
                if rows >= ENOUGH_ROWS or size >= ENOUGH_BYTES:
                    break
                with naming(self._part.place(self._at)):
                    self._pull()
                continue
            with naming(self._part.place(self._at)):
                batch = self._next_batch()
            if batch is not None:
                batches.append(batch)
                rows += batch.header.count
                size += batch.header.open_size
        return batches

    def built(self, batches: list[RawBatch]) -> pa.RecordBatch | None:
        """
        The rows of batches, as far as they lie in the range; None if all of them had to be left out.

        Raises:
            BadBatch: the columns of one are unsound; it is named.
        """
        try:
            rows = self._rows(batches)
        except BadBatch:
            sound = [batch for batch in batches if self._is_sound(batch)]
            batches[:] = sound
            if not sound:
                return None
            rows = self._rows(sound)
        return rows

    def _rows(self, batches: list[RawBatch]) -> pa.RecordBatch:
        rows = record_batch(batches, self._manner.columns, stores=self._part.stores)
        before = max(0, self._part.start - batches[0].header.base_offset)
        behind = max(0, batches[-1].header.end_offset - self._part.end)
        length = rows.num_rows - before - behind
        if self._is_filtered:
            self.tags = tags_of(batches).slice(before, length)
        return rows.slice(before, length) if before or behind else rows

    def _is_sound(self, batch: RawBatch) -> bool:
        first = max(batch.header.base_offset, self._part.start)
        try:
            with naming(self._part.place(first)):
                record_batch([batch], self._manner.columns, stores=self._part.stores)
                if self._is_filtered:
                    tags_of([batch])
        except BadBatch as error:
            if not self._manner.skip_damage:
                raise
            self._leave_out(first, batch.header.end_offset, str(error.__cause__))
            return False
        return True

    # ---- batches

    def _next_batch(self) -> RawBatch | None:
        """The batch that is due; None if it is unsound and left out, or behind the range."""
        is_first = not self._read
        try:
            batch = read_raw(self._answered, self._read, verify=self._manner.verify, bodies=self._with_bodies)
        except UNSOUND as error:
            if not self._manner.skip_damage:
                raise
            self._pass_unsound(error)
            return None
        header = batch.header
        self._check(header, is_first)
        self._read += header.size
        self._at = header.end_offset
        if self._is_filtered and self._read == len(self._answered):  # what follows up to there is not wanted
            self._at = max(self._at, self._next_offset)
        self._message_bytes += (header.size / header.count - self._message_bytes) / 4
        # Of some tags the next batch may lie behind the range.
        return batch if header.base_offset < self._part.end else None

    def _check(self, header: layout.Header, is_first: bool) -> None:
        part, at = self._part, self._at
        if (header.topic, header.queue_id, header.kind) != (part.topic, part.queue_id, KIND_DATA):
            raise Damaged(f"the broker sent a batch of {header.topic}, queue {header.queue_id}, kind {header.kind}")
        if header.topic_gen != part.generation:
            raise _made_again()
        begins = header.base_offset <= at if is_first else header.base_offset == at
        if self._is_filtered:  # batches without a wanted tag do not come
            begins = is_first or header.base_offset >= at
        if not begins or header.end_offset <= at:
            raise Damaged(
                f"the next batch holds {header.base_offset} to {header.end_offset}, so offset {at} is missing"
            )

    def _pass_unsound(self, error: RmqError) -> None:
        """Continue after a batch that cannot be read; after the whole answer, if its header cannot be read either."""
        end, read = self._next_offset, len(self._answered)
        try:
            header = layout.parse_header(self._answered, self._read)
            if layout.header_crc(self._answered, self._read, header.header_size) == header.header_crc:
                self._check(header, is_first=not self._read)
                end, read = header.end_offset, self._read + header.size
        except UNSOUND:
            pass
        if end <= self._at:
            raise error
        self._leave_out(self._at, end, str(error))
        self._read, self._at = read, end

    def _leave_out(self, start: int, end: int, reason: str) -> None:
        self._report(Skipped(self._part.topic, self._part.queue_id, start, min(end, self._part.end), reason))

    # ---- answers

    def _pull(self) -> None:
        if self._asked != self._at:
            self._ask(self._at)
        self._asked = None
        answer = self._source.answer()
        self._answered, self._read = memoryview(answer.batches), 0
        self._next_offset = answer.next_offset
        if answer.status not in (OK, ops.EMPTY):
            self._pass_refused(answer)
        elif not answer.batches:
            self._pass_unwanted(answer)
        if answer.next_offset < self._part.end:
            self._ask(answer.next_offset)

    def _ask(self, at: int) -> None:
        if self._asked is not None:  # it was asked for what is not due: after an answer that did not keep its word
            self._source.close()
        # No more than is left of the range: what lies behind it is another task's.
        wanted = int((self._part.end - at) * self._message_bytes * 1.1) + MIN_PULL
        self._source.ask(at, min(wanted, MAX_PULL))
        self._asked = at

    def _pass_unwanted(self, answer: ops.PullResult) -> None:
        """Nothing came: nothing is wanted up to some offset, or the queue ends here."""
        if not self._is_filtered or answer.next_offset <= self._at:
            raise self._ends_early(answer)
        # No batch tells which topic this was: once, at the end, is enough, since a topic that is gone never comes back.
        if answer.next_offset >= self._part.end and self._source.made_again():
            raise _made_again()
        self._at = answer.next_offset

    def _pass_refused(self, answer: ops.PullResult) -> None:
        error = from_wire(
            answer.status, f"{answer.text or 'refused'} (the queue holds {answer.min_offset} to {answer.max_offset})"
        )
        if isinstance(error, OffsetOutOfRange):
            raise self._ends_early(answer)
        if isinstance(error, MessagesLost) and not self._manner.skip_lost:
            raise MessagesLost(f"{error}; failOnDataLoss=false leaves them out")
        is_left_out = isinstance(error, MessagesLost) or (isinstance(error, Damaged) and self._manner.skip_damage)
        if not is_left_out or answer.next_offset <= self._at:
            raise error
        self._leave_out(self._at, answer.next_offset, answer.text or "refused")
        self._at = answer.next_offset

    def _ends_early(self, answer: ops.PullResult) -> RmqError:
        if self._source.made_again():
            return _made_again()
        return LogTruncated(
            f"the queue ends at {answer.max_offset}; it went to {self._part.end} when the scan was planned"
        )


def _made_again() -> LogTruncated:
    return LogTruncated("the topic was deleted and made again since the scan was planned: read it again")
