"""
What is known of each producer's line of batches, so that each is stored once and in order.

A producer numbers its batches one after the other. The next number is appended, a known one is answered again, a
later one is refused until the missing one came. A number is *spent* by a batch that was stored and by one that was
refused for good; a refusal that may pass (the disk is full) leaves it to be used again.

Known batches lie in a ring of packed slots, 45 bytes each: as named tuples the last 256 of 20,000 producers would
take more than a gigabyte.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from rmq.wire.errors import OutOfSequence, ProducerFenced, SequenceConflict

from .state import ProducerKnown

_SLOT: Final = struct.Struct("<BQIQQqQ")  # state, then the fields of Known
_EMPTY: Final = 0
_STORED: Final = 1
_REFUSED: Final = 2


class Known(NamedTuple):
    """A batch that was appended. ``end_position``: the log must be durable to here before it is answered again."""

    sequence: int
    batch_crc: int
    base_offset: int
    physical_offset: int
    stored_at: int
    end_position: int


class _Line:
    """One producer: its epoch, its last spent number, and what became of the last ones."""

    __slots__ = ("ahead", "epoch", "last", "ring", "seen_at", "window")

    def __init__(self, epoch: int, last: int, window: int, now: float) -> None:
        self.epoch = epoch
        self.last = last
        self.window = window
        self.seen_at = now
        self.ring = bytearray()  # as long as the highest slot in use; numbers that start low keep it short
        self.ahead: set[int] | None = None  # spent before their turn: the line skips them when it gets there

    def slot(self, sequence: int) -> int:
        """Where in the ring a number lies; makes room for it."""
        at = sequence % self.window * _SLOT.size
        missing = at + _SLOT.size - len(self.ring)
        if missing > 0:
            self.ring += bytes(missing)
        return at

    def get(self, sequence: int) -> tuple[int, Known | None]:
        """What became of a number: its state, and the batch if it was stored."""
        at = sequence % self.window * _SLOT.size
        if at + _SLOT.size > len(self.ring):
            return _EMPTY, None
        state, *fields = _SLOT.unpack_from(self.ring, at)
        if state == _EMPTY or fields[0] != sequence:
            return _EMPTY, None
        return state, Known(*fields) if state == _STORED else None

    def advance(self, last: int) -> None:
        """All up to ``last`` is spent, and what was spent ahead right behind it."""
        self.last = last
        if self.ahead:
            while self.last + 1 in self.ahead:
                self.last += 1
            self.ahead = {sequence for sequence in self.ahead if sequence > self.last} or None

    def spend(self, sequence: int) -> None:
        """A batch with this number was refused for good."""
        if not self.last < sequence <= self.last + self.window:
            return  # spent before; or beyond all that may be in flight, where no promise is kept
        _SLOT.pack_into(self.ring, self.slot(sequence), _REFUSED, sequence, 0, 0, 0, 0, 0)
        if sequence == self.last + 1:
            self.advance(sequence)
        else:
            self.ahead = (self.ahead or set()) | {sequence}

    def retract(self, sequence: int) -> None:
        """Make ``sequence`` the next one again. Batches behind it are forgotten, refusals stay told."""
        if sequence > self.last:
            return
        for behind in range(max(sequence, self.last - self.window + 1), self.last + 1):
            state, known = self.get(behind)
            if known is not None:
                self.ring[self.slot(behind)] = _EMPTY
            elif state == _REFUSED:
                self.ahead = (self.ahead or set()) | {behind}
        self.advance(sequence - 1)


class ProducerTable:
    """
    All producers that were active within ``idle_s``, at most ``max_producers``; the longest idle is forgotten first.

    Producer 0 stands for all that did not ask for this: whatever it sends is new.
    """

    def __init__(self, window: int = 256, max_producers: int = 20_000, idle_s: float = 86_400.0) -> None:
        self.window = window
        self.max_producers = max_producers
        self.idle_s = idle_s
        self._lines: OrderedDict[int, _Line] = OrderedDict()  # the longest idle comes first

    def resume(self, producer_id: int, epoch: int, first_unresolved: int, *, now: float) -> None:
        """
        A producer says hello and names the first number whose outcome it does not know.

        Raises:
            ProducerFenced: a higher epoch of this producer was here.
        """
        if not producer_id:
            return
        line = self._line(producer_id, epoch, first_unresolved, now)
        if first_unresolved > line.last + 1:
            line.advance(first_unresolved - 1)  # it will not ask again for what is before

    def admit(self, producer_id: int, epoch: int, sequence: int, batch_crc: int, *, now: float) -> Known | None:
        """
        Judge a batch by its number: None to append it, or what is known of it from the first time.

        Raises:
            OutOfSequence: one before it is missing; it may be sent again when that one came.
            SequenceConflict: the number was spent for something else.
            ProducerFenced: a higher epoch of this producer was here.
        """
        if not producer_id:
            return None
        line = self._line(producer_id, epoch, sequence, now)
        if sequence == line.last + 1:
            return None
        if sequence > line.last and not (line.ahead and sequence in line.ahead):
            raise OutOfSequence(
                f"producer {producer_id:x} sent batch {sequence}, but {line.last + 1} is next: send that one first"
            )
        return _known(line, producer_id, sequence, batch_crc)

    def spend(self, producer_id: int, epoch: int, sequence: int, *, now: float) -> None:
        """A batch was refused for good: its number will not be used again. One of a fenced epoch spends nothing."""
        known = self._lines.get(producer_id)
        if producer_id and (known is None or known.epoch <= epoch):
            self._line(producer_id, epoch, sequence, now).spend(sequence)

    def record(  # noqa: PLR0917  # called for every batch: keywords would cost more than they say
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        batch_crc: int,
        base_offset: int,
        physical_offset: int,
        stored_at: int,
        end_position: int,
        *,
        now: float,
    ) -> None:
        """
        A batch was admitted and staged, or found in the log by recovery (not copies: those with an origin).

        A number that is not above the last one means that the producer was forgotten in between: its line restarts.
        """
        if not producer_id:
            return
        line = self._lines.get(producer_id)
        if line is None or sequence <= line.last:
            line = self._new_line(producer_id, epoch, sequence - 1, now)
        line.epoch = max(line.epoch, epoch)
        line.seen_at = now
        self._lines.move_to_end(producer_id)
        fields = (sequence, batch_crc, base_offset, physical_offset, stored_at, end_position)
        _SLOT.pack_into(line.ring, line.slot(sequence), _STORED, *fields)
        line.advance(sequence)

    def retract(self, producer_id: int, sequence: int) -> None:
        """A batch that was recorded could not be written: it and all behind it were never stored."""
        line = self._lines.get(producer_id)
        if line is not None:
            line.retract(sequence)

    def expire(self, *, now: float) -> int:
        """Forget the producers that were idle for too long; returns how many."""
        before = len(self._lines)
        while self._lines and now - next(iter(self._lines.values())).seen_at > self.idle_s:
            self._lines.popitem(last=False)
        return before - len(self._lines)

    def next_sequence(self, producer_id: int) -> int | None:
        """The number that is appended next, None for a producer that is not known."""
        line = self._lines.get(producer_id)
        return None if line is None else line.last + 1

    def rows(self, *, now: float, rings: bool) -> Iterator[ProducerKnown]:
        """All producers, the longest idle first, as the changes that bring them back."""
        return iter(())

    def __len__(self) -> int:
        return len(self._lines)

    def _line(self, producer_id: int, epoch: int, sequence: int, now: float) -> _Line:
        """The producer's line, begun with this number if it has none; refuses a lower epoch, adopts a higher one."""
        line = self._lines.get(producer_id)
        if line is None:
            return self._new_line(producer_id, epoch, sequence - 1, now)
        if epoch != line.epoch:
            if epoch < line.epoch:
                raise ProducerFenced(
                    f"epoch {epoch} of producer {producer_id:x} was replaced by {line.epoch}: "
                    "another process goes on in its place, open a new producer"
                )
            line.epoch = epoch
        line.seen_at = now
        self._lines.move_to_end(producer_id)
        return line

    def _new_line(self, producer_id: int, epoch: int, last: int, now: float) -> _Line:
        line = self._lines[producer_id] = _Line(epoch, last, self.window, now)
        self._lines.move_to_end(producer_id)
        if len(self._lines) > self.max_producers:
            self._lines.popitem(last=False)
        return line


def _known(line: _Line, producer_id: int, sequence: int, batch_crc: int) -> Known:
    state, known = line.get(sequence)
    if known is not None and known.batch_crc == batch_crc:
        return known
    if known is not None:
        why = "was used for another batch: send these messages under a new number"
    elif state == _REFUSED:
        why = "was spent by a batch that was refused: send these messages under a new number"
    else:
        why = f"lies too far behind the next one, {line.last + 1}: whether it was stored is not known any more"
    raise SequenceConflict(f"number {sequence} of producer {producer_id:x} {why}")
