"""
Where the messages of a log lie that no broker serves: the index of all its queues, in memory, made by one walk.

What each batch means is decided by :class:`~.rebuild.Rebuild`, the same as when a broker starts on the directory, so
that both see the same messages: those of topics that are gone are not there, a torn tail is not there, and what is
damaged is known as damaged. Nothing is written.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path

import msgpack

from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.columns import Columns, TagColumn
from rmq.wire.errors import BadRequest
from rmq.wire.model import MessageQueue

from ..state.leases import LeaseTable
from ..state.offsets import Ledger
from ..state.producers import ProducerTable
from ..state.replay import DeferredLog, Replay
from ..state.topics import TopicTable
from ..store import checkpoint as checkpoints
from ..store.checkpoint import BadCheckpoint, Checkpoint
from ..store.consume_queue import ConsumeQueue
from ..store.directory import StoreError
from ..store.files import Files
from ..store.history import history_of
from ..store.rebuild import Rebuild, read_head
from ..store.recovery import LogDamage, SegmentFile, Walk
from ..store.segment import segment_paths

_ALL_BATCHES = 1 << 62
_HINT_VERSION = 1


class StoppedQueue(ConsumeQueue):
    """A queue whose batches are all known in memory, 20 bytes each; nothing of it is ever written."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(recent_batches=_ALL_BATCHES)

    def add(self, position: int, size: int, count: int, tags: TagColumn | None) -> bool:
        """Note where a batch lies."""
        self._append(position, size, count)
        return False

    def first_after(self, position: int) -> int:
        """Return the first offset whose batch lies at a position of the log or after it."""
        at = bisect_left(self._positions, position)
        return self._bases[at] if 0 < at < len(self._bases) else self.published if at else self.min_offset

    def pack(self, start: int, end: int) -> bytes:
        """What another process needs to find the batches that hold ``[start, end)``."""
        first = max(bisect_right(self._bases, start) - 1, 0)
        last = bisect_left(self._bases, end, first)
        following = self._bases[last] if last < len(self._bases) else self.published
        columns = [column[first:last].tobytes() for column in (self._bases, self._positions, self._sizes)]
        bounds = self.generation, self.min_offset, self.readable, following
        return zlib.compress(msgpack.packb((_HINT_VERSION, *bounds, *columns)), 1)

    @classmethod
    def unpack(cls, hint: bytes) -> StoppedQueue:
        """The queue as far as a hint knows it."""
        queue = cls()
        try:
            version, generation, first, readable, following, *columns = msgpack.unpackb(zlib.decompress(hint))
            if version != _HINT_VERSION:
                raise ValueError(f"it is of version {version}")
            queue.belong(generation, "")
            queue.restore(first, readable, [])
            queue.published = following
            queue._bases, queue._positions, queue._sizes = (
                array(code, column) for code, column in zip("QQI", columns, strict=True)
            )
        except (TypeError, ValueError, zlib.error, msgpack.UnpackException) as error:
            raise BadRequest(f"the hint of this scan cannot be used: {error}") from error
        return queue


class _Finder:
    """
    Shown the log before a checkpoint, it finds what the checkpoint knows that queues hold.

    What no batch is found for is damaged, whatever became of it.
    """

    def __init__(self, index: StoppedIndex, queues: Iterable[StoppedQueue]) -> None:
        self._index = index
        self._known = [(queue, queue.min_offset, queue.published, queue.epochs[:]) for queue in queues]
        self._ends = {queue: end for queue, _, end, _ in self._known}
        for queue, first, _, epochs in self._known:
            queue.restore(first, first, epochs[:])

    def finish(self, position: int) -> None:
        """That was all, up to a position of the log."""
        for queue, first, end, epochs in self._known:
            if queue.published < end:
                queue.add_gap(position - layout.ALIGN, end)
            queue.restore(first, end, epochs)

    def batch(self, checked: batches.Checked, data: memoryview) -> None:
        """A sound batch."""
        header = checked.header
        if header.kind == layout.KIND_DATA:
            self._found(header, header.size)

    def damaged(self, damage: LogDamage) -> None:
        """A place that cannot be read; without a header, what it held shows by what is missing."""
        if damage.header is not None and damage.header.kind == layout.KIND_DATA:
            self._found(damage.header, 0)

    def _found(self, header: layout.Header, size: int) -> None:
        queue = self._index.known(MessageQueue(header.topic, header.queue_id), header.topic_gen)
        if queue is None or header.end_offset <= queue.min_offset or header.base_offset >= self._ends[queue]:
            return
        if header.base_offset < queue.published and not queue.go_back(header.base_offset):
            return  # neither the next messages nor others in the place of some
        if header.base_offset > queue.published:
            queue.add_gap(header.physical_offset - layout.ALIGN, header.base_offset)
        if size:
            queue.add(header.physical_offset, size, header.count, None)
        else:
            queue.add_gap(header.physical_offset, header.end_offset)


