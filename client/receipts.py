"""What a producer gets for what it sent: where each message lies. Receipts of many are made when looked at."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple, overload

from rmq.wire.batch import handle, message_id
from rmq.wire.model import from_us


class SendStatus(StrEnum):
    """How a send ended; whatever is not stored raises instead."""

    SEND_OK = "SEND_OK"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a message was stored; ``durable`` tells whether it was on disk before the answer."""

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    durable: bool
    stored_at: datetime
    status: SendStatus = SendStatus.SEND_OK


class Part(NamedTuple):
    """A run of messages that lie one behind the other in one stored batch."""

    messages: int
    queue_offset: int
    physical_offset: int
    first: int  # the place of the first of them within the batch
    stored_at: int
    durable: bool


class Receipts(Sequence[Receipt]):
    """The receipts of one call, in the order of its messages."""

    __slots__ = ("_ends", "_parts", "_store_id", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, store_id: int, parts: Sequence[Part]) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._store_id = store_id
        self._parts = parts
        self._ends = list(accumulate(part.messages for part in parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, at: int) -> Receipt: ...
    @overload
    def __getitem__(self, at: slice) -> list[Receipt]: ...
    def __getitem__(self, at: int | slice) -> Receipt | list[Receipt]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        place = at + len(self) if at < 0 else at
        if not 0 <= place < len(self):
            raise IndexError(f"there are {len(self)} receipts, none at {at}")
        which = bisect_right(self._ends, place)
        part = self._parts[which]
        return self._receipt(part, place - (self._ends[which] - part.messages))

    def _receipt(self, part: Part, step: int) -> Receipt:
        return Receipt(
            self.topic,
            self.queue_id,
            part.queue_offset + step,
            message_id(self._store_id, handle(part.physical_offset, part.first + step)),
            part.durable,
            from_us(part.stored_at),
        )

    def __repr__(self) -> str:
        return f"<Receipts of {len(self)} messages in {self.topic}/{self.queue_id}>"
