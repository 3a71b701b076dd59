"""
The consume queues of a store: for each message of a queue where its record lies. Read only, some KiB at a time.

An entry has 20 bytes: i64 physical offset, i32 size of the record, i64 tags code (of a delayed message: when it is
due, in ms). Entries of a queue lie in the order of the log, so places are found by halving.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from pathlib import Path
from typing import Final, NamedTuple

from .store_files import BadStore, cannot_read, is_folder, numbered_files, open_regular

ENTRY: Final = struct.Struct(">qiq")
_LEAST_TAGS: Final = -(1 << 31)  # what is below is the address of more that is known of the message
_FILLER: Final = 0x7FFFFFFF  # the size in an entry that only fills the room before the first message
_LIGHT: Final = "%LMQ%"
_WITHOUT: Final = "import a copy of the store that has no folder consumequeue: then the log alone counts"
_BLOCK: Final = 200 * ENTRY.size
_BLOCKS: Final = 4096  # kept in memory of all queues together: 16 MiB


class QueueEntry(NamedTuple):
    """Where the record of a message lies."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_filler(self) -> bool:
        """Whether it stands for no message."""
        return self.size == _FILLER and self.physical_offset == 0

    def is_tagged(self, tags: str) -> bool:
        """Whether these tags have the code of the entry, as far as it tells; not for messages that wait."""
        return self.tags_code < _LEAST_TAGS or self.tags_code == java_hash(tags)


@lru_cache(maxsize=4096)  # tags are few
def java_hash(text: str) -> int:
    """The number that Java has for a text; 0 for none."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be")):
        value = (31 * value + unit) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


class QueueEntries:
    """The entries of one queue; ``[first, end)`` are those that stand for a message."""

    def __init__(self, queue: tuple[str, int], folder: Path, blocks: _Blocks) -> None:
        self.queue = queue
        self._blocks = blocks
        self._files = numbered_files(folder)
        for (at, path, length), (following, *_) in zip(self._files, self._files[1:], strict=False):
            if at + length != following:
                text = f"{path} has {length} bytes, and the next file begins at {following}"
                raise BadStore(f"{text}: a queue has no gaps; {_WITHOUT}")
        for at, path, length in self._files:
            if at % ENTRY.size or length % ENTRY.size:
                raise BadStore(f"{path} does not hold whole entries of {ENTRY.size} bytes; {_WITHOUT}")
        self._starts = [at for at, _, _ in self._files]
        low = self._starts[0] // ENTRY.size if self._files else 0
        high = (self._files[-1][0] + self._files[-1][2]) // ENTRY.size if self._files else 0
        self.end = low + bisect_left(range(low, high), True, key=lambda n: self._at(n).size <= 0)
        self.first = low + bisect_left(range(low, self.end), True, key=lambda n: not self._at(n).is_filler)

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """The entry of a message; None if the queue has none."""
        return self._at(queue_offset) if self.first <= queue_offset < self.end else None

    def from_position(self, position: int) -> int:
        """The queue offset of the first message whose record lies at ``position`` or behind it."""
        key = lambda n: self._at(n).physical_offset  # noqa: E731
        return self.first + bisect_left(range(self.first, self.end), position, key=key)

    def _at(self, queue_offset: int) -> QueueEntry:
        at = queue_offset * ENTRY.size
        index = bisect_right(self._starts, at) - 1
        start, path, _ = self._files[index]
        block, within = divmod(at - start, _BLOCK)
        data = self._blocks.read(path, block)
        return QueueEntry(*ENTRY.unpack_from(data, within))


class _Blocks:
    """Parts of files that were read of late."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Path, int], bytes] = {}

    def read(self, path: Path, block: int) -> bytes:
        data = self._kept.get((path, block))
        if data is None:
            if len(self._kept) >= _BLOCKS:
                self._kept.clear()
            try:
                with open(path, "rb", buffering=0, opener=open_regular) as file:
                    data = os.pread(file.fileno(), _BLOCK, block * _BLOCK)
            except OSError as error:
                raise cannot_read(path, error) from error
            self._kept[path, block] = data
        return data


class QueueIndex:
    """All consume queues of a store, by topic and queue; ``exists`` is False of a store without any."""

    def __init__(self, folder: Path) -> None:
        self.exists = is_folder(folder)
        everything = dict(_queues(folder)) if self.exists else {}
        # A light queue names messages of other topics; those have their places there, too.
        self._queues = {queue: entries for queue, entries in everything.items() if not queue[0].startswith(_LIGHT)}
        self._topics = {topic for topic, _ in self._queues}
        self.light_queues = len(everything) - len(self._queues)

    def queue(self, topic: str, queue_id: int) -> QueueEntries | None:
        """The entries of a queue."""
        return self._queues.get((topic, queue_id))

    def has(self, topic: str) -> bool:
        """Whether a topic has consume queues."""
        return topic in self._topics

    def queues(self) -> list[QueueEntries]:
        """All of them, by topic and number."""
        return [self._queues[queue] for queue in sorted(self._queues)]

    def at_or_after(self, position: int) -> list[tuple[QueueEntries, int, QueueEntry]]:
        """Of each queue the first entry whose record lies at ``position`` or behind, in the order of the log."""
        found = []
        for queue in self._queues.values():
            entry = queue.entry(offset := queue.from_position(position))
            if entry is not None:
                found.append((queue, offset, entry))
        return sorted(found, key=lambda row: row[2].physical_offset)


class Named:
    """Which queue names the record at a place; places are asked for in the order of the log."""

    def __init__(self, index: QueueIndex) -> None:
        self._next = [(at.physical_offset, *queue.queue, queue) for queue, _, at in index.at_or_after(0)]
        heapify(self._next)

    def at(self, position: int) -> tuple[str, int] | None:
        """The first queue that has an entry for it."""
        while self._next and self._next[0][0] < position:
            queue = self._next[0][-1]
            entry = queue.entry(queue.from_position(position))
            if entry is None:
                heappop(self._next)
            else:
                heapreplace(self._next, (max(entry.physical_offset, position), *queue.queue, queue))
        return self._next[0][-1].queue if self._next and self._next[0][0] == position else None


def _queues(folder: Path) -> Iterator[tuple[tuple[str, int], QueueEntries]]:
    blocks = _Blocks()
    try:
        for topic in sorted(folder.iterdir()):
            for part in sorted(topic.iterdir()) if topic.is_dir() else ():
                if part.name.isascii() and part.name.isdecimal():  # RocketMQ passes over others, too
                    yield (topic.name, int(part.name)), QueueEntries((topic.name, int(part.name)), part, blocks)
    except OSError as error:
        raise cannot_read(folder, error) from error
