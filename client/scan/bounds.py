"""
The bounds of a scan: a word, a point in time, or offsets by topic and queue, which may have been saved by a reader.

Pure: text in, :class:`Bound` out; :mod:`rmq.client.scan.ranges` applies it to a queue.

An offset alone does not identify the message before it: a broker that was restored from a backup gives the same
offsets to other messages. So saved offsets come with their history, which is the id of the store and the log epoch of
that message. The next scan compares them before it reads (:mod:`rmq.client.scan.plan`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from rmq.wire.batch.layout import Header
from rmq.wire.errors import OK, ConfigError, from_wire
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import QueueRef, Range
from rmq.wire.stores import MAX_LOG_EPOCH, StoreIds

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
OLDEST: Final = -2  # how Kafka's source writes the two words inside of JSON
NEWEST: Final = -1
_MARKS: Final = {EARLIEST: OLDEST, LATEST: NEWEST}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LAST_MS: Final = 253_402_300_799_999  # the year 9999
_STORE_ID: Final = re.compile("[0-9a-f]{16}")
MAX_DIGITS: Final = 18  # of a number; what has more is no offset, and may not fit the wire
Offsets = Mapping[str, Mapping[int, int]]
"""By topic and queue; :data:`OLDEST` and :data:`NEWEST` stand for the bounds of the queue."""


@dataclass(frozen=True, slots=True)
class Bound:
    """
    One end of what is read; ``name`` is what the user calls it.

    Exactly one of the next three is set: a ``mark`` for all queues, offsets, or the time of the first message after the
    bound. Offsets may come with their history.
    """

    name: str
    mark: int | None = None
    offsets: Offsets | None = None
    time_us: int | None = None
    history: SavedHistory | None = None

    def exact(self, topic: str, queue_id: int) -> int | None:
        """Return the offset that is named for a queue; None if a word or a time stands for it."""
        offset = self.offsets[topic][queue_id] if self.offsets is not None else -1
        return offset if offset >= 0 else None


def start_of(given: Mapping[str, str]) -> Bound:
    """The start that options ask for: everything, if nothing is said."""
    return _bound(given, "startingOffsets", "startingTimestamp", OLDEST)


def end_of(given: Mapping[str, str]) -> Bound:
    """The end that options ask for: what there is now, if nothing is said."""
    return _bound(given, "endingOffsets", "endingTimestamp", NEWEST)


def check_order(start: Bound, end: Bound) -> None:
    """
    Refuse an end that lies before the start, as far as that is known without asking anybody.

    Raises:
        ConfigError: it does.
    """
    if start.time_us is not None and end.time_us is not None and start.time_us > end.time_us:
        raise ConfigError(
            f'the option "{start.name}" is {time_text(start.time_us)}, '
            f'which is later than "{end.name}" {time_text(end.time_us)}'
        )


def time_text(time_us: int) -> str:
    """A time as people read it."""
    return (_EPOCH + time_us * _MICROSECOND).isoformat().replace("+00:00", "Z")


def is_number(text: str) -> bool:
    """Whether a text is a whole number from 0 that can be an offset, an id or a count."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def _bound(given: Mapping[str, str], by_offset: str, by_time: str, default: int) -> Bound:
    offsets, time = given.get(by_offset.lower()), given.get(by_time.lower())
    if offsets is not None and time is not None:
        raise ConfigError(f'the options "{by_offset}" and "{by_time}" say the same in two ways: leave one of them out')
    if time is not None:
        return Bound(by_time, time_us=_time(by_time, time))
    if offsets is None:
        return Bound(by_offset, default)
    text = offsets.strip()
    if text.startswith("{"):
        return _offsets(by_offset, text, default)
    return Bound(by_offset, _mark(by_offset, text, default, "for all queues"))


def _mark(name: str, text: str, default: int, where: str) -> int:
    mark = _MARKS.get(text.lower())
    if mark is None:
        allowed = EARLIEST if default == OLDEST else LATEST
        raise ConfigError(
            f'the option "{name}" is "{allowed}" or offsets by topic and queue, '
            f'such as {{"orders": {{"0": 17, "1": "{allowed}"}}}}, not {text!r}'
        )
    return _allowed(name, mark, default, where)


