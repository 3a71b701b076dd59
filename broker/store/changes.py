"""
Changes of the broker's tables, as they stand in the log.

A state batch carries a list of changes: a msgpack array of ``[tag, field, field, ...]``. Replaying all of them in log
order gives the tables back. Tags never change and are never reused; an unknown one is refused by its number, since
state that is half understood is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from rmq.wire.errors import BadBatch, BadRequest, UnsupportedFormat
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.redelivery import DeadRun
from rmq.wire.stores import FormerStore, StoreIds


class TopicMade(NamedTuple):
    """A topic came into being; ``created_at`` is in microseconds."""

    topic: str
    generation: int
    queues: int
    shards: int
    created_at: int


class Started(NamedTuple):
    """
    The broker started: every later epoch is above every earlier one.

    ``grace_s`` is what clients of this start, or of one just before it, may count on. ``inode`` and ``born_ns`` are
    those of the log's directory, by which a copy is recognised; 0: not known. ``former`` are ids that the store had.
    ``accepted``: an operator lets readers of another history continue in this one.
    """

    store_id: int
    log_epoch: int
    grace_s: float = 5.0  # logs that do not say so were written under the default
    inode: int = 0
    born_ns: int = 0
    former: list[FormerStore] = []  # noqa: RUF012  # shared: never changed in place
    accepted: bool = False

    @property
    def stores(self) -> StoreIds:
        """The ids of the store."""
        return StoreIds(self.store_id, self.former)


class LeaseGranted(NamedTuple):
    """
    A session owns a queue for its group, in place of its former owner; ``ordered``: to process it in order.

    Stands once more under the same epoch, with ``leaving``, when its owner has announced that it is going.
    """

    group: str
    topic: str
    queue_id: int
    session: bytes
    member: str
    epoch: int
    ordered: bool = True  # all were, when logs did not say so
    leaving: bool = False


class LeaseEnded(NamedTuple):
    """The lease with this epoch was given back, or was taken from a session that fell silent."""

    group: str
    topic: str
    queue_id: int
    epoch: int


class Committed(NamedTuple):
    """``queue_offset`` is the next one to deliver to the group."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int


class Attempted(NamedTuple):
    """
    All failing messages of a queue: ``runs``, or without them the one at ``queue_offset``; -1 and 0: none fails.

    ``queue_offset`` and ``attempts`` are those of the first.
    """

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    attempts: int
    runs: list[AttemptRun] = []  # noqa: RUF012  # shared: never changed in place


class TopicDeleted(NamedTuple):
    """A generation of a topic is gone, with its messages, and all that groups knew of it."""

    topic: str
    generation: int


class QueueBounds(NamedTuple):
    """
    The bounds of a queue at this place of the log; stands in snapshots only.

    ``epochs`` are pairs, flat: a log epoch, and the offset of the first message that was stored under it.
    """

    topic: str
    generation: int
    queue_id: int
    min_offset: int
    end_offset: int
    epochs: list[int]


class ProducerKnown(NamedTuple):
    """A producer and its last spent number; ``ring`` has its last batches, or is empty. Stands in snapshots only."""

    producer_id: int
    epoch: int
    last: int
    idle_s: float
    ring: bytes


class SnapshotEnded(NamedTuple):
    """Ends a snapshot: the ``changes`` changes before this one are all state at this place of the log."""

    position: int
    changes: int
    last_generation: int


class ProducerEpoch(NamedTuple):
    """A producer said hello with a higher epoch: lower ones are fenced, and its line begins at ``first``."""

    producer_id: int
    epoch: int
    first: int


class Suspected(NamedTuple):
    """
    The suspicion against the message at ``suspect_offset`` of a queue; -1, 0, -1, False and 0: nothing any more.

    See :class:`~rmq.broker.state.crash_suspects.CrashMark`.
    """

    group: str
    topic: str
    queue_id: int
    suspect_offset: int
    abandoned: int
    careful_until: int
    is_careful: bool
    announced_by: int


