"""
The in-flight window of a producer: batches that were sent and not settled, in the order of their numbers. Pure.

**What is certain.** The broker stores a producer's batches strictly in sequence. So a batch whose answer was lost is
*doubtful*: it must be sent again, the same bytes under the same number, until it is answered. A batch that was refused
without being stored is *absent*, and so is every later one: these may be cut again under the same numbers. The broker's
hello ends all doubt: a number that it does not report as spent is absent.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import DiskFull, Internal, OutOfSequence, ShuttingDown, StoreFailed, TooManyInFlight, WireError

from .outbox import Outbox
from .pending import Cut

NOT_STORED: Final = frozenset({OutOfSequence.code, DiskFull.code, TooManyInFlight.code})
PERHAPS_STORED: Final = frozenset({StoreFailed.code, Internal.code, ShuttingDown.code})


def is_temporary(code: int) -> bool:
    """Return whether a batch refused with this code did not spend its number and is to be sent again."""
    return code in NOT_STORED or code in PERHAPS_STORED


class SentBatch:
    """A batch in the window."""

    __slots__ = ("data", "defects", "done", "doubtful", "flying", "outbox", "pieces", "refusal", "sequence", "size")

    def __init__(self, sequence: int, data: list[Buffer], outbox: Outbox, pieces: list[Cut]) -> None:
        self.sequence = sequence
        self.data = data  # in parts
        self.size = sum(map(len, data))
        self.outbox = outbox
        self.pieces = pieces
        self.flying = True  # sent over the present connection, no answer yet
        self.doubtful = False
        self.done = False
        self.refusal: WireError | None = None
        self.defects = 0  # how often the broker failed at it with INTERNAL


class InFlightWindow:
    """Gives batches their sequence numbers and tracks the outcome of each."""

    def __init__(self) -> None:
        self.next_sequence = 1
        self.size = 0  # bytes of all batches in the window
        self.flying = 0
        self._batches: deque[SentBatch] = deque()

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def first_unresolved(self) -> int:
        """The lowest number without a known outcome."""
        return self._batches[0].sequence if self._batches else self.next_sequence

    @property
    def span(self) -> int:
        """The distance from the first unresolved number to the next; the broker remembers 256."""
        return self.next_sequence - self.first_unresolved

    @property
    def head(self) -> SentBatch | None:
        """The first batch, which has no answer yet."""
        return self._batches[0] if self._batches else None

    def unresolved(self) -> list[SentBatch]:
        """Return all batches without an answer, in order."""
        return [batch for batch in self._batches if not batch.done]

    def add(self, data: list[Buffer], outbox: Outbox, pieces: list[Cut]) -> SentBatch:
        """Put a batch with the next number at the end; the caller sends it at once."""
        batch = SentBatch(self.next_sequence, data, outbox, pieces)
        self.next_sequence += 1
        self.flying += 1
        self.size += batch.size
        self._batches.append(batch)
        return batch

    def lost(self) -> None:
        """Record that the connection ended: no answer comes any more."""
        absent = False
        for batch in self._batches:
            if batch.flying:
                batch.flying = False
                # After one that is certainly not stored, no other can be.
                batch.doubtful |= not absent
            absent |= not batch.doubtful and not batch.done
        self.flying = 0

    def resend(self) -> list[SentBatch]:
        """Return everything unresolved, in order, to be sent at once over an idle connection."""
        for batch in self._batches:
            batch.flying = not batch.done
            batch.refusal = None
        again = [batch for batch in self._batches if batch.flying]
        self.flying = len(again)
        return again

    def resolved(self, batch: SentBatch) -> None:
        """Record the final outcome of a batch: stored, or refused for good."""
        self._landed(batch)
        batch.done = True
        while self._batches and self._batches[0].done:
            self.size -= self._batches.popleft().size

    def refused(self, batch: SentBatch, error: WireError) -> None:
        """Record a temporary refusal: the batch keeps its place."""
        self._landed(batch)
        batch.refusal = error
        batch.defects += error.code == Internal.code
        # A number after the expected one is certainly free, whatever happened to earlier copies of the batch.
        batch.doubtful = error.code != OutOfSequence.code and (batch.doubtful or error.code in PERHAPS_STORED)

    def take_back(self) -> list[SentBatch]:
        """
        Remove and return the batches that are certainly not stored, newest first; their numbers are reused.

        Does nothing while any is flying: a number on the wire must not change its meaning.
        """
        first = next((batch for batch in self._batches if not batch.doubtful and not batch.done), None)
        if self.flying or first is None:
            return []
        taken = []
        while self._batches and self._batches[-1].sequence >= first.sequence:
            batch = self._batches.pop()
            self.size -= batch.size
            if not batch.done:
                taken.append(batch)
        self.next_sequence = first.sequence
        return taken

    def restart(self, next_sequence: int) -> list[SentBatch]:
        """
        Remove everything, as the broker reported the next number: what is still here is certainly not stored.

        Returns it newest first. Call it only while nothing is flying.
        """
        left = self.clear()
        left.reverse()
        self.next_sequence = next_sequence
        return left

    def clear(self) -> list[SentBatch]:
        """Remove everything, and return the batches that had no answer."""
        left = self.unresolved()
        self._batches.clear()
        self.size = self.flying = 0
        return left

    def _landed(self, batch: SentBatch) -> None:
        if batch.flying:
            batch.flying = False
            self.flying -= 1
