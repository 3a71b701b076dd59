"""
A walk over the commit log: every record in its order, every place that is not sound, and where the log ends.

Each record is validated as a whole (lengths, magic, checksum) and must name its own position. After a bad record the
walk continues only where something else proves that a record starts: at an entry of a consume queue, or at the next
file. It never searches for bytes that look like a record.

The log *ends* where nothing was written yet. Bytes after the last sound record may be the torn tail of a crash; but if
a consume queue, a later file, or a whole record that is not older shows that more was there, it is damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from rmq.wire.rocketmq.record import BLANK_MAGIC, MAX_SIZE, MESSAGE_MAGIC, MIN_SIZE, START, BadRecord, Record, decode

from .queue_index import QueueEntries, QueueEntry, QueueIndex
from .store_files import WINDOW, LogFile, RocketMQLog, faults

_NOTHING: Final = bytes(START.size)
_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, "big")
_MAGIC_AT: Final = 4


class LostMessage(NamedTuple):
    """A message that is known to have been there."""

    topic: str
    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id} @{self.queue_offset}"


class LogDamage(NamedTuple):
    """A place of the log that is not sound; ``lost`` are the messages that consume queues knew to begin there."""

    file: str
    position: int  # within the file
    physical_offset: int
    text: str
    lost: tuple[LostMessage, ...] = ()

    def __str__(self) -> str:
        lost = f" (lost: {', '.join(map(str, self.lost))})" if self.lost else ""
        return f"{self.file} at {self.position}: {self.text}{lost}"


class End(NamedTuple):
    """Where the log ends, and how many bytes after that belong to no record: the torn tail of a crash."""

    physical_offset: int
    torn_bytes: int


class LogWalk:
    """Walks over a log; ``clean``: its broker was stopped in order, so that nothing may be torn."""

    def __init__(self, log: RocketMQLog, index: QueueIndex, *, clean: bool) -> None:
        self._log = log
        self._index = index
        self._clean = clean
        self.position = log.start  # how far the walk is
        self._stored_at = 0  # of the last sound record

    def __iter__(self) -> Iterator[Record | LogDamage | End]:
        """Everything in the order of the log; the last is the :class:`End`."""
        wrong = faults(self._log.files)
        end: End | None = None
        for number, file in enumerate(self._log.files):
            yield from (LogDamage(file.path.name, 0, file.start, text) for which, text in wrong if which is file)
            for found in self._file(file, self._log.files[number + 1 :]):
                if isinstance(found, End):
                    end = found
                    break
                yield found
            if end is not None:
                break
        self.position = self._log.end
        yield end or End(self._log.end, 0)

    def record_at(self, position: int, size: int = 0) -> Record:
        """
        Return the record at a physical offset; with ``size`` it must have the size that a consume queue names.

        Raises:
            BadRecord: there is none.
        """
        file = self._log.file_at(position)
        if file is None:
            raise BadRecord("lies outside of the log")
        record = self._decode(file, position)
        if size not in (0, record.size):
            raise BadRecord(f"has {record.size} bytes, not {size}")
        return record

    def file_of(self, position: int) -> LogFile:
        """The file that holds the record at a physical offset."""
        file = self._log.file_at(position)
        assert file is not None  # the record was read there
        return file

    def _file(self, file: LogFile, later: list[LogFile]) -> Iterator[Record | LogDamage | End]:
        """What a file holds, up to its end or that of the log."""
        position, end = file.start, file.start + min(file.length, file.room)
        while position < end:
            self.position = position
            start = self._log.read(file, position, START.size)
            try:
                if len(start) == START.size and START.unpack(start)[1] == BLANK_MAGIC:
                    _check_blank(START.unpack(start)[0], file.end - position)
                    return
                if start == _NOTHING[: len(start)]:
                    raise BadRecord("was never written")
                record = self._decode(file, position)
            except BadRecord as error:
                torn = self._end_at(file, position, later, written=start != _NOTHING)
                if torn is not None:
                    yield torn
                    return
                yield self._damage(file, position, str(error))
                position = self._next_known(position, end)
            else:
                yield record
                self._stored_at = record.stored_at
                position += record.size
                if end - position < START.size and file.length == file.room:
                    text = "the file ends without the record that closes it: it was cut"
                    yield LogDamage(file.path.name, position - file.start, position, text)
                    return

    def _decode(self, file: LogFile, position: int) -> Record:
        size, magic = START.unpack(self._log.read(file, position, START.size).ljust(START.size, b"\0"))
        left = file.start + min(file.length, file.room) - position
        if magic != MESSAGE_MAGIC:
            raise BadRecord(f"has the magic {magic:08X} instead of {MESSAGE_MAGIC:08X}")
        if not MIN_SIZE <= size <= min(left, MAX_SIZE):
            raise BadRecord(f"says that it has {size} bytes, and the file has {left} more")
        record = decode(self._log.read(file, position, size))
        if record.physical_offset != position:
            raise BadRecord(f"says that it lies at {record.physical_offset} instead of {position}")
        return record

    def _end_at(self, file: LogFile, position: int, later: list[LogFile], *, written: bool) -> End | None:
        """The end of the log, if a place without a sound record is that; None if it is damage."""
        if any(self._log.read(each, each.start, START.size) != _NOTHING for each in later):
            return None
        known = self._index.at_or_after(position)
        if known and (self._clean or self._is_any_sound(position, known) or _is_cut(file, known[0][2], position)):
            return None
        if written and self._clean and not self._index.exists:
            return None  # nothing shows that it is a left-over
        last = self._log.last_written(file, position)
        if not self._clean and self._is_followed(file, position, last):
            return None
        return End(position, last - position)

    def _is_followed(self, file: LogFile, position: int, last: int) -> bool:
        """Return whether a whole record follows a position, and is not older than the ones before."""
        while position < last:
            part = self._log.read(file, position, min(WINDOW, last - position))
            hit = part.find(_MAGIC, START.size)
            while hit >= 0:
                try:
                    record = self._decode(file, position + hit - _MAGIC_AT)
                except BadRecord:
                    pass
                else:
                    if record.stored_at >= self._stored_at:
                        return True
                hit = part.find(_MAGIC, hit + 1)
            position += max(len(part) - START.size - len(_MAGIC), START.size)
        return False

    def _is_any_sound(self, position: int, known: list[tuple[QueueEntries, int, QueueEntry]]) -> bool:
        """Return whether a whole record follows a position: a torn tail has none."""
        for queue, offset, _ in known:
            for each in {offset, offset + 1, queue.end - 1}:
                entry = queue.entry(each)
                if entry is not None and entry.physical_offset > position and self._is_sound(entry):
                    return True
        return False

    def _is_sound(self, entry: QueueEntry) -> bool:
        try:
            self.record_at(entry.physical_offset, entry.size)
        except BadRecord:
            return False
        return True

    def _damage(self, file: LogFile, position: int, text: str) -> LogDamage:
        known = self._index.at_or_after(position)
        lost = [LostMessage(*queue.queue, n) for queue, n, at in known if at.physical_offset == position]
        return LogDamage(file.path.name, position - file.start, position, f"the record {text}", tuple(lost))

    def _next_known(self, position: int, end: int) -> int:
        """The next place within a file at which a consume queue says that a record begins; else its end."""
        known = self._index.at_or_after(position + 1)
        return min([end, *(entry.physical_offset for _, _, entry in known)])


def _is_cut(file: LogFile, entry: QueueEntry, position: int) -> bool:
    """Whether a consume queue names a record here for which the file is too short: no crash makes files shorter."""
    return entry.physical_offset == position and position + entry.size > file.end - START.size


def _check_blank(size: int, left: int) -> None:
    if size != left:
        raise BadRecord(f"closes the file for {size} bytes, and {left} are left")
