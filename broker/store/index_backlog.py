"""
The backlog of the indexes: queue entries, key hashes and folders of deleted topics that files do not reflect yet.

The loop takes one piece of work at a time, a thread runs it, and what failed is taken again with the next piece.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from rmq.runtime.logging import get_broker_logger

from .commitlog import Extent
from .consume_queue import ConsumeQueue, PendingEntries
from .files import Files, IndexFaults
from .key_index import KeyEntry, KeyIndex, hash_column

log = get_broker_logger(__name__)


class KeyedBatch(NamedTuple):
    """A batch with keys, as the loop notes it."""

    position: int
    stored_at: int
    hashes: array[int]


class KeyWork(NamedTuple):
    """The range ``[first, end)`` of the log, to be brought into the key index with these batches."""

    first: int
    end: int
    batches: list[KeyedBatch]

    def run(self, index: KeyIndex, extents: Sequence[Extent]) -> None:
        """Extend the index, segment by segment; raises OSError, and can be done again."""
        entries = [KeyEntry(position, stored_at, hash_column(hashes)) for position, stored_at, hashes in self.batches]
        positions = [entry.position for entry in entries]
        starts = [extent.start for extent in extents]
        for start, stop in zip(starts, [*starts[1:], self.end], strict=True):
            first, end = max(start, self.first), min(stop, self.end)
            if first < end:
                part = entries[bisect_right(positions, first - 1) : bisect_right(positions, end - 1)]
                index.extend(start, part, first, end)


class IndexWork(NamedTuple):
    """Entries for the files of queues and keys, and directories of deleted topics that can go."""

    files: Files
    key_index: KeyIndex
    extents: Sequence[Extent]
    runs: list[tuple[ConsumeQueue, PendingEntries]]
    keys: KeyWork
    garbage: list[tuple[int, str]]
    faults: IndexFaults

    def run(self) -> None:
        """
        Do it; entries that their file does not take are left to the log.

        Raises:
            OSError: the disk, not a single file; all of it can be done again.
        """
        for _, taken in self.runs:
            try:
                taken.write(self.files)
            except OSError as error:
                self.faults.write_failed(error.filename, error)
        self.keys.run(self.key_index, self.extents)
        for _, directory in self.garbage:
            self.files.remove_tree(directory)


class IndexBacklog:
    """
    Belongs to the event loop.

    Folders that can go are garbage. They go when the log up to where that was said is durable: after a crash that took
    the end of a topic from the log, the topic lives, and its index is needed.
    """

    def __init__(self, files: Files, keys: KeyIndex, faults: IndexFaults) -> None:
        self._files = files
        self._faults = faults
        self._keys = keys
        self._worth_it: dict[ConsumeQueue, None] = {}  # queues with enough waiting entries
        self._waiting: dict[ConsumeQueue, None] = {}  # those with any
        self._keyed: list[KeyedBatch] = []  # batches that the key index does not know yet
        self._keys_from = 0  # the position from which on it knows nothing
        self._keys_busy = False
        self._reached = 0  # the position up to which the log was noted
        self._dropped: list[str] = []  # folders of what ends with the next write of the log
        self._garbage: list[tuple[int, str]] = []  # and those of what has ended, with the position after that

    def begin(self, position: int) -> None:
        """The indexes hold the log up to here."""
        self._keys_from = self._reached = position

    def add(self, queue: ConsumeQueue, *, worth_it: bool) -> None:
        """A queue has entries to be written; ``worth_it``: enough of them."""
        if worth_it:
            self._worth_it[queue] = None
        self._waiting[queue] = None

    def add_keys(self, keyed: KeyedBatch) -> None:
        """A batch has keys, also one of a topic that is gone: the index says what the log has."""
        self._keyed.append(keyed)

    def reach(self, position: int) -> None:
        """Note that the log up to here is in the backlog."""
        self._reached = position
        self._garbage += [(position, directory) for directory in self._dropped]
        self._dropped.clear()

    def discard(self, directory: str) -> None:
        """A folder can go when what is written next is durable."""
        if directory not in self._dropped:
            self._dropped.append(directory)

    def drop(self, queue: ConsumeQueue) -> None:
        """A queue is gone: its entries need not be written."""
        self._worth_it.pop(queue, None)
        self._waiting.pop(queue, None)

    @property
    def lag(self) -> int:
        """How many bytes of the log with keys the key index does not know yet."""
        return max(self._reached - self._keys.end, 0) if self._keyed or self._keys_busy else 0

    def take(self, extents: Sequence[Extent], *, everything: bool, durable: int) -> IndexWork:
        """
        What is to be written; ``everything``, or what is worth it. :meth:`done` must follow before the next.

        The log is ``durable`` up to there.
        """
        chosen, self._worth_it = (self._waiting if everything else self._worth_it), {}
        runs = [(queue, taken) for queue in chosen if (taken := queue.take_waiting()) is not None]
        until = self._reached if everything or self._keyed else self._keys_from
        keys = KeyWork(self._keys_from, until, self._keyed)
        self._keys_from, self._keyed, self._keys_busy = until, [], True
        garbage = [entry for entry in self._garbage if entry[0] <= durable]
        self._garbage = [entry for entry in self._garbage if entry[0] > durable]
        if everything:
            self._waiting = {}
        return IndexWork(self._files, self._keys, extents, runs, keys, garbage, self._faults)

    def done(self, work: IndexWork, error: Exception | None) -> None:
        """The files hold it now; or not, then it waits on."""
        for queue, _ in work.runs:
            if error is None:
                queue.written()
            else:
                queue.not_written()
                self._worth_it[queue] = self._waiting[queue] = None
        self._keys_busy = False
        if error is not None:
            self._keyed[:0] = work.keys.batches
            self._keys_from = work.keys.first
            self._garbage[:0] = work.garbage
            log.error("index.write_failed", error=str(error))
