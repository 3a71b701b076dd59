"""
Deferred batches: which ones wait for their time, how far delivery has come, and when a batch is due.

Batches are delivered strictly in the order of ``(due_at, position)``, so one such pair, the *watermark*, says which
of them are delivered: all up to it. A waiting batch takes 24 bytes, big-endian, so that the order of the bytes is the
order of delivery. They lie in chunks of some hundred, in that order always: every operation touches a chunk or two,
however many wait, and nothing is ever sorted. Chunks are replaced, never changed, so that a checkpoint shares them.

The clock of delivery never falls, and no batch waits longer because a clock was set back. It is the wall clock. When
that is set back, the old time continues at nearly the rate of a monotonic clock until the wall clock has caught up or
the broker restarts: a little slower, since times that users name are early until then. A step back of some
milliseconds, as time servers make them, is waited for instead.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch import layout
from rmq.wire.errors import BadDelay

ENTRY: Final = struct.Struct(">QQII")
CHUNK: Final = 256  # batches
_SIZE: Final = ENTRY.size
_KEY: Final = struct.Struct(">QQ")
_LAST_SUFFIX: Final = b"\xff" * (_SIZE - _KEY.size)


class DeferredBatch(NamedTuple):
    """A batch that waits: when it is due (us), where it lies, how many bytes and messages it has."""

    due_at: int
    position: int
    size: int
    messages: int


class DeliveryMark(NamedTuple):
    """A place in the order of delivery."""

    due_at: int = 0
    position: int = 0


class DelayTable:
    """
    All that waits. ``grain_bytes``: how finely it is known from where on the log is needed; a segment is fine enough.

    Nothing may be added at or below the watermark: see :meth:`earliest`.
    """

    def __init__(self, grain_bytes: int = 1 << 30, *, chunk: int = CHUNK) -> None:
        self._grain = max(grain_bytes, 1)
        self._most = chunk * _SIZE
        self._chunks: list[bytes] = []  # none is empty
        self._firsts: list[bytes] = []  # the first batch of each
        self._grains: dict[int, int] = {}  # how many wait in each part of the log
        self.reached = DeliveryMark()
        self.batches = 0
        self.messages = 0

    def __len__(self) -> int:
        return self.batches

    def earliest(self, due_at: int) -> int:
        """The earliest time, not before ``due_at``, that a batch at the end of the log may be given."""
        return max(due_at, self.reached.due_at, 1)

    def add(self, entry: DeferredBatch) -> None:
        """A batch waits from now on."""
        packed = ENTRY.pack(*entry)
        i = max(bisect_right(self._firsts, packed) - 1, 0)
        at = _up_to(self._chunks[i], packed) if self._chunks else 0
        if at == self._most:  # as times rise mostly, a chunk that is full stays so
            i, at = i + 1, 0
        chunk = self._chunks[i] if i < len(self._chunks) else b""
        whole = chunk[:at] + packed + chunk[at:]
        if len(whole) <= self._most:
            self._put(i, i + 1, [whole])
        elif not at:
            self._put(i, i, [packed])
        else:
            half = len(whole) // _SIZE // 2 * _SIZE
            self._put(i, i + 1, [whole[:half], whole[half:]])
        self._count(entry.position, 1)
        self.batches += 1
        self.messages += entry.messages

    def load(self, entries: Iterable[DeferredBatch]) -> None:
        """Many batches wait from now on, in a table where none did."""
        assert not self._chunks
        records = sorted(ENTRY.pack(*entry) for entry in entries)
        chunk = self._most // _SIZE
        self._put(0, 0, [b"".join(records[i : i + chunk]) for i in range(0, len(records), chunk)])
        for _, position, _, messages in map(ENTRY.unpack, records):
            self._count(position, 1)
            self.messages += messages
        self.batches = len(records)

    def _put(self, first: int, end: int, chunks: list[bytes]) -> None:
        """Put chunks in the place of others."""
        self._chunks[first:end] = chunks
        self._firsts[first:end] = [chunk[:_SIZE] for chunk in chunks]

    def _count(self, position: int, by: int) -> None:
        grain = position // self._grain
        count = self._grains[grain] = self._grains.get(grain, 0) + by
        if not count:
            del self._grains[grain]

    @property
    def next_due(self) -> int:
        """When the next batch is due; 0 if none waits."""
        return int.from_bytes(self._firsts[0][:8], "big") if self._firsts else 0

    @property
    def oldest(self) -> int | None:
        """A position of the log before which nothing waits, None if nothing waits at all."""
        return min(self._grains) * self._grain if self._grains else None

    def due(self, now_us: int, *, max_batches: int, max_bytes: int) -> list[DeferredBatch]:
        """The next batches whose time has come, in order, at least one if there is any."""
        found: list[DeferredBatch] = []
        size = 0
        for entry in self._after(DeliveryMark(), max_batches):
            size += entry.size
            if entry.due_at > now_us or (found and size > max_bytes):
                break
            found.append(entry)
        return found

    def page(self, after: DeliveryMark, limit: int) -> list[DeferredBatch]:
        """Return the batches after a place of the order, at most so many."""
        return list(self._after(after, limit))

    def _after(self, place: DeliveryMark, limit: int) -> Iterator[DeferredBatch]:
        i, at = self._find(place)
        while limit > 0 and i < len(self._chunks):
            part = self._chunks[i][at : at + limit * _SIZE]
            limit -= len(part) // _SIZE
            yield from map(DeferredBatch._make, ENTRY.iter_unpack(part))
            i, at = i + 1, 0

    def _find(self, place: DeliveryMark) -> tuple[int, int]:
        """Return the chunk, and the byte in it, after all batches up to a place of the order."""
        bound = _KEY.pack(*place) + _LAST_SUFFIX
        i = bisect_right(self._firsts, bound) - 1
        return (i, _up_to(self._chunks[i], bound)) if i >= 0 else (0, 0)

    def reach(self, mark: DeliveryMark) -> None:
        """All up to a place of the order was delivered, or passed for good."""
        self.reached = max(self.reached, mark)
        i, at = self._find(self.reached)
        if not at:
            return
        gone = [*self._chunks[:i], self._chunks[i][:at]]
        rest = self._chunks[i][at:]
        self._put(0, i + 1, [rest] if rest else [])
        for chunk in gone:
            for _, position, _, messages in ENTRY.iter_unpack(chunk):
                self._count(position, -1)
                self.batches -= 1
                self.messages -= messages

    def set_back(self, now_us: int) -> None:
        """
        The clock shows less than the watermark: it was ahead when that was reached.

        What was delivered is not here any more, and what waits is due later still. So batches may be given times from
        now on again; from a time below the watermark a start sees that this has happened.
        """
        self.reached = min(self.reached, DeliveryMark(now_us))

    def packed(self) -> list[bytes]:
        """All that waits, for a checkpoint: in pieces of at most a chunk, which are shared and not copied."""
        return self._chunks[:]


def _up_to(chunk: bytes, bound: bytes) -> int:
    """Return the byte after all batches of a chunk that are not above a bound."""
    count = len(chunk) // _SIZE
    if chunk[-_SIZE:] <= bound:
        return len(chunk)
    return bisect_right(range(count), bound, key=lambda i: chunk[i * _SIZE : (i + 1) * _SIZE]) * _SIZE


SMALL_STEP_US: Final = 50_000
RATE: Final = 998_000  # microseconds that it shows a second until then: a step of 1 s is made up for in 500


class DelayClock:
    """Microseconds since 1970, from what both clocks show."""

    def __init__(self) -> None:
        self._last = 0
        self._since = 0, 0.0  # what it and the other clock showed when the wall clock was last believed

    def read(self, wall_us: int, steady_s: float) -> int:
        """The time, never less than the last one."""
        lag_us = self._last - wall_us
        if lag_us <= 0:
            self._last = wall_us
            self._since = wall_us, steady_s
        elif lag_us <= SMALL_STEP_US:
            self._since = self._last, steady_s
        else:
            then, then_s = self._since
            self._last = max(self._last, then + int((steady_s - then_s) * RATE))
        return self._last


log = get_broker_logger(__name__)


class Delays:
    """``levels`` are lengths in microseconds, from level 1 on; ``now_us`` is the clock of delivery."""

    def __init__(
        self, table: DelayTable, levels: Sequence[int], *, max_delay_s: float, now_us: Callable[[], int]
    ) -> None:
        self._table = table
        self._levels = levels
        self._longest = int(max_delay_s * 1_000_000)
        self.now_us = now_us

    def start(self, newest_us: int) -> None:
        """
        Go by the clock as it is now, whatever it showed before the broker stopped; ``newest_us`` is in the log.

        What waits keeps its time, so that it is late by as much as the clock was set back meanwhile: that is logged. A
        clock that is late by a moment is waited for, as it is while the broker runs.
        """
        now, reached = self.now_us(), self._table.reached.due_at
        lag_us = max(reached, newest_us if self._table.batches else 0) - now
        if lag_us > SMALL_STEP_US:
            log.warning("delay.clock_set_back", by_s=round(lag_us / 1e6, 3), waiting_batches=self._table.batches)
        if reached - now > SMALL_STEP_US:
            self._table.set_back(now)

    def due_at(self, header: layout.Header) -> int:
        """
        When a producer's batch is due; 0: deliver it now.

        Raises:
            BadDelay: there is no such level, or that is too far away.
        """
        if not (header.delay_level or header.deliver_at):
            return 0
        now = self.now_us()
        if header.delay_level:
            if header.delay_level > len(self._levels):
                raise BadDelay(
                    f"there is no delay level {header.delay_level}: this broker has 1 to {len(self._levels)}"
                )
            due_at = now + self._levels[header.delay_level - 1]
        else:
            due_at = header.deliver_at
        if due_at <= now:
            return 0
        if due_at - now > self._longest:
            far, most = (due_at - now) / 1e6, self._longest / 1e6
            raise BadDelay(f"a delay of {far:.0f} s is longer than this broker allows (max_delay_s = {most:.0f})")
        return self._allowed(due_at)

    @property
    def last_level(self) -> int:
        """The last level there is."""
        return len(self._levels)

    def due_of_level(self, level: int) -> int:
        """When something that the broker itself puts off is due: after that level, or the longest there is."""
        return self._allowed(self.now_us() + self._levels[min(max(level, 1), len(self._levels)) - 1])

    def _allowed(self, due_at: int) -> int:
        return min(self._table.earliest(due_at), layout.MAX_TIME - 1)