def _allowed(name: str, mark: int, default: int, where: str) -> int:
    if mark != default:
        word, other = (LATEST, EARLIEST) if default == OLDEST else (EARLIEST, LATEST)
        reason = "a batch that starts there reads nothing" if default == OLDEST else "a batch that ends there is empty"
        raise ConfigError(f'the option "{name}" cannot be "{word}" {where}: {reason}; "{other}" is what you may want')
    return mark


def _offsets(name: str, text: str, default: int) -> Bound:
    try:
        # Pairs, since a queue that is named twice would otherwise be read from the last of its offsets.
        parsed = json.loads(text, object_pairs_hook=_pairs)
    except ValueError as error:
        raise ConfigError(f'the option "{name}" is not JSON: {error}') from None
    saved = parsed.pop(HISTORY, None)
    if not parsed:
        raise ConfigError(f'the option "{name}" names no topic')

    def offset(where: str, value: object) -> int:
        return _offset(name, where, value, default)

    offsets = {topic: _by_queue(name, topic, queues, offset) for topic, queues in parsed.items()}
    history = None if saved is None else _history(name, saved, offsets, default)
    return Bound(name, offsets=offsets, history=history)


def _history(name: str, saved: object, offsets: Offsets, default: int) -> SavedHistory | None:
    if default != OLDEST:
        raise ConfigError(f'the option "{name}" has "{HISTORY}", which belongs to startingOffsets only: leave it out')
    epochs = saved.get(EPOCHS) if isinstance(saved, dict) and saved.keys() == {STORE, EPOCHS} else None
    if not isinstance(saved, dict) or not isinstance(epochs, dict):
        raise ConfigError(
            f'the option "{name}" has {saved!r} for "{HISTORY}" where a store and log epochs are due: '
            f'{{"{STORE}": "9c0e5f7a1b2c3d4e", "{EPOCHS}": {{"orders": {{"0": 26961234}}}}}}'
        )

    def epoch(where: str, value: object) -> int:
        return _epoch(name, where, value)

    found = {topic: _by_queue(name, topic, queues, epoch, "log epochs") for topic, queues in epochs.items()}
    for topic, queues in found.items():
        for queue_id in queues:
            if queue_id not in offsets.get(topic, {}):
                raise ConfigError(
                    f'the option "{name}" has a log epoch in "{HISTORY}" for queue {queue_id} of {topic}, and no offset'
                )
    store_id = _store_id(name, saved[STORE])
    return SavedHistory(store_id, found) if store_id else None  # 0: of a broker that named no store


def _store_id(name: str, value: object) -> int:
    if not isinstance(value, str) or not _STORE_ID.fullmatch(value):
        raise ConfigError(f'the option "{name}" has {value!r} for the store in "{HISTORY}": its id has 16 hex digits')
    return int(value, 16)


def _epoch(name: str, where: str, value: object) -> int:
    if isinstance(value, str) and is_number(value):
        value = int(value)
    if type(value) is not int or not 0 <= value <= MAX_LOG_EPOCH:
        raise ConfigError(
            f'the option "{name}" has {value!r} in "{HISTORY}" {where}: a log epoch is a whole number below 2^31'
        )
    return value