class StoppedIndex:
    """The topics and queues of a log, as a broker that starts on it would see them."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self.topics = TopicTable()
        self._queues: dict[MessageQueue, StoppedQueue] = {}
        self._ledger = Ledger()
        pieces = log_files(files, path)
        start = pieces[0].start
        known = _checkpoint(files, path, pieces)
        replay = Replay(self.topics, self._ledger, LeaseTable(), ProducerTable(), DeferredLog(), now=0.0)
        rebuild = Rebuild(self, replay, needs_head=known is None and start > 0, after_batch=lambda: None)
        if known is not None:
            rebuild.restore(known.changes)
            head = read_head(files, pieces[0].path, start) if start else None
            rebuild.raise_minimums(head.changes if head is not None else ())
            self._find_again(pieces, known.position)
        walk = Walk(files, pieces, rebuild, known.position if known is not None else 0, must_read=True)
        torn = walk.run(known.position if known is not None else start)
        if torn is not None and torn.newer:
            raise StoreError(
                f"this version cannot read the log at {torn.position} ({torn.reason}): read it by the one that wrote it"
            )
        rebuild.ended()
        self.end = torn.position if torn is not None else pieces[-1].end
        self.history = history_of(rebuild.started)
        if rebuild.damages:
            self._reserve()

    def queue(self, of: MessageQueue) -> StoppedQueue:
        """A queue; one that never held anything is empty."""
        return self._queues.get(of) or StoppedQueue()

    def _find_again(self, pieces: list[SegmentFile], position: int) -> None:
        """What a broker has in its index files up to a checkpoint: where the messages lie that the checkpoint knows."""
        before = [piece._replace(end=min(piece.end, position)) for piece in pieces if piece.start < position]
        finder = _Finder(self, self._queues.values())
        if before:
            Walk(self._files, before, finder, position).run(before[0].start)
        finder.finish(position)

    def _reserve(self) -> None:
        """Offsets that were in use before the end of the log was damaged are damaged, not free."""
        for _, topic, queue_id, offset in self._ledger.offsets.rows():
            queue = self._queues.get(MessageQueue(topic, queue_id))
            if queue is not None and queue.end < offset:
                self.index_gap(queue, self.end - layout.ALIGN, offset)
                queue.readable = queue.published

    # ---- what a rebuild fills

    def queue_of(self, of: MessageQueue, generation: int) -> StoppedQueue:
        """The queue of this generation; one of an older generation makes room for it."""
        queue = self._queues.get(of)
        if queue is None or queue.generation != generation:
            if queue is not None:
                self.drop_topic(of.topic, queue.generation)
            queue = self._queues[of] = StoppedQueue()
            queue.belong(generation, "")
        return queue

    def known(self, of: MessageQueue, generation: int) -> StoppedQueue | None:
        """The queue, if there is one of just this generation."""
        queue = self._queues.get(of)
        return queue if queue is not None and queue.generation == generation else None

    def index(self, queue: ConsumeQueue, header: layout.Header, columns: Columns) -> None:
        """A batch that the log holds."""
        queue.add(header.physical_offset, header.size, header.count, columns.tags)

    def index_gap(self, queue: ConsumeQueue, position: int, end_offset: int) -> None:
        """Messages that are damaged."""
        queue.add_gap(position, end_offset)

    def drop_topic(self, topic: str, generation: int) -> None:
        """Forget the queues of a topic up to this generation."""
        for of in [of for of, queue in self._queues.items() if of.topic == topic and queue.generation <= generation]:
            del self._queues[of]


def log_files(files: Files, path: Path) -> list[SegmentFile]:
    """
    The files of a log, oldest first.

    Raises:
        StoreError: there are none.
    """
    directory = path / "commitlog"
    try:
        paths = segment_paths(files, directory)
    except (FileNotFoundError, NotADirectoryError):
        paths = []
    if not paths:
        raise StoreError(f"{path} holds no log: name the data directory of a broker or a backup of it")
    return [SegmentFile(int(path.name), int(path.name) + files.size(path), str(path)) for path in paths]


def _checkpoint(files: Files, path: Path, pieces: list[SegmentFile]) -> Checkpoint | None:
    """What a checkpoint proves to have been on the disk; a backup has none, and one of another log says nothing."""
    try:
        known = checkpoints.load(files, path)
        if known is not None:
            checkpoints.judge(known, files, pieces)
    except BadCheckpoint:
        return None
    return known
