"""Values that users and all layers share: queues, messages to send, messages received, listener results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache, partial
from itertools import repeat, starmap
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from .batch.layout import KIND_PARKED, MAX_TAG
from .batch.native import native
from .deferral import Delay, delay_of
from .names import ORIGIN_TOPIC, RETRIES, unwrap

if TYPE_CHECKING:
    from .batch.batch import BatchOrigin


class MessageQueue(NamedTuple):
    """One queue of a topic."""

    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"


class ConsumeStatus(Enum):
    """What a listener says of the messages it was given."""

    SUCCESS = "success"
    SUSPEND = "suspend"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    RETRY = "retry"


TAG, INDEX_KEYS, PROPERTIES, DELAY, KEY = 1, 2, 4, 8, 16  # what a message has besides a body


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """
    A message to send. Messages with the same ``key`` go to one queue, in the order they are sent.

    ``index_keys`` are for searching, without effect on the order, and hold no white space; names and values of
    ``properties`` are text.

    One of three arguments defers its delivery: ``delay_level`` (1 is the first of the broker's levels: 1s 5s 10s 30s 1m
    2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h, unless the broker has others), ``delay_s`` (seconds from the call that
    sends it, by the clock of this machine), or ``deliver_at`` (a time; local if it has no zone). A time in the past
    does not defer it.
    """

    topic: str
    body: bytes
    _: KW_ONLY
    key: str | None = None
    tag: str | None = None
    index_keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_level: int = 0
    delay_s: float | None = None
    deliver_at: datetime | None = None
    delay: Delay | None = field(default=None, init=False, repr=False, compare=False)  # what the three come to
    extras: int = field(
        default=0, init=False, repr=False, compare=False
    )  # what it has: TAG | INDEX_KEYS | PROPERTIES | DELAY | KEY

    def __new__(
        cls,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        index_keys: tuple[str, ...] = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        delay_s: float | None = None,
        deliver_at: datetime | None = None,
    ) -> Self:
        """Make it; it cannot be changed any more."""
        # Senders make millions: plain assignments to a draft take a quarter of what a frozen dataclass does.
        draft: Any = _new(_Draft)
        draft.topic = topic
        draft.body = body
        draft.key = key
        draft.tag = tag
        draft.index_keys = index_keys
        draft.properties = {} if properties is None else properties
        draft.delay_level = delay_level
        draft.delay_s = delay_s
        draft.deliver_at = deliver_at
        draft.delay = None
        draft.extras = 0
        if not isinstance(body, bytes):
            raise TypeError(f"body must be bytes, not {type(body).__name__}")
        if key is not None:
            draft.extras = KEY
            check_key(key)
        if tag is not None or index_keys or properties:
            _check_rich(draft)
        if delay_level != 0 or delay_s is not None or deliver_at is not None:
            draft.delay = delay_of(delay_level, delay_s, deliver_at)
            draft.extras |= DELAY if draft.delay is not None else 0
        draft.__class__ = cls
        return draft  # type: ignore[no-any-return]  # it is one now

    def __init_subclass__(cls) -> None:
        raise TypeError("Message cannot be subclassed: keep what belongs to it beside it, or in its properties")

    def __reduce__(self) -> tuple[Any, ...]:
        return _message_of, ({of.name: getattr(self, of.name) for of in fields(self) if of.init},)


class _Draft:
    """A message while it is made: it can be written, and lies in memory as a :class:`Message`, which it becomes."""

    __slots__ = tuple(of.name for of in fields(Message))


def _message_of(given: Mapping[str, Any]) -> Message:
    """Return the message with these fields: how a pickled one comes back."""
    return Message(**given)


_new = object.__new__

if native is not None:  # most have nothing but a body; this class makes the others, and words the errors
    native.quicken_messages(Message, partial(Message.__new__, Message))


def gather(messages: tuple[Message, ...]) -> tuple[list[bytes], int]:
    """
    The bodies of messages, one at least, and what any of them has besides: TAG | INDEX_KEYS | PROPERTIES | DELAY | KEY.

    Raises:
        ValueError: they have different topics.
    """
    if native is not None and (found := native.gather_messages(messages)) is not None:
        return found
    return gather_any(messages)


def gather_any(messages: tuple[Message, ...]) -> tuple[list[bytes], int]:
    """The same, without a compiled function."""
    if [message.topic for message in messages].count(messages[0].topic) != len(messages):
        raise ValueError("the messages of one send_many must have one topic: call it once for each")
    extras = 0
    for some in set(map(attrgetter("extras"), messages)):
        extras |= some
    return [message.body for message in messages], extras


def column(messages: Sequence[Message], name: str) -> list[Any]:
    """What each of the messages has in the field of this name."""
    found = None if native is None else native.message_column(messages, name)
    return list(map(attrgetter(name), messages)) if found is None else found


def check_key(key: str) -> None:
    """
    Refuse a key that orders no messages.

    Raises:
        TypeError: it is not a text.
        ValueError: it is empty, which is how a batch stores that there is none.
    """
    if not isinstance(key, str):
        raise TypeError(f"the key must be a str, got {key!r}: write str(key), or selector=by_int for a Java Integer")
    if not key:
        raise ValueError("the key is empty: give a text, or leave it out")


def _check_rich(draft: Any) -> None:
    draft.extras |= bool(draft.tag) * TAG | bool(draft.index_keys) * INDEX_KEYS | bool(draft.properties) * PROPERTIES
    if isinstance(draft.index_keys, str):
        raise TypeError(f"index_keys must be a tuple of texts: ({draft.index_keys!r},)")
    for key in draft.index_keys:
        if not isinstance(key, str):
            raise TypeError(f"the index key {key!r} must be a text")
        if key.split() != [key]:
            raise ValueError(f"the index key {key!r} is empty or holds white space")
    if draft.tag is not None:
        _check_tag(draft.tag)
    for name, value in draft.properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"the property {name!r} must have a text as name and as value")
        if not name:
            raise ValueError("the name of a property is empty")


@lru_cache(maxsize=1024)  # there are few tags, and many messages with each
def _check_tag(tag: str) -> None:
    if not isinstance(tag, str):
        raise TypeError(f"the tag {tag!r} must be a text")
    if tag.split() != [tag] or "|" in tag:
        raise ValueError(f"the tag {tag!r} is empty or holds white space or '|'")
    if len(tag) * 4 > MAX_TAG and len(tag.encode()) > MAX_TAG:
        raise ValueError(f"the tag {tag[:20]!r}... has {len(tag.encode())} bytes: at most {MAX_TAG}")


class StoredMessage:
    """
    A message as consumers see it. ``body`` is its own ``bytes``; everything else is decoded on access.

    ``attempt`` is 1 at its first delivery and increases with each; hand-overs and restarts do not reset it.
    """

    __slots__ = ("_index", "_origin", "attempt", "body")

    body: bytes
    attempt: int  # set by the consumer before each delivery
    _origin: BatchOrigin
    _index: int

    @property
    def topic(self) -> str:
        """The topic it was sent to; a retry shows the topic of its original."""
        topic = self._origin.topic
        if not topic.startswith(RETRIES):
            return topic
        return unwrap(self._origin.namespace, self.properties.get(ORIGIN_TOPIC, topic))

    @property
    def stored_topic(self) -> str:
        """The topic where the broker stores it: for a retry, the retry topic of the group."""
        return self._origin.header.topic

    @property
    def log_epoch(self) -> int:
        """
        The start of the broker that stored it.

        It never decreases along a queue, and after a restore it is higher than in any message that the restore lost:
        ``(log_epoch, queue_offset)`` orders the messages of a queue across a restore, which offsets alone do not.
        """
        return self._origin.header.log_epoch

    @property
    def due_at(self) -> datetime | None:
        """When a deferred message is delivered, as a copy; None for a message that has its offset in a queue."""
        header = self._origin.header
        return from_us(header.base_offset) if header.kind == KIND_PARKED else None

    @property
    def queue_id(self) -> int:
        """Its queue in the topic."""
        return self._origin.header.queue_id

    @property
    def queue_offset(self) -> int:
        """Its offset in the queue; -1 while it is deferred, since it has none yet."""
        header = self._origin.header
        return -1 if header.kind == KIND_PARKED else header.base_offset + self._index

    @property
    def message_id(self) -> str:
        """32 hex digits that never change."""
        return self._origin.message_id(self._index)

    @property
    def copy_of(self) -> str | None:
        """
        The id of the message that it was copied from; None for an original.

        A deferred message is delivered as a copy: this is the id in its producer's receipt.
        """
        return self._origin.copy_of(self._index)

    @property
    def tag(self) -> str | None:
        """Its tag, if any."""
        return self._origin.columns.tag(self._index)

    @property
    def index_keys(self) -> tuple[str, ...]:
        """The keys to search for it by; they have no effect on its order."""
        return self._origin.columns.index_keys_of(self._index)

    @property
    def properties(self) -> dict[str, str]:
        """A new dictionary of its properties."""
        return self._origin.columns.properties_of(self._index)

    @property
    def key(self) -> str | None:
        """The key that orders it, None without one; what is sent with it goes to the queue that keys choose for it."""
        return self._origin.columns.key(self._index)

    @property
    def born_at(self) -> datetime:
        """When its producer made it."""
        return from_us(self._origin.columns.born_at_of(self._index))

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it."""
        return from_us(self._origin.header.stored_at)

    def __repr__(self) -> str:
        return f"<StoredMessage {self.topic}/{self.queue_id} offset {self.queue_offset}, {len(self.body)} bytes>"


def stored_messages(origin: BatchOrigin, bodies: Iterable[bytes], indexes: Sequence[int]) -> list[StoredMessage]:
    """
    Return the messages at some indexes of a batch, with these bodies.

    The class has no ``__init__``: calling one per message would cost more than everything else here.
    """
    message: StoredMessage
    messages = list(starmap(StoredMessage, repeat((), len(indexes))))
    for message, message.body, message._index in zip(messages, bodies, indexes, strict=True):
        message._origin = origin
        message.attempt = 1
    return messages


def from_us(microseconds: int) -> datetime:
    """Return a point in time, in UTC."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