def _pairs(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it names {key!r} twice")
        found[key] = value
    return found


def _by_queue(
    name: str, topic: str, queues: object, read: Callable[[str, object], int], what: str = "offsets"
) -> dict[int, int]:
    if not isinstance(queues, dict):
        raise ConfigError(
            f'the option "{name}" has {queues!r} for {topic!r} where {what} by queue are due: '
            '{"' + topic + '": {"0": 17}}'
        )
    found: dict[int, int] = {}
    for key, value in queues.items():
        if not is_number(key):
            raise ConfigError(f'the option "{name}" names the queue {key!r} of {topic}: queues are numbers from 0')
        if int(key) in found:
            raise ConfigError(f'the option "{name}" names the queue {int(key)} of {topic} twice')
        found[int(key)] = read(f"for queue {int(key)} of {topic}", value)
    return found


def _offset(name: str, where: str, value: object, default: int) -> int:
    if isinstance(value, str):
        value = _MARKS.get(value.lower(), value)
    if isinstance(value, str) and is_number(value):
        value = int(value)
    if type(value) is not int or not OLDEST <= value < 10**MAX_DIGITS:
        raise ConfigError(
            f'the option "{name}" has {value!r} {where}: an offset is a whole number from 0, "{EARLIEST}" or "{LATEST}"'
        )
    return value if value >= 0 else _allowed(name, value, default, where)


def _time(name: str, text: str) -> int:
    text = text.strip()
    if is_number(text) and int(text) <= _LAST_MS:
        return int(text) * 1000
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f'the option "{name}" is {text!r}: a time is written 2026-01-31T12:00:00Z, or in milliseconds since 1970'
        ) from None
    if time.tzinfo is None:
        raise ConfigError(f'the option "{name}" is {text!r}, which has no time zone: write {text}Z for UTC')
    # Nothing was stored before 1970, and no time after the year 9999 of UTC can be shown.
    return min(max((time - _EPOCH) // _MICROSECOND, 0), _LAST_MS * 1000)


HISTORY: Final = "@history"  # no topic can be called so
STORE: Final = "store"
EPOCHS: Final = "epochs"


class SavedHistory(NamedTuple):
    """The store that offsets were saved of, and by topic and queue the log epoch of the message before each."""

    store_id: int
    epochs: Mapping[str, Mapping[int, int]]

    def has_read(self, header: Header, stores: StoreIds) -> bool:
        """
        Return whether the message before a saved offset, in a batch with this header, is the one that was read.

        The message itself shows it. If it is another one, or cannot be read, :meth:`log_epoch` is what the broker needs
        to say where the two histories part.
        """
        if saved := self.epochs.get(header.topic, {}).get(header.queue_id, 0):
            return header.log_epoch == saved
        former = stores.find(self.store_id)
        return former is None or header.physical_offset < former.until

    def log_epoch(self, topic: str, queue_id: int, stores: StoreIds) -> int:
        """
        Return the log epoch for the broker to compare the offset of a queue by, in a store of these ids; 0: by none.

        Of a store that was copied since, the copy has no message that is later than its own first start.
        """
        saved = self.epochs.get(topic, {}).get(queue_id, 0)
        former = stores.find(self.store_id)
        if former is None:
            return saved
        last = former.log_epoch - 1
        return min(saved, last) if saved else last


def starting_offsets(queues: Iterable[MessageQueue | QueueRef], ranges: Iterable[Range]) -> dict[str, Any]:
    """
    Return the ends of queues with their history, to be saved as JSON: the ``startingOffsets`` of the next scan.

    ``ranges`` is what :meth:`rmq.client.Admin.ranges` returned for ``queues``. The offsets are under the name of their
    topic; they are the ``endingOffsets`` of a scan that ends there, without what is under ``"@history"``. A broker of
    an older version names no store: its offsets have no history.

    Raises:
        RmqError: one of the queues does not exist.
        ValueError: the ranges are of different stores.
    """
    offsets: dict[str, dict[str, int]] = {}
    epochs: dict[str, dict[str, int]] = {}
    stores = set()
    for (topic, queue_id), held in zip(queues, ranges, strict=True):
        if held.status != OK:
            raise from_wire(held.status, held.text or f"queue {queue_id} of topic {topic} was refused")
        stores.add(held.store_id)
        offsets.setdefault(topic, {})[str(queue_id)] = held.max_offset
        if held.log_epoch:
            epochs.setdefault(topic, {})[str(queue_id)] = held.log_epoch
    if len(stores) > 1:
        raise ValueError("the ranges are of different stores: ask one broker for all of them, once more")
    history = [{STORE: f"{store_id:016x}", EPOCHS: epochs} for store_id in stores if store_id]
    return offsets | ({HISTORY: history[0]} if history else {})
