"""
What is known of each producer's line of batches, so that each is stored once and in order.

A producer numbers its batches one after the other. The next number is appended, a known one is answered again, a
later one is refused until the missing one came. A number is *spent* by a batch that was stored and by one that was
refused for good; a refusal that may pass (the disk is full) leaves it to be used again.

A higher epoch of a producer begins a line of its own, and everything of a lower one is refused from then on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from rmq.wire.errors import OutOfSequence, ProducerFenced, SequenceConflict, from_wire

from ..store.changes import ProducerEpoch, ProducerKnown
from .producer_line import Known as Known  # noqa: PLC0414  # part of this module's promises
from .producer_line import Line
from .producer_line import Spent as Spent  # noqa: PLC0414


class Resumed(NamedTuple):
    """
    What became of the numbers that a producer asked for.

    ``fates`` are those of ``first`` and behind, up to the one before ``next_sequence``; what became of numbers below
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
        self,
        window: int = 256,
        max_producers: int = 20_000,
        idle_s: float = 86_400.0,
        ring_bytes: int = 64 << 20,
    ) -> None:
        self.window = window
        self.max_producers = max_producers
        self.idle_s = idle_s
        self.ring_bytes = ring_bytes
        self.used_bytes = 0  # by all rings
        self._lines: OrderedDict[int, Line] = OrderedDict()  # the longest idle comes first
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
        before = self._lines.get(producer_id)
        raised = epoch > (0 if before is None else before.epoch)
        line = self._line(producer_id, epoch, first_unresolved, now)
        if first_unresolved > line.last + 1:
            line.pass_over(first_unresolved)
        return ProducerEpoch(producer_id, epoch, first_unresolved) if raised else None

    def resumed(self, producer_id: int, epoch: int, first_unresolved: int, *, last: int) -> Resumed:
        """
        What became of the numbers from ``first_unresolved`` to ``last``.

        Raises:
            ProducerFenced: a higher epoch of this producer was here.
        """
        line = self._lines.get(producer_id)
        if line is None:
            return Resumed(first_unresolved, False, first_unresolved, [])
        self._fence(line, producer_id, epoch)
        last = min(last, line.last)
        first = max(first_unresolved, line.first_known, last - self.window + 1)
        fates = [fate for number in range(first, last + 1) if (fate := line.fate(number)) is not None]
        return Resumed(max(first_unresolved, last + 1), not line.fresh, first, fates)

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
        line = self._line(producer_id, epoch, sequence, now)
        if sequence == line.last + 1:
            return None
        if sequence > line.last:
            raise OutOfSequence(
                f"producer {producer_id:x} sent batch {sequence}, but {line.last + 1} is next: send that one first"
            )
        return _known(line, producer_id, sequence, batch_crc)

    def spend(self, producer_id: int, epoch: int, sequence: int, batch_crc: int, code: int, *, now: float) -> None:
        """A batch that was admitted was refused for good: its number will not be used again."""
        if not producer_id:
            return
        line = self._line(producer_id, epoch, sequence, now)
        if sequence == line.last + 1:
            before = len(line.ring)
            line.spend(sequence, batch_crc, code)
            self._account(line, before)

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

        A number that is not above the last one, or a lower epoch, means that the producer was forgotten in between:
        its line restarts.
        """
        if not producer_id:
            return
        line = self._lines.get(producer_id)
        if line is None or sequence <= line.last or epoch != line.epoch:
            line = self._new_line(producer_id, epoch, sequence, now)
        line.seen_at = now
        self._lines.move_to_end(producer_id)
        before = len(line.ring)
        line.store((sequence, batch_crc, base_offset, physical_offset, stored_at, end_position))
        if len(line.ring) != before:
            self._account(line, before)

    def retract(self, producer_id: int, epoch: int, sequence: int) -> None:
        """A batch that was recorded or spent in this turn was not written: it and all behind it were never there."""
        line = self._lines.get(producer_id)
        if line is not None and line.epoch == epoch:
            line.retract(sequence)

    # Time

    def expire(self, *, now: float) -> int:
        """Forget the producers that were idle for too long; returns how many."""
        before = len(self._lines)
        while self._lines and now - next(iter(self._lines.values())).seen_at > self.idle_s:
            self._forget_longest_idle()
        return before - len(self._lines)

    # From the log and back

    def rows(self, now: float, *, rings: bool) -> Iterator[ProducerKnown]:
        """
        All of the table for a snapshot, the longest idle first; without ``rings`` only the last numbers.

        Refusals are kept by the rings. A producer that only said hello has no row, unless others are fenced by it.
        """
        for producer_id, line in list(self._lines.items()):
            if line.fresh and not line.epoch:
                continue
            packed = line.pack() if rings else b""
            yield ProducerKnown(producer_id, line.epoch, line.last, max(0.0, now - line.seen_at), packed)

    def apply(self, change: ProducerKnown, now: float) -> None:
        """
        A row of a snapshot. Rows come in the order of :meth:`rows`, before any header behind the snapshot.

        A row without a ring takes nothing from what is known already: a walk over the whole log meets such rows too.
        """
        producer_id, epoch, last, idle_s, packed = change
        line = self._lines.get(producer_id)
        if packed or line is None or line.epoch != epoch or last < line.last:
            line = self._new_line(producer_id, epoch, last + 1, now)
            self._covered = max(self._covered, line.unpack(packed, last))
            self._account(line, 0)
        elif last > line.last:
            line.pass_over(last + 1)  # spent by refusals, which are not in the log
        line.seen_at = now - idle_s
        self._lines.move_to_end(producer_id)

    def apply_epoch(self, change: ProducerEpoch, now: float) -> None:
        """An epoch that was raised by a hello."""
        line = self._lines.get(change.producer_id)
        if line is None or line.epoch < change.epoch:
            self._new_line(change.producer_id, change.epoch, change.first, now)

    def covers(self, position: int) -> None:
        """All batches below this place of the log are in the rows that were applied."""
        self._covered = max(self._covered, position)

    def replay(  # noqa: PLR0917  # as record
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
        """A batch of the log, in log order. One that the table has already, from a snapshot, changes nothing."""
        if physical_offset < self._covered:
            return
        self._covered = end_position
        fields = (sequence, batch_crc, base_offset, physical_offset, stored_at, end_position)
        self.record(producer_id, epoch, *fields, now=now)

    # Questions

    def next_sequence(self, producer_id: int) -> int | None:
        """The number that is appended next, None for a producer that is not known."""
        line = self._lines.get(producer_id)
        return None if line is None else line.last + 1

    def __len__(self) -> int:
        return len(self._lines)

    # Inside

    def _line(self, producer_id: int, epoch: int, sequence: int, now: float) -> Line:
        """The producer's line, begun with this number if it has none of this epoch; refuses a lower epoch."""
        line = self._lines.get(producer_id)
        if line is None:
            return self._new_line(producer_id, epoch, sequence, now)
        if epoch != line.epoch:
            self._fence(line, producer_id, epoch)
            return self._new_line(producer_id, epoch, sequence, now)
        line.seen_at = now
        self._lines.move_to_end(producer_id)
        return line

    @staticmethod
    def _fence(line: Line, producer_id: int, epoch: int) -> None:
        if epoch < line.epoch:
            raise ProducerFenced(
                f"epoch {epoch} of producer {producer_id:x} was replaced by {line.epoch}: "
                "another process goes on in its place, open a new producer"
            )

    def _new_line(self, producer_id: int, epoch: int, first: int, now: float) -> Line:
        old = self._lines.get(producer_id)
        if old is not None:
            self.used_bytes -= len(old.ring)
        line = self._lines[producer_id] = Line(epoch, first, self.window, now)
        self._lines.move_to_end(producer_id)
        if len(self._lines) > self.max_producers:
            self._forget_longest_idle()
        return line

    def _forget_longest_idle(self) -> None:
        self.used_bytes -= len(self._lines.popitem(last=False)[1].ring)

    def _account(self, line: Line, before: int) -> None:
        """A ring has grown. Over the budget, an eighth of it is freed at once, so that the walk is a rare one."""
        self.used_bytes += len(line.ring) - before
        if self.used_bytes <= self.ring_bytes:
            return
        for idle in self._lines.values():
            if self.used_bytes <= self.ring_bytes - (self.ring_bytes >> 3):
                break
            if idle.ring and idle is not line:
                self.used_bytes -= len(idle.ring)
                idle.forget_ring()


def _known(line: Line, producer_id: int, sequence: int, batch_crc: int) -> Known:
    fate = line.fate(sequence)
    if isinstance(fate, Known) and fate.batch_crc == batch_crc:
        return fate
    name = f"number {sequence} of producer {producer_id:x}"
    if isinstance(fate, Known):
        raise SequenceConflict(f"{name} was used for another batch: send these messages under a new number")
    if fate is None:
        raise SequenceConflict(
            f"{name} lies too far behind the next one, {line.last + 1}: whether it was stored is not known any more"
        )
    if fate.code and fate.batch_crc == batch_crc:
        raise from_wire(fate.code, f"{name} was refused when it came first, for the same reason")
    raise SequenceConflict(f"{name} was spent by a batch that was refused: send these messages under a new number")
