"""
A scrub of a data directory that no broker uses: every checksum, every index against the log. It changes nothing.

The log decides: damage in it is permanent unless there is a copy. Anything else that is wrong is made again from the
log at the next start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.model import MessageQueue

from ..store import checkpoint as checkpoints
from ..store.changes import QueueBounds, TopicDeleted
from ..store.checkpoint import BadCheckpoint, Checkpoint
from ..store.consume_queue import ENTRY, entries
from ..store.directory import SharedLock
from ..store.files import AnyPath, Files, IndexFaults
from ..store.key_index import IndexGap, KeyIndex, hash_column
from ..store.rebuild import changes_of, read_head
from ..store.recovery import LogDamage, SegmentFile, Walk
from ..store.scan import Unreadable
from .index import log_files

MAX_LISTED = 100  # of one kind of finding


class StoreFinding(NamedTuple):
    """Something that is not as it should be; ``in_log``: the log itself, which nothing else can replace."""

    in_log: bool
    place: str
    text: str


class Report(NamedTuple):
    """What a scrub found. ``torn``: bytes at the end that were never acknowledged; the next start cuts them."""

    findings: list[StoreFinding]
    bytes: int
    batches: int
    messages: int
    queues: int
    torn: int

    @property
    def log_is_sound(self) -> bool:
        """Whether nothing of the log is damaged."""
        return not any(finding.in_log for finding in self.findings)


class _Bounds(NamedTuple):
    min_offset: int
    end_offset: int


_Queue = tuple[MessageQueue, int]  # and its generation


class _Strict(IndexFaults):
    """Lets nothing pass that cannot be read: it is a finding."""

    def read_failed(self, path: AnyPath, error: OSError) -> None:
        """Raise the error, with the file."""
        error.filename = str(path)
        raise error


class Verification:
    """One scrub of a directory. ``progress`` gets the bytes of the log read since its last call."""

    def __init__(
        self, path: Path, *, files: Files | None = None, progress: Callable[[int], None] = lambda size: None,
    ) -> None:  # fmt: skip
        self._path = path
        self._files = files or Files()
        self._progress = progress
        self._index_files: dict[_Queue, list[tuple[int, str]]] = {}
        self._findings: list[StoreFinding] = []
        self._counts: dict[str, int] = defaultdict(int)
        self._unread: set[str] = set()
        self._ends: dict[_Queue, int] = {}
        self._damaged = False
        self._batches = 0
        self._messages = 0
        self._bounds: dict[_Queue, _Bounds] = {}
        self._index_until = 0
        self._keyed: dict[int, dict[int, bytes]] = defaultdict(dict)  # by segment and position
        self._segment = 0

    def run(self) -> Report:
        """
        Do it.

        Raises:
            StoreError: there is no log, or a broker uses it.
            OSError: the disk.
        """
        with SharedLock(self._path, "verify a backup"):
            pieces = log_files(self._files, self._path)
            known = self._checkpoint(pieces)
            if known is not None:
                self._index_until = known.position
                self._bounds = {
                    (MessageQueue(c.topic, c.queue_id), c.generation): _Bounds(c.min_offset, c.end_offset)
                    for c in known.changes
                    if isinstance(c, QueueBounds)
                }
            if pieces[0].start and read_head(self._files, pieces[0].path, pieces[0].start) is None:
                self._find(True, pieces[0].path, "the oldest segment does not begin with a whole snapshot")
            walk = Walk(self._files, pieces, self, known.position if known is not None else 0)
            self._starts = [piece.start for piece in pieces]
            if (mixed := walk.mixed()) is not None:
                self._find(True, "commitlog", mixed)
            torn = walk.run(pieces[0].start)
            if torn is not None and torn.newer:
                self._find(True, str(torn.position), f"a newer version wrote here: {torn.reason}")
            self._verify_keys(pieces)
        size = sum(piece.end - piece.start for piece in pieces)
        # What lies after a place that cannot be read may belong to it: only what was read in full is known to be torn.
        tail = pieces[-1].end - torn.position if torn is not None and not walk.unreadable else 0
        return Report(self._findings, size, self._batches, self._messages, len(self._ends), tail)

    def _checkpoint(self, pieces: list[SegmentFile]) -> Checkpoint | None:
        try:
            known = checkpoints.load(self._files, self._path)
        except BadCheckpoint as error:
            self._find(False, checkpoints.NAME, f"{error}; the next start makes another")
            return None
        except Unreadable as error:
            self._find(False, checkpoints.NAME, str(error))
            return None
        if known is not None and not pieces[0].start <= known.position:
            self._find(False, checkpoints.NAME, f"it is of {known.position}, the log begins at {pieces[0].start}")
            return None
        return known

    # ---- the walk

    def batch(self, checked: batches.Checked, data: memoryview) -> None:
        """A sound batch."""
        header, columns = checked
        self._batches += 1
        self._progress(header.size)
        if header.kind == layout.KIND_STATE:
            for change in changes_of(header, data):
                if isinstance(change, TopicDeleted):
                    self._forget(change.topic, change.generation)
            return
        self._messages += header.count
        if header.kind == layout.KIND_PARKED:
            return  # in no queue and no index
        queue = (MessageQueue(header.topic, header.queue_id), header.topic_gen)
        expected = self._ends.get(queue, header.base_offset)
        if header.base_offset != expected and not (self._damaged and header.base_offset > expected):
            text = f"offset {expected} should follow, not {header.base_offset}"
            self._find(True, f"{queue[0]} at {header.physical_offset}", text)
        self._ends[queue] = header.end_offset
        if header.physical_offset < self._index_until:
            self._verify_entries(
                queue, header, entries(header.physical_offset, header.size, header.count, columns.tags)
            )
            searchable = columns.searchable_hashes()
            if searchable is not None:
                while self._starts[-1:] and self._segment + 1 < len(self._starts):
                    if self._starts[self._segment + 1] > header.physical_offset:
                        break
                    self._segment += 1
                hashes = hash_column(searchable)
                self._keyed[self._starts[self._segment]][header.physical_offset] = hashes

    def damaged(self, damage: LogDamage) -> None:
        """A place that had been synced and cannot be read any more."""
        self._damaged = True
        self._progress(damage.end - damage.position)
        header, lost = damage.header, ""
        if header is not None and header.kind == layout.KIND_DATA:
            queue = (MessageQueue(header.topic, header.queue_id), header.topic_gen)
            self._ends[queue] = header.end_offset
            lost = f"; it held offsets {header.base_offset} to {header.end_offset} of {queue[0]}"
        elif header is not None and header.kind == layout.KIND_PARKED:
            lost = f"; it held {header.count} delayed messages for {header.topic}/{header.queue_id}"
        self._find(True, f"{damage.position} to {damage.end}", f"{damage.reason}{lost}")

    def _forget(self, topic: str, generation: int) -> None:
        for queue in [queue for queue in self._ends if queue[0].topic == topic and queue[1] == generation]:
            del self._ends[queue]

    # ---- indexes

    def _verify_entries(self, queue: _Queue, header: layout.Header, expected: bytes) -> None:
        bounds = self._bounds.get(queue)
        if bounds is None:
            return  # the topic was deleted
        first, end = max(header.base_offset, bounds.min_offset), min(header.end_offset, bounds.end_offset)
        if first >= end:
            return
        wanted = expected[(first - header.base_offset) * ENTRY.size : (end - header.base_offset) * ENTRY.size]
        try:
            found = self._read_entries(queue, first, end)
        except OSError as error:
            self._unreadable(error)
            return
        if found != wanted:
            self._find(
                False, f"index of {queue[0]}", f"the entries of offsets {first} to {end} are not what the log says"
            )

    def _read_entries(self, queue: _Queue, first: int, end: int) -> bytes:
        """
        The entries of some offsets, over as many files as they lie in; fewer where a file is missing or too short.

        A file's name is the place of its first entry, so how many go into one, which is a setting, need not be known.
        """
        at, until, parts = first * ENTRY.size, end * ENTRY.size, []
        files = self._files_of(queue)
        while at < until:
            i = bisect_right(files, at, key=itemgetter(0)) - 1
            if i < 0:
                return b""
            start, path = files[i]
            size = min(until, files[i + 1][0] if i + 1 < len(files) else until) - at
            parts.append(self._files.read_at(path, size, at - start))
            at += size
        return b"".join(parts)

    def _files_of(self, queue: _Queue) -> list[tuple[int, str]]:
        """The index files of a queue, each with the place of its first entry, ascending."""
        if queue not in self._index_files:
            of, generation = queue
            directory = self._path / "consumequeue" / f"{of.topic}@{generation}" / str(of.queue_id)
            try:
                names = [name for name in self._files.names(directory) if name.isdigit()]
            except FileNotFoundError:
                names = []
            self._index_files[queue] = sorted((int(name), str(directory / name)) for name in names)
        return self._index_files[queue]

    def _verify_keys(self, pieces: list[SegmentFile]) -> None:
        directory = self._path / "index"
        if not self._index_until:
            return
        try:
            if not self._files.exists(directory):
                return
            index = KeyIndex(self._files, directory, faults=_Strict())
            known = set(index.segments())
        except OSError as error:
            self._unreadable(error)
            return
        for piece in pieces:
            if piece.start >= self._index_until:
                continue
            place = f"key index of segment {piece.start}"
            if piece.start not in known:
                if self._keyed[piece.start]:
                    self._find(False, place, "the file is missing")
                continue
            try:
                self._verify_key_file(index, piece, place)
            except OSError as error:
                self._unreadable(error)

    def _verify_key_file(self, index: KeyIndex, piece: SegmentFile, place: str) -> None:
        if index.has_older_format(piece.start):
            self._find(False, place, "it has the format of an older version; the next start rebuilds it")
            return
        expected, listed_keys = self._keyed[piece.start], {}
        for item in index.listed(piece.start):
            if isinstance(item, IndexGap):
                self._find(False, place, f"nothing is said of {item.first} to {item.end}")
            elif item[0] < self._index_until:
                listed_keys[item[0]] = bytes(item[1])
        if index.covered(piece.start) < min(piece.end, self._index_until):
            self._find(False, place, f"it ends at {index.covered(piece.start)}, before the segment")
        if listed_keys != expected:
            self._find(False, place, "it does not list the batches that the log has")

    def _unreadable(self, error: OSError) -> None:
        """An index file, or a folder of some, cannot be read: one finding, however much it should hold."""
        if error.filename not in self._unread:
            self._unread.add(error.filename)
            self._find(False, str(error.filename), f"it cannot be read: {error.strerror}")

    def _find(self, in_log: bool, place: str, text: str) -> None:
        kind = "log" if in_log else "index"
        self._counts[kind] += 1
        if self._counts[kind] <= MAX_LISTED:
            self._findings.append(StoreFinding(in_log, place, text))
