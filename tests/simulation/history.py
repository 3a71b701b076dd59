"""
What happens to the queues of a group, as values: the events that :mod:`simulation.ordered` judges.

A *history* is a list of them in the order in which they happened; ``at`` is when, in seconds on one clock. Simulated
processes note them as they happen, real ones write them to files.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeAlias

DONE = "done"  # these messages, and those kept before, are processed
AGAIN = "again"  # they have to be given again
KEPT = "kept"  # they are processed when a later call is DONE
ROLLED_BACK = "rolled back"  # these, and those kept before, have to be given again
CUT = "cut"  # the call was cancelled, or its process died: it has no result

Queue: TypeAlias = Hashable  # such as (group, topic, queue_id)


class Sent(NamedTuple):
    """The broker acknowledged message ``number`` of a producer."""

    at: float
    queue: Queue
    offset: int
    body: bytes
    producer: str
    number: int
    tag: str | None = None


class Granted(NamedTuple):
    """A process was told that a queue is its own, and which offset is committed; -1: none."""

    at: float
    process: str
    queue: Queue
    epoch: int
    committed: int


class Started(NamedTuple):
    """A listener was called. ``lost``: its context said from the first moment that the queue may be another's."""

    at: float
    call: int
    process: str
    queue: Queue
    epoch: int
    offsets: tuple[int, ...]
    attempts: tuple[int, ...]
    bodies: tuple[bytes, ...] = ()
    lost: bool = False


class Ended(NamedTuple):
    """A listener returned, raised or was cancelled."""

    at: float
    call: int
    result: str


class Lost(NamedTuple):
    """The context of a running call says that the queue may be another's."""

    at: float
    call: int


class Stopped(NamedTuple):
    """A process does nothing (SIGSTOP, or a listener that blocks its loop), and its clock goes on."""

    at: float
    process: str


class Continued(NamedTuple):
    """A stopped process goes on."""

    at: float
    process: str


class Killed(NamedTuple):
    """A process is no more, and with it its calls."""

    at: float
    process: str


class Committed(NamedTuple):
    """The broker took progress, from the owner with this epoch if that is known."""

    at: float
    queue: Queue
    offset: int
    epoch: int | None = None


class Promised(NamedTuple):
    """A client was told that the progress it made under this epoch, if that is known, is stored."""

    at: float
    queue: Queue
    offset: int
    epoch: int | None = None


class BrokerCrashed(NamedTuple):
    """The broker ended without a word: what it had not acknowledged may be gone."""

    at: float


class Hindered(NamedTuple):
    """Something keeps messages from being processed until then."""

    at: float
    until: float


class Wrote(NamedTuple):
    """The sink took a write."""

    at: float
    queue: Queue
    epoch: int
    offset: int


class DeadLettered(NamedTuple):
    """The broker made a message a dead letter: it counts as processed."""

    at: float
    queue: Queue
    offset: int


class OffsetReset(NamedTuple):
    """
    Somebody set the group's offset: what is processed and committed counts from there anew.

    ``last_epoch`` is the last that was given before: what is done under it and those below does not count any more.
    """

    at: float
    queue: Queue
    offset: int
    last_epoch: int = 0


Event: TypeAlias = (
    Sent | Granted | Started | Ended | Lost | Stopped | Continued | Killed | Committed | Promised | BrokerCrashed
    | Hindered | Wrote | DeadLettered | OffsetReset
)  # fmt: skip
History: TypeAlias = Iterable[Event]


class Sink:
    """A store that takes a write only if nobody with a higher epoch wrote before: what docs/listeners.md advises."""

    def __init__(self) -> None:
        self._highest: dict[Queue, int] = {}

    def write(self, queue: Queue, epoch: int) -> bool:
        """Whether the write is taken."""
        if epoch < self._highest.get(queue, epoch):
            return False
        self._highest[queue] = epoch
        return True