class Copied(NamedTuple):
    """
    Copies of these messages are in the dead-letter topic of the group, or in its retry topic.

    ``is_all``: and of no others of the queue; such a change follows no copies.
    """

    group: str
    topic: str
    queue_id: int
    queue_offsets: list[int]
    is_all: bool = False


class DeadHandled(NamedTuple):
    """
    What became of dead letters of a topic; runs with the state ``WAITING`` were not handled.

    ``is_again``: as was said before; such a change follows no copies.
    """

    topic: str
    runs: list[DeadRun]
    is_again: bool = False


class DelaysReached(NamedTuple):
    """All parked batches up to this one, in the order of ``(due_at, position)``, were delivered or passed for good."""

    due_at: int
    position: int


class DelaysWaiting(NamedTuple):
    """
    Parked batches that wait: 24 bytes each, big-endian (u64 due_at, u64 position, u32 size, u32 messages).

    Stands in checkpoints only: a start without one finds them in the log.
    """

    entries: bytes


Change: TypeAlias = (
    TopicMade
    | Started
    | LeaseGranted
    | LeaseEnded
    | Committed
    | Attempted
    | TopicDeleted
    | QueueBounds
    | ProducerKnown
    | SnapshotEnded
    | ProducerEpoch
    | Suspected
    | Copied
    | DeadHandled
    | DelaysReached
    | DelaysWaiting
)

SHAPES: Final[dict[int, type[Change]]] = {
    1: TopicMade,
    2: Started,
    3: LeaseGranted,
    4: LeaseEnded,
    5: Committed,
    6: Attempted,
    7: TopicDeleted,
    8: QueueBounds,
    9: ProducerKnown,
    10: SnapshotEnded,
    11: ProducerEpoch,
    12: Suspected,
    13: Copied,
    14: DelaysReached,
    15: DelaysWaiting,
    16: DeadHandled,
}
TAGS: Final[dict[type[Change], int]] = {shape: tag for tag, shape in SHAPES.items()}

PIECE_CHANGES: Final = 2000
PIECE_BYTES: Final = 1 << 20  # of several changes together; a single one has a table that bounds it


def pack_changes(changes: Sequence[Change]) -> bytes:
    """The changes as the body of a state batch."""
    packed: bytes = msgpack.packb([(TAGS[type(change)], *change) for change in changes])
    return packed


def pack_in_pieces(changes: Sequence[Change]) -> Iterator[bytes]:
    """The changes as the bodies of state batches, in order, each far below the size limit of a batch."""
    for i in range(0, len(changes), PIECE_CHANGES):
        yield from _halved(changes[i : i + PIECE_CHANGES])


def _halved(changes: Sequence[Change]) -> Iterator[bytes]:
    packed = pack_changes(changes)
    if len(packed) <= PIECE_BYTES or len(changes) == 1:
        yield packed
    else:
        half = len(changes) // 2
        yield from _halved(changes[:half])
        yield from _halved(changes[half:])


def unpack_changes(data: bytes) -> list[Change]:
    """
    The changes of a state batch, in order.

    Raises:
        BadBatch: the bytes are no list of changes, or a field has a wrong type.
        UnsupportedFormat: a change of a kind this version does not know.
    """
    try:
        rows = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadBatch(f"a state batch is not msgpack: {error}") from error
    if type(rows) is not list:
        raise BadBatch(f"a state batch holds a list of changes, not {type(rows).__name__}")
    return [_change(row) for row in rows]


def _change(row: Any) -> Change:
    if type(row) is not list or not row or type(row[0]) is not int:
        raise BadBatch("a state change is an array that begins with a number")
    shape = SHAPES.get(row[0])
    if shape is None:
        raise UnsupportedFormat(f"state change {row[0]} is unknown: this log was written by a newer version")
    try:
        return decode(shape, row[1:])
    except BadRequest as error:
        raise BadBatch(f"a state change is damaged: {error}") from error
