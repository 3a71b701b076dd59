"""
The checkpoint: all state at a position of the log, so that a start need not read what lies before.

It is written when everything below its position is durable in the log *and* in the indexes. It is a shortcut only: a
missing or damaged one is ignored, and the log yields the same state. One that cannot be read just now is not ignored:
it would be replaced, and with it goes the proof of what was synced. That proof counts also where the indexes are
missing: then the whole log is read.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgpack

from rmq.wire.batch import layout
from rmq.wire.batch.checksum import crc32
from rmq.wire.errors import BadBatch, UnsupportedFormat
from rmq.wire.protocol import frames
from rmq.wire.stores import StoreIds

from .changes import Change, QueueBounds, Started, pack_changes, unpack_changes
from .commitlog import CommitLog, Extent
from .files import Files
from .index_backlog import IndexWork
from .rebuild import first_store_id
from .recovery import SegmentFile
from .scan import Scan, Unreadable

NAME = "checkpoint"
_MAGIC = b"RMQCKPT2"
_CRC_BYTES = 4
_PIECE = 100  # changes: those of waiting batches have 6 KiB each


class BadCheckpoint(Exception):
    """A file that cannot be believed; the sentence says why."""


class Checkpoint(NamedTuple):
    """``last``: where the last batch below ``position`` begins, and its ``header_crc``; (-1, 0) if there is none."""

    position: int
    store_id: int
    log_epoch: int
    stored_at: int
    last: tuple[int, int]
    changes: list[Change]

    @property
    def stores(self) -> StoreIds:
        """The ids of the store: those of the last start, which a snapshot names."""
        started = [change for change in self.changes if isinstance(change, Started)]
        return started[-1].stores if started else StoreIds(self.store_id)


def pack(checkpoint: Checkpoint) -> bytes:
    """The file's content."""
    changes = checkpoint.changes
    # In pieces: packing holds the interpreter, and this runs in parallel to the loop. Checksums and joining do not.
    pieces = [pack_changes(changes[i : i + _PIECE]) for i in range(0, len(changes), _PIECE)]
    body = [frames.array_header(len(Checkpoint._fields)), *map(msgpack.packb, checkpoint[:-1])]
    body.append(frames.array_header(len(pieces)))
    for piece in pieces:
        body += (frames.bin_header(len(piece)), piece)
    crc = 0
    for part in body:
        crc = crc32(part, crc)
    return b"".join((_MAGIC, crc.to_bytes(_CRC_BYTES, "big"), *body))


def unpack(data: bytes) -> Checkpoint:
    """
    The checkpoint in a file.

    Raises:
        BadCheckpoint: it is damaged, or of another version.
    """
    at = len(_MAGIC) + _CRC_BYTES
    if data[: len(_MAGIC)] != _MAGIC:
        raise BadCheckpoint("it is none, or of another version")
    if crc32(data[at:]) != int.from_bytes(data[len(_MAGIC) : at], "big"):
        raise BadCheckpoint("its checksum does not match")
    try:
        position, store_id, log_epoch, stored_at, (begins, header_crc), pieces = msgpack.unpackb(data[at:])
        changes = [change for piece in pieces for change in unpack_changes(piece)]
        head = operator.index(position), operator.index(store_id), operator.index(log_epoch), operator.index(stored_at)
        last = operator.index(begins), operator.index(header_crc)
    except (BadBatch, UnsupportedFormat) as error:
        raise BadCheckpoint(error.text) from error
    except (TypeError, ValueError) as error:  # it was written for something else
        raise BadCheckpoint(f"it has another shape: {error}") from error
    return Checkpoint(*head, last, changes)


def load(files: Files, directory: Path) -> Checkpoint | None:
    """
    The checkpoint of a data directory, None if there is none.

    Raises:
        BadCheckpoint: there is a file that cannot be used.
        Unreadable: it cannot be read, which says nothing about what it holds.
    """
    try:
        return unpack(files.read_file(directory / NAME))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(
            f"{directory / NAME} cannot be read ({error.strerror}): check the disk and the owner of the file, and try "
            "again; if it stays so, remove it, and a start reads the whole log instead"
        ) from error


def save(files: Files, directory: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint in place of the old one, durable when this returns."""
    files.replace_file(directory / NAME, pack(checkpoint))


class CheckpointWork(NamedTuple):
    """A checkpoint, and the index work that must be on the disk before it."""

    indexes: IndexWork
    log: CommitLog
    directory: Path
    checkpoint: Checkpoint

    def run(self) -> None:
        """Do it; the log must be durable up to the checkpoint's position. Raises OSError; the old one then stands."""
        files = self.indexes.files
        self.log.check_place()
        self.indexes.run()
        self.indexes.key_index.flush()
        files.sync_filesystem(self.directory)
        save(files, self.directory, self.checkpoint)
        self.indexes.key_index.end_rebuild()


def judge(known: Checkpoint, files: Files, log: Sequence[SegmentFile]) -> None:
    """
    Refuse a checkpoint that does not belong to a log, given by its segments, oldest first.

    One that reaches beyond the log is believed: what lies between was durable, and is lost.

    Raises:
        BadCheckpoint: the log alone is to be believed.
    """
    if known.position < log[0].start:
        raise BadCheckpoint(f"the log begins after it, at {log[0].start}")
    store_id = first_store_id(files, Extent(log[0].start, log[0].path))
    if store_id is not None and not known.stores.has(store_id):
        raise BadCheckpoint("it is of another store")
    _judge_last(known, files, log)


def missing_index(known: Checkpoint, files: Files, index_directory: str) -> str | None:
    """Return why the indexes do not hold the log up to a checkpoint; None if they are there."""
    try:
        there = set(files.names(index_directory))
    except OSError as error:
        return f"{index_directory} cannot be read: {error.strerror}"
    bounds = [change for change in known.changes if isinstance(change, QueueBounds)]
    needed = {f"{queue.topic}@{queue.generation}" for queue in bounds if queue.min_offset < queue.end_offset}
    return f"the index of {min(needed - there)} is missing" if needed - there else None


def _judge_last(known: Checkpoint, files: Files, log: Sequence[SegmentFile]) -> None:
    position, header_crc = known.last
    segment = log[max(bisect_right(log, position, key=lambda segment: segment.start) - 1, 0)]
    if not segment.start <= position < segment.end:
        return
    fd = files.open_to_read(segment.path)
    try:
        header = Scan(files, fd, segment.start, segment.end - segment.start, window=layout.MAX_BATCH).header(position)
    finally:
        files.close(fd)
    # A header that is not sound is damage, of which the checkpoint knows more than the log. Another one is not.
    if header is not None and header.header_crc != header_crc:
        raise BadCheckpoint("it is of another log")
