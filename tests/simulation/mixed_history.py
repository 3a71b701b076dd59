"""
What happens to groups of every mode, as values: the events and the log that :mod:`simulation.concurrent` judges.

A message is known by its body, which no other has: it keeps it when it waits for its time, when it is given back and
when it is given up. A *row* is where the log holds it at the end; a group sees a row as a delivery.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from rmq.wire.model import MessageQueue
from rmq.wire.names import dead_letter_topic, retry_topic

from simulation.history import BrokerCrashed, Continued, Hindered, Killed, Lost, Stopped

CONCURRENT, ORDERLY, PULL = "concurrent", "orderly", "pull"
CAST, CAST_ORDERLY = "broadcasting", "broadcasting orderly"
KINDS = (CONCURRENT, ORDERLY, PULL, CAST, CAST_ORDERLY)

OK = "ok"  # processed
FAILED = "failed"  # to be given back
GIVEN_UP = "given up"  # to be a dead letter at once
CUT = "cut"  # the call was cancelled: it has no result


class Group(NamedTuple):
    """What a group is, as far as it is judged; ``settings`` are those of its consumers, as pairs."""

    name: str
    kind: str
    settings: tuple[tuple[str, object], ...] = ()
    expression: str = "*"

    @property
    def shared(self) -> bool:
        """Its members share the queues out: it is not broadcasting."""
        return self.kind in (CONCURRENT, ORDERLY, PULL)

    def wants(self, tag: str | None) -> bool:
        """Whether it has subscribed to a tag."""
        return self.expression == "*" or tag in {one.strip() for one in self.expression.split("||")}

    def setting(self, name: str, default: float) -> float:
        """A number among its settings."""
        value = dict(self.settings).get(name, default)
        assert isinstance(value, int | float)
        return value

    @property
    def retries(self) -> str:
        """Where its messages wait to be given again."""
        return retry_topic(self.name)

    @property
    def dead(self) -> str:
        """Where those lie that it gave up."""
        return dead_letter_topic(self.name)


class Accepted(NamedTuple):
    """
    The broker acknowledged message ``number`` of a producer, which sent it at ``sent_at``.

    ``delay_s`` is how long after it was stored it may be seen, ``due`` when that is if it was said exactly; ``offset``
    is -1 for one that waits.
    """

    at: float
    sent_at: float
    body: bytes
    queue: MessageQueue
    offset: int
    producer: str
    number: int
    tag: str | None = None
    delay_s: float = 0.0
    due: float | None = None

    @property
    def earliest(self) -> float:
        """It is not to be seen before."""
        return self.sent_at + self.delay_s if self.due is None else self.due

    @property
    def latest(self) -> float:
        """It is due at the latest."""
        return self.at + self.delay_s if self.due is None else max(self.due, self.at)


class Owned(NamedTuple):
    """A member was told that a queue is its group's and its own, and which offset is committed; -1: none."""

    at: float
    group: str
    process: str
    queue: MessageQueue
    epoch: int
    committed: int


class Released(NamedTuple):
    """A member was told that a queue it gave back is free, and that its progress is stored."""

    at: float
    group: str
    process: str
    queue: MessageQueue
    epoch: int
    offset: int


class Called(NamedTuple):
    """A listener was called, or a poll returned. ``lost``: its context said that the queue may be another's."""

    at: float
    call: int
    group: str
    process: str
    queue: MessageQueue
    epoch: int
    offsets: tuple[int, ...]
    attempts: tuple[int, ...]
    bodies: tuple[bytes, ...]
    lost: bool = False


class Returned(NamedTuple):
    """A call ended, with this result for each of its messages; ``level`` is what it asked for, 0 for nothing."""

    at: float
    call: int
    fates: tuple[str, ...]
    level: int = 0


class Stored(NamedTuple):
    """The broker noted progress of a group."""

    at: float
    group: str
    queue: MessageQueue
    offset: int


class Told(NamedTuple):
    """A member was told that its progress is durable."""

    at: float
    group: str
    queue: MessageQueue
    offset: int


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


class Born(NamedTuple):
    """A member begins: ``instance`` names its progress where that is its own."""

    at: float
    group: str
    process: str
    instance: str = ""


class Left(NamedTuple):
    """A member has stopped cleanly."""

    at: float
    process: str


class Row(NamedTuple):
    """A message as the log holds it at the end; ``attempts`` it had behind it, ``at`` is when it was stored."""

    queue: MessageQueue
    offset: int
    body: bytes
    attempts: int
    at: float
    tag: str | None = None
    origin: str | None = None  # the id of what it was copied from
    first: str | None = None  # the place of the first original, as topic/queue/offset


MixedEvent: TypeAlias = (
    Accepted | Owned | Released | Called | Returned | Stored | Told | BrokerDown | BrokerUp | Troubled | Born | Left
    | Lost | Stopped | Continued | Killed | BrokerCrashed | Hindered
)  # fmt: skip


class Levels(NamedTuple):
    """What the levels of a broker mean, how often it gives a message back, and how late anything may be."""

    seconds: tuple[float, ...]
    max_retries: int = 16
    late_s: float = 0.1  # what waits for its time
    settle_s: float = 2.0  # what nothing hinders

    def delay_s(self, asked: int, attempt: int) -> float:
        """The delay of a message that failed at this attempt, of which the listener asked for a level or for none."""
        level = asked or 2 + attempt
        return self.seconds[min(level, len(self.seconds)) - 1]

    def limit(self, group: Group) -> int:
        """How often a message is delivered to a group before it is given up."""
        most = int(group.setting("max_attempts", -1))
        return self.max_retries + 1 if most == -1 else most
