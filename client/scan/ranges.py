"""
What a scan reads: ranges of queues, frozen when the scan is planned, each readable on its own and anywhere.

Pure functions of what the user asked for and what the topics hold. The ranges of a plan are disjoint, cover exactly
what was asked for, and are in the order of topics, queues and offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq.engine.native.source import QueueRange
from rmq.wire.errors import ConfigError, OffsetOutOfRange, QueueNotFound, RmqError, WireError, from_wire
from rmq.wire.stores import StoreIds

from .bounds import EARLIEST, OLDEST, Bound

if TYPE_CHECKING:
    from .options import ScanOptions

DEFAULT_RECORDS: Final = 1_000_000
MIN_SPLIT_ROWS: Final = 16_384  # a smaller piece is read faster than a task for it is started


class QueueBounds(NamedTuple):
    """A queue holds ``[min_offset, max_offset)``; where a bound is a time, it lies at ``start_at`` or ``end_at``."""

    min_offset: int
    max_offset: int
    start_at: int | None = None
    end_at: int | None = None


class TopicBounds(NamedTuple):
    """A topic as it is now, and its queues by id."""

    topic: str
    generation: int
    queues: dict[int, QueueBounds]


def chosen_queues(topic: str, existing: Collection[int], options: ScanOptions) -> list[int]:
    """
    The queues of a topic that are read.

    Raises:
        QueueNotFound: one that was asked for does not exist.
        ConfigError: offsets are missing for some of them, or given for others.
    """
    chosen = sorted(existing if options.queues is None else options.queues)
    if missing := set(chosen).difference(existing):
        raise QueueNotFound(
            f"topic {topic} has no queue {_listed(missing)}; the topic has the queues {_listed(existing)}"
        )
    for bound in (options.start, options.end):
        if bound.offsets is not None:
            _check_named(f"queues of topic {topic}", bound, bound.offsets.get(topic, {}), chosen)
    return chosen


def check_topics(topics: Collection[str], options: ScanOptions) -> None:
    """
    Compare the topics that are read with those that offsets are given for.

    Raises:
        ConfigError: they are not the same.
    """
    for bound in (options.start, options.end):
        if bound.offsets is not None:
            _check_named("topics", bound, bound.offsets, topics)


def ranges(options: ScanOptions, topics: Iterable[TopicBounds], stores: StoreIds) -> list[QueueRange]:
    """
    The range of each queue, empty ones too.

    Raises:
        OffsetOutOfRange: messages that were asked for are deleted, or an offset is not reached.
        ConfigError: a range ends before it starts.
    """
    found = []
    for topic in topics:
        for queue_id, held in sorted(topic.queues.items()):
            start, end = resolve(options, topic.topic, queue_id, held)
            found.append(
                QueueRange(options.broker, stores, topic.topic, topic.generation, queue_id, start, end, options.path)
            )
    return found


def resolve(options: ScanOptions, topic: str, queue_id: int, held: QueueBounds) -> tuple[int, int]:
    """The range of one queue; raises as :func:`ranges` does."""
    place = f"topic {topic}, queue {queue_id}"
    start, end = options.start, options.end
    first = _offset(start, topic, queue_id, held, held.start_at)
    last = _offset(end, topic, queue_id, held, held.end_at)
    if first > last and first == start.exact(topic, queue_id) and last == end.exact(topic, queue_id):
        raise ConfigError(f"{place}: {start.name} {first} is after {end.name} {last}")
    last = max(first, last)  # a time or a word behind the other bound: there is nothing between
    for bound, offset in ((start, first), (end, last)):
        if offset > held.max_offset and offset == bound.exact(topic, queue_id):
            raise OffsetOutOfRange(f"{place} holds {held.min_offset} to {held.max_offset}: {bound.name} is {offset}")
    if first < held.min_offset and not options.manner.skip_lost:
        raise OffsetOutOfRange(
            f"{place}: the messages from offset {first} to {held.min_offset} are deleted; {start.name} {EARLIEST} "
            "reads what is left, and failOnDataLoss false continues after them"
        )
    return first, last


def split(
    parts: Sequence[QueueRange], *, max_records: int, min_partitions: int | None, cores: int = 1
) -> list[QueueRange]:
    """
    Cut ranges into pieces, in order, none over ``max_records``; empty ranges vanish.

    Where those are fewer than ``min_partitions``, ranges are cut in proportion to their length. Nothing said, there
    is a piece for every core, as long as it is worth a task.
    """
    full = [part for part in parts if part.rows]
    total = sum(part.rows for part in full)
    wanted = min(cores, total // MIN_SPLIT_ROWS) if min_partitions is None else min_partitions
    pieces = [max(-(-part.rows // max_records), 1) for part in full]
    if sum(pieces) < wanted:
        pieces = [max(pair) for pair in zip(pieces, _shares([part.rows for part in full], wanted), strict=True)]
    return [piece for part, count in zip(full, pieces, strict=True) for piece in _cut(part, count)]


def _shares(rows: Sequence[int], wanted: int) -> list[int]:
    """
    How many pieces each range is cut into, so that all together are at least ``wanted``, rows permitting.

    Those that are short against the others stay whole, and do not count when the others share what is left.
    """
    total = sum(rows)
    short = {i for i, length in enumerate(rows) if _share(length, total, wanted) == 1}
    rest = sum(length for i, length in enumerate(rows) if i not in short)
    left = max(wanted - len(short), 1)
    counts = [1 if i in short else min(_share(length, rest, left), length) for i, length in enumerate(rows)]
    # Rounding may have lost some: the longest pieces are cut once more.
    while sum(counts) < wanted and any(count < length for count, length in zip(counts, rows, strict=True)):
        longest = max(range(len(rows)), key=lambda i: rows[i] / counts[i] if counts[i] < rows[i] else 0)
        counts[longest] += 1
    return counts


def _share(length: int, total: int, wanted: int) -> int:
    return max((2 * length * wanted + total) // (2 * total), 1)  # rounded to the nearest, halves up


def _cut(part: QueueRange, pieces: int) -> list[QueueRange]:
    bounds = [part.start + part.rows * i // pieces for i in range(pieces + 1)]
    return [replace(part, start=bounds[i], end=bounds[i + 1]) for i in range(pieces)]


def _offset(bound: Bound, topic: str, queue_id: int, held: QueueBounds, at: int | None) -> int:
    if bound.time_us is not None:
        assert at is not None  # requested together with what the topic holds
        return at
    exact = bound.exact(topic, queue_id)
    if exact is not None:
        return exact
    mark = bound.mark if bound.offsets is None else bound.offsets[topic][queue_id]
    return held.min_offset if mark == OLDEST else held.max_offset


def _check_named(what: str, bound: Bound, named: Collection[object], read: Collection[object]) -> None:
    missing, extra = set(read).difference(named), set(named).difference(read)
    if missing or extra:
        faults = [f"{_listed(missing)} missing"] * bool(missing) + [f"{_listed(extra)} too many"] * bool(extra)
        raise ConfigError(
            f'the option "{bound.name}" names the {what} {_listed(named)}, but {_listed(read)} are read: '
            f"{' and '.join(faults)}"
        )


def _listed(some: Collection[object]) -> str:
    return ", ".join(map(str, sorted(some))) if some else "none"  # type: ignore[type-var]  # ids or names


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Put the place in front of every error of rmq that is raised inside."""
    try:
        yield
    except WireError as error:
        raise from_wire(error.code, f"{place}: {error}") from error
    except RmqError as error:
        raise type(error)(f"{place}: {error}") from error
