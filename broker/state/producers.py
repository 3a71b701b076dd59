"""
The batches of each producer by number, so that each is stored once and in order.

A producer numbers its batches consecutively. The next number is appended, a known one is answered again, a later one
is refused until the missing one came. A number is *spent* by a batch that was stored and by one that was refused for
good; a refusal that may pass (the disk is full) leaves it to be used again. A higher epoch of a producer starts its
numbers again, and everything of a lower one is refused from then on.

The last batches lie in a ring of packed slots, 45 bytes each: as named tuples the last 256 of 20,000 producers would
take more than a gigabyte. A number that is spent and has no slot was not stored, as long as it is not below
``first_known``: refusals are not in the log, so after a crash they are the holes between what was stored.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from rmq.wire.errors import OutOfSequence, ProducerFenced, SequenceConflict, from_wire

from ..store.changes import ProducerEpoch, ProducerKnown


class Resumed(NamedTuple):
    """
    What became of the numbers that a producer asked for.

    ``fates`` are those from ``first`` on, up to the one before ``next_sequence``; what became of numbers below
    ``first`` is not known any more. ``known`` is False if this producer was not met before, or was forgotten.
    """

    next_sequence: int
    known: bool
    first: int
    fates: list[Known | Spent]


class ProducerTable:
    """
    All producers that were active within ``idle_s``, at most ``max_producers``; the longest idle is forgotten first.

    Rings take at most ``ring_bytes`` together: beyond that those of the longest idle are dropped. Such a producer is
    still known by its last number, so nothing of it is stored twice, but its old batches cannot be answered again.

    Producer 0 stands for all that did not ask for this: whatever it sends is new.
    """

    def __init__(
        self, window: int = 256, max_producers: int = 20_000, idle_s: float = 86_400.0, ring_bytes: int = 64 << 20
    ) -> None:
        self.window = window
        self.max_producers = max_producers
        self.idle_s = idle_s
        self.ring_bytes = ring_bytes
        self.used_bytes = 0  # by all rings
        self._producers: OrderedDict[int, ProducerRecord] = OrderedDict()  # the longest idle comes first
        self._covered = 0  # batches below this place of the log are in the table

    # What producers do

    def resume(self, producer_id: int, epoch: int, first_unresolved: int, *, now: float) -> ProducerEpoch | None:
        """
        A producer says hello and names the first number whose outcome it does not know.

        Returns the change to be recorded if this raised its epoch: a fenced one must stay so after a crash.

        Raises:
            ProducerFenced: a higher epoch of this producer was here.
        """
        if not producer_id:
            return None
        before = self._producers.get(producer_id)
        raised = epoch > (0 if before is None else before.epoch)
        producer = self._current(producer_id, epoch, first_unresolved, now)
        if first_unresolved > producer.last + 1:
            producer.pass_over(first_unresolved)
        return ProducerEpoch(producer_id, epoch, first_unresolved) if raised else None

    def resumed(self, producer_id: int, epoch: int, first_unresolved: int, *, last: int) -> Resumed:
        """
        What became of the numbers from ``first_unresolved`` to ``last``.

        Raises:
            ProducerFenced: a higher epoch of this producer was here.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return Resumed(first_unresolved, False, first_unresolved, [])
        self._fence(producer, producer_id, epoch)
        last = min(last, producer.last)
        first = max(first_unresolved, producer.first_known, last - self.window + 1)
        fates = [fate for number in range(first, last + 1) if (fate := producer.fate(number)) is not None]
        return Resumed(max(first_unresolved, last + 1), not producer.fresh, first, fates)

    def admit(self, producer_id: int, epoch: int, sequence: int, batch_crc: int, *, now: float) -> Known | None:
        """
        Judge a batch by its number: None to append it, or what is known of it from the first time.

        Raises:
            OutOfSequence: one before it is missing; it may be sent again when that one came.
            SequenceConflict: the number was spent for something else.
            ProducerFenced: a higher epoch of this producer was here.
            Refused: the same batch was refused for good before, for the same reason.
        """
        if not producer_id:
            return None
        producer = self._current(producer_id, epoch, sequence, now)
        if sequence == producer.last + 1:
            return None
        if sequence > producer.last:
            raise OutOfSequence(
                f"producer {producer_id:x} sent batch {sequence}, but {producer.last + 1} is next: send that one first"
            )
        return _known(producer, producer_id, sequence, batch_crc)

    def spend(self, producer_id: int, epoch: int, sequence: int, batch_crc: int, code: int, *, now: float) -> None:
        """A batch that was admitted was refused for good: its number will not be used again."""
        if not producer_id:
            return
        producer = self._current(producer_id, epoch, sequence, now)
        if sequence == producer.last + 1:
            before = len(producer.ring)
            producer.spend(sequence, batch_crc, code)
            self._account(producer, before)

    def record(  # noqa: PLR0917  # called for every batch: keywords would cost more than they say
        self, producer_id: int, epoch: int, sequence: int, batch_crc: int, base_offset: int, physical_offset: int,
        stored_at: int, end_position: int, *, now: float,
    ) -> None:  # fmt: skip
        """
        A batch was admitted and staged, or found in the log by recovery (not copies: those with an origin).

        A number that is not above the last one, or a lower epoch, means that the producer was forgotten in between:
        its line restarts.
        """
        if not producer_id:
            return
        producer = self._producers.get(producer_id)
        if producer is None or sequence <= producer.last or epoch != producer.epoch:
            producer = self._begin(producer_id, epoch, sequence, now)
        producer.seen_at = now
        self._producers.move_to_end(producer_id)
        before = len(producer.ring)
        producer.store((sequence, batch_crc, base_offset, physical_offset, stored_at, end_position))
        if len(producer.ring) != before:
            self._account(producer, before)

    def retract(self, producer_id: int, epoch: int, sequence: int) -> None:
        """A batch that was recorded or spent in this turn was not written: it and all after it were never there."""
        producer = self._producers.get(producer_id)
        if producer is not None and producer.epoch == epoch:
            producer.retract(sequence)

    # Time

    def expire(self, *, now: float) -> int:
        """Forget the producers that were idle for too long; returns how many."""
        before = len(self._producers)
        while self._producers and now - next(iter(self._producers.values())).seen_at > self.idle_s:
            self._forget_longest_idle()
        return before - len(self._producers)

    # From the log and back

    def rows(self, now: float, *, rings: bool) -> Iterator[ProducerKnown]:
        """
        All of the table for a snapshot, the longest idle first; without ``rings`` only the last numbers.

        Refusals are kept by the rings. A producer that only said hello has no row, unless others are fenced by it.
        """
        for producer_id, producer in list(self._producers.items()):
            if producer.fresh and not producer.epoch:
                continue
            packed = producer.pack() if rings else b""
            yield ProducerKnown(producer_id, producer.epoch, producer.last, max(0.0, now - producer.seen_at), packed)

    def apply(self, change: ProducerKnown, now: float) -> None:
        """
        A row of a snapshot. Rows come in the order of :meth:`rows`, before any header after the snapshot.

        A row without a ring takes nothing from what is known already: a walk over the whole log meets such rows too.
        """
        producer_id, epoch, last, idle_s, packed = change
        producer = self._producers.get(producer_id)
        if packed or producer is None or producer.epoch != epoch or last < producer.last:
            producer = self._begin(producer_id, epoch, last + 1, now)
            self._covered = max(self._covered, producer.unpack(packed, last))
            self._account(producer, 0)
        elif last > producer.last:
            producer.pass_over(last + 1)  # spent by refusals, which are not in the log
        producer.seen_at = now - idle_s
        self._producers.move_to_end(producer_id)

    def apply_epoch(self, change: ProducerEpoch, now: float) -> None:
        """An epoch that was raised by a hello."""
        producer = self._producers.get(change.producer_id)
        if producer is None or producer.epoch < change.epoch:
            self._begin(change.producer_id, change.epoch, change.first, now)

    def covers(self, position: int) -> None:
        """All batches below this place of the log are in the rows that were applied."""
        self._covered = max(self._covered, position)

    def replay(  # noqa: PLR0917  # as record
        self, producer_id: int, epoch: int, sequence: int, batch_crc: int, base_offset: int, physical_offset: int,
        stored_at: int, end_position: int, *, now: float,
    ) -> None:  # fmt: skip
        """A batch of the log, in log order. One that the table has already, from a snapshot, changes nothing."""
        if physical_offset < self._covered:
            return
        self._covered = end_position
        fields = (sequence, batch_crc, base_offset, physical_offset, stored_at, end_position)
        self.record(producer_id, epoch, *fields, now=now)

    # Questions

    def next_sequence(self, producer_id: int) -> int | None:
        """The number that is appended next, None for a producer that is not known."""
        producer = self._producers.get(producer_id)
        return None if producer is None else producer.last + 1

    def __len__(self) -> int:
        return len(self._producers)

    # Inside

    def _current(self, producer_id: int, epoch: int, sequence: int, now: float) -> ProducerRecord:
        """The producer's line, begun with this number if it has none of this epoch; refuses a lower epoch."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return self._begin(producer_id, epoch, sequence, now)
        if epoch != producer.epoch:
            self._fence(producer, producer_id, epoch)
            return self._begin(producer_id, epoch, sequence, now)
        producer.seen_at = now
        self._producers.move_to_end(producer_id)
        return producer

    @staticmethod
    def _fence(producer: ProducerRecord, producer_id: int, epoch: int) -> None:
        if epoch < producer.epoch:
            raise ProducerFenced(
                f"epoch {epoch} of producer {producer_id:x} was replaced by {producer.epoch}: "
                "another process goes on in its place, open a new producer"
            )

    def _begin(self, producer_id: int, epoch: int, first: int, now: float) -> ProducerRecord:
        old = self._producers.get(producer_id)
        if old is not None:
            self.used_bytes -= len(old.ring)
        producer = self._producers[producer_id] = ProducerRecord(epoch, first, self.window, now)
        self._producers.move_to_end(producer_id)
        if len(self._producers) > self.max_producers:
            self._forget_longest_idle()
        return producer

    def _forget_longest_idle(self) -> None:
        self.used_bytes -= len(self._producers.popitem(last=False)[1].ring)

    def _account(self, producer: ProducerRecord, before: int) -> None:
        """A ring has grown. Over the budget, an eighth of it is freed at once, so that the walk is a rare one."""
        self.used_bytes += len(producer.ring) - before
        if self.used_bytes <= self.ring_bytes:
            return
        for idle in self._producers.values():
            if self.used_bytes <= self.ring_bytes - (self.ring_bytes >> 3):
                break
            if idle.ring and idle is not producer:
                self.used_bytes -= len(idle.ring)
                idle.forget_ring()


def _known(producer: ProducerRecord, producer_id: int, sequence: int, batch_crc: int) -> Known:
    fate = producer.fate(sequence)
    if isinstance(fate, Known) and fate.batch_crc == batch_crc:
        return fate
    name = f"number {sequence} of producer {producer_id:x}"
    if isinstance(fate, Known):
        raise SequenceConflict(f"{name} was used for another batch: send these messages under a new number")
    if fate is None:
        raise SequenceConflict(
            f"{name} lies too far before the next one, {producer.last + 1}: whether it was stored is not known any more"
        )
    if fate.code and fate.batch_crc == batch_crc:
        raise from_wire(fate.code, f"{name} was refused when it came first, for the same reason")
    raise SequenceConflict(f"{name} was spent by a batch that was refused: send these messages under a new number")


SLOT: Final = struct.Struct("<BQIqQqQ")  # state, then the fields of Known, or number, checksum and code of Spent
_HEAD: Final = struct.Struct("<QH")  # of a packed line: the lowest number whose fate is known, the ring's length
_EMPTY: Final = 0
_STORED: Final = 1
_REFUSED: Final = 2


class Known(NamedTuple):
    """
    A batch that was appended; a parked one has ``base_offset`` -1.

    ``end_position``: the log must be durable to here before it is answered again.
    """

    sequence: int
    batch_crc: int
    base_offset: int
    physical_offset: int
    stored_at: int
    end_position: int


class Spent(NamedTuple):
    """A number that was used up without storing anything; ``code`` is the reason, 0: not known any more."""

    sequence: int
    batch_crc: int
    code: int


class ProducerRecord:
    """One producer: its epoch, its last spent number, and what became of the last ones."""

    __slots__ = ("epoch", "floor", "fresh", "last", "ring", "seen_at", "window")

    def __init__(self, epoch: int, first: int, window: int, now: float) -> None:
        self.epoch = epoch
        self.floor = first  # what was stored from here on has a slot, or had one within the window
        self.last = first - 1
        self.fresh = True  # nothing was spent since the line began: it may go on from one that was forgotten
        self.window = window
        self.seen_at = now
        self.ring = bytearray()  # as long as the highest slot in use; numbers that start low keep it short

    @property
    def first_known(self) -> int:
        """The lowest number whose fate is known."""
        return max(self.floor, self.last - self.window + 1)

    def fate(self, sequence: int) -> Known | Spent | None:
        """What became of a number that is not above the last; None if that is not known any more."""
        if sequence < self.first_known:
            return None
        at = sequence % self.window * SLOT.size
        if at + SLOT.size <= len(self.ring):
            state, number, crc, *rest = SLOT.unpack_from(self.ring, at)
            if number == sequence and state == _STORED:
                return Known(number, crc, *rest)
            if number == sequence and state == _REFUSED:
                return Spent(number, crc, rest[0])
        return Spent(sequence, 0, 0)

    def store(self, known: tuple[int, int, int, int, int, int]) -> None:
        """The batch with the fields of ``known`` was appended. Its number is above the last."""
        SLOT.pack_into(self.ring, self._slot(known[0]), _STORED, *known)
        self.last = known[0]
        self.fresh = False

    def spend(self, sequence: int, batch_crc: int, code: int) -> None:
        """The batch with the next number was refused for good."""
        SLOT.pack_into(self.ring, self._slot(sequence), _REFUSED, sequence, batch_crc, code, 0, 0, 0)
        self.last = sequence
        self.fresh = False

    def pass_over(self, sequence: int) -> None:
        """``sequence`` is the next one: the producer does not ask any more for those before it."""
        if self.fresh:
            self.floor = sequence
        self.last = sequence - 1

    def retract(self, sequence: int) -> None:
        """Make ``sequence`` the next one again: it and all after it were not stored."""
        if sequence > self.last:
            return
        first = self.first_known  # what was overwritten by the ones that go now is not known any more
        for number in range(max(sequence, first), self.last + 1):
            at = number % self.window * SLOT.size
            if at < len(self.ring):
                self.ring[at] = _EMPTY
        self.floor = min(first, sequence)
        self.last = sequence - 1

    def forget_ring(self) -> None:
        """Keep the last number only."""
        self.ring = bytearray()
        self.floor = self.last + 1

    # Snapshots

    def pack(self) -> bytes:
        """What is known of the last numbers, as :meth:`unpack` takes it; empty if that is nothing."""
        if self.first_known > self.last:
            return b""
        return _HEAD.pack(self.first_known, self.window) + self.ring

    def unpack(self, packed: bytes, last: int) -> int:
        """Fill a new line from what :meth:`pack` gave; return the position in the log after its newest batch."""
        self.last = last
        self.floor = last + 1
        self.fresh = False
        if len(packed) < _HEAD.size or _HEAD.unpack_from(packed)[1] != self.window:
            return 0  # a ring of another length cannot be read
        self.floor = _HEAD.unpack_from(packed)[0]
        self.ring += packed[_HEAD.size :]
        for sequence in range(last, self.first_known - 1, -1):
            if isinstance(newest := self.fate(sequence), Known):
                return newest.end_position
        return 0

    def _slot(self, sequence: int) -> int:
        """Where in the ring a number lies; makes room for it."""
        at = sequence % self.window * SLOT.size
        missing = at + SLOT.size - len(self.ring)
        if missing > 0:
            self.ring += bytes(missing)
        return at
