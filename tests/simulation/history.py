"""
The events of a run, as values: what the checkers of this folder judge.

A *history* is a list of them in the order in which they happened; ``at`` is when, in seconds on one clock. Simulated
processes note them as they happen, real ones write them to files. An event that concerns one group names it; with one
group only, the name may be empty.

A message is known by its body, which no other has: it keeps it while it is deferred, when it is given back and when it
is given up. A *row* is where the log holds it at the end; a group sees a row as a delivery.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeAlias

from rmq.wire.model import MessageQueue

# How a call ended, for one of its messages
DONE = "done"  # it is processed, and so are those kept before
FAILED = "failed"  # it has to be given again
KEPT = "kept"  # it is processed when a later call is DONE
ROLLED_BACK = "rolled back"  # it, and those kept before, have to be given again
GIVEN_UP = "given up"  # it is to be a dead letter at once
CUT = "cut"  # the call was cancelled, or its process died: it has no result

Queue: TypeAlias = Hashable  # a MessageQueue, or what stands for one


class Sent(NamedTuple):
    """
    The broker acknowledged message ``number`` of a producer, which sent it at ``sent_at``.

    ``delay_s`` is how long after it was stored it may be seen, ``due`` when that is if the producer named the time;
    ``offset`` is -1 for a deferred one.
    """

    at: float
    queue: Queue
    offset: int
    body: bytes
    producer: str
    number: int
    tag: str | None = None
    sent_at: float = 0.0
    delay_s: float = 0.0
    due: float | None = None

    @property
    def earliest(self) -> float:
        """When it may be seen at the earliest."""
        return self.sent_at + self.delay_s if self.due is None else self.due

    @property
    def latest(self) -> float:
        """When it is due at the latest."""
        return self.at + self.delay_s if self.due is None else max(self.due, self.at)


class Granted(NamedTuple):
    """A process was granted a queue, and learned which offset is committed; -1: none."""

    at: float
    process: str
    queue: Queue
    epoch: int
    committed: int
    group: str = ""


class Released(NamedTuple):
    """A member learned that a queue it gave back is free, and that its progress is stored."""

    at: float
    process: str
    queue: Queue
    epoch: int
    offset: int
    group: str = ""


class Started(NamedTuple):
    """
    A listener was called, or a poll returned.

    ``lost``: its context said from the first moment that the queue may be another's.
    """

    at: float
    call: int
    process: str
    queue: Queue
    epoch: int
    offsets: tuple[int, ...]
    attempts: tuple[int, ...]
    bodies: tuple[bytes, ...] = ()
    lost: bool = False
    group: str = ""

    def __str__(self) -> str:
        at = f"{self.offsets[0]}" if len(self.offsets) == 1 else f"{self.offsets[0]}-{self.offsets[-1]}"
        return f"call {self.call} ({self.process}, epoch {self.epoch}, {self.queue} at {at}, since {self.at:.3f} s)"


class Ended(NamedTuple):
    """A call ended, with this fate for each of its messages; ``level`` is the delay it asked for, 0 for none."""

    at: float
    call: int
    fates: tuple[str, ...]
    level: int = 0

    @property
    def result(self) -> str:
        """The fate of the call as a whole."""
        if len(set(self.fates)) == 1:
            return self.fates[0]
        return CUT if CUT in self.fates else FAILED


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
    """A process died, and with it its calls."""

    at: float
    process: str


class Born(NamedTuple):
    """A member begins: ``instance`` names its progress where that is its own."""

    at: float
    process: str
    instance: str = ""
    group: str = ""


class Left(NamedTuple):
    """A member has stopped cleanly."""

    at: float
    process: str


class Committed(NamedTuple):
    """The broker took progress, from the owner with this epoch if that is known."""

    at: float
    queue: Queue
    offset: int
    epoch: int | None = None
    group: str = ""


class Promised(NamedTuple):
    """A client learned that the progress it made under this epoch, if that is known, is durable."""

    at: float
    queue: Queue
    offset: int
    epoch: int | None = None
    group: str = ""


class DeadLettered(NamedTuple):
    """The broker made a message a dead letter: it counts as processed."""

    at: float
    queue: Queue
    offset: int
    group: str = ""


class OffsetReset(NamedTuple):
    """
    An operator set the group's offset: what is processed and committed counts from there again.

    ``last_epoch`` is the last that was given before: what is done under it and those below does not count any more.
    """

    at: float
    queue: Queue
    offset: int
    last_epoch: int = 0
    group: str = ""


class Wrote(NamedTuple):
    """The sink took a write."""

    at: float
    queue: Queue
    epoch: int
    offset: int
    group: str = ""


class BrokerCrashed(NamedTuple):
    """The broker ended without a word: what it had not acknowledged may be gone."""

    at: float


class BrokerDown(NamedTuple):
    """The broker is away, cleanly or not, since then."""

    at: float


class BrokerUp(NamedTuple):
    """It is back."""

    at: float


class Troubled(NamedTuple):
    """Something is wrong with the network of a process."""

    at: float
    process: str


class Hindered(NamedTuple):
    """Something keeps messages from being processed until then."""

    at: float
    until: float


class Row(NamedTuple):
    """A message as the log holds it at the end, after so many ``attempts``; ``at`` is when it was stored."""

    queue: MessageQueue
    offset: int
    body: bytes
    attempts: int
    at: float
    tag: str | None = None
    origin: str | None = None  # the id of what it was copied from
    first: str | None = None  # the place of the first original, as topic/queue/offset


Event: TypeAlias = (
    Sent | Granted | Released | Started | Ended | Lost | Stopped | Continued | Killed | Born | Left | Committed
    | Promised | DeadLettered | OffsetReset | Wrote | BrokerCrashed | BrokerDown | BrokerUp | Troubled | Hindered
)  # fmt: skip
History: TypeAlias = Iterable[Event]


def concerns(event: Event, group: str) -> bool:
    """Return whether an event is about this group, or about all."""
    return getattr(event, "group", "") in ("", group)


class Sink:
    """A store that takes a write only if none with a higher epoch came before: what docs/listeners.md advises."""

    def __init__(self) -> None:
        self._highest: dict[Queue, int] = {}

    def write(self, queue: Queue, epoch: int) -> bool:
        """Return whether the write is taken."""
        if epoch < self._highest.get(queue, epoch):
            return False
        self._highest[queue] = epoch
        return True
