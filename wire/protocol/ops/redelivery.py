"""Operations on messages that failed: giving them back for later, and what becomes of dead letters."""

from __future__ import annotations

from typing import Final, NamedTuple

from .core import NO_OFFSET

DEAD: Final = -1  # the fate of a message that became a dead letter
DONE_BEFORE: Final = 0  # the fate of one that was given back, given up or passed before
WAITING: Final = 0  # the state of a dead letter that nobody has dealt with
REPLAYED: Final = 1
DROPPED: Final = 2


class SendBack(NamedTuple):
    """
    Have messages of a queue delivered to the group again, later; answered when that and the progress are durable.

    ``attempts`` says of each how often it was delivered by now. One that was delivered ``max_attempts`` times (-1: as
    the broker is set) becomes a dead letter, and so do all if ``delay_level`` is negative; 0 is the level that belongs
    to the number of deliveries. ``commit_offset`` is progress that is stored in the same step, -1 for none. Asking
    again does nothing again.
    """

    group: str
    topic: str
    queue_id: int
    epoch: int
    queue_offsets: list[int]
    attempts: list[int]
    delay_level: int = 0
    max_attempts: int = -1
    commit_offset: int = NO_OFFSET
    reason: str = ""


class SentBack(NamedTuple):
    """What became of each message: the level it waits with, ``DEAD`` or ``DONE_BEFORE``."""

    fates: list[int]


class ListDead(NamedTuple):
    """A page of the groups with dead letters by name, behind ``after``; an empty one is the end."""

    after: str = ""


class DeadRow(NamedTuple):
    """The dead letters of a group: offsets ``[min_offset, max_offset)`` of its dead-letter topic, and their states."""

    group: str
    topic: str
    min_offset: int
    max_offset: int
    waiting: int
    replayed: int
    dropped: int


class DeadStates(NamedTuple):
    """Which dead letters of a group, from ``queue_offset`` on, somebody has dealt with; a page of runs."""

    group: str
    queue_offset: int = 0


class DeadRun(NamedTuple):
    """Each dead letter from ``from_offset`` to before ``end_offset`` is in this state."""

    from_offset: int
    end_offset: int
    state: int


class ReplayDead(NamedTuple):
    """
    Deliver dead letters again, in this order: to their group alone, or (``to_topic``) to the topic they came from.

    ``dry_run`` only tells what would be done. One that was replayed or dropped before is not replayed again.
    """

    group: str
    queue_offsets: list[int]
    to_topic: bool = False
    dry_run: bool = False


class DropDead(NamedTuple):
    """Mark dead letters as dealt with; they stay in the log as long as anything does."""

    group: str
    queue_offsets: list[int]
    dry_run: bool = False


class DeadResult(NamedTuple):
    """
    What became of a dead letter, or why nothing did: ``state`` is what it is in now.

    ``is_new``: by this request. ``topic``, ``queue_id`` and ``queue_offset`` are where a replayed one lies.
    """

    status: int
    state: int = WAITING
    is_new: bool = False
    topic: str = ""
    queue_id: int = 0
    queue_offset: int = NO_OFFSET
    text: str | None = None
