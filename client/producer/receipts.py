"""Receipts: where each sent message was stored. Those of a ``send_many`` are created on access."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple, overload

from rmq.wire.batch.batch import handle, message_id
from rmq.wire.model import from_us


class SendStatus(StrEnum):
    """The outcome of a send; a message that is not stored raises an error instead."""

    SEND_OK = "SEND_OK"


class Part(NamedTuple):
    """A run of consecutive messages in one stored batch."""

    messages: int
    queue_offset: int  # -1: they are deferred
    physical_offset: int
    first: int  # the place of the first of them within the batch
    stored_at: int
    durable: bool


class Receipt:
    """Where a message was stored: ``topic`` and ``queue_id``; the other properties are computed on access."""

    __slots__ = ("_part", "_step", "_store_id", "queue_id", "topic")

    status = SendStatus.SEND_OK

    def __init__(self, topic: str, queue_id: int, part: Part, step: int, store_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._part = part
        self._step = step
        self._store_id = store_id

    @property
    def queue_offset(self) -> int:
        """Its offset in the queue; -1 for a deferred message, which gets it when it is due."""
        return self._part.queue_offset + self._step if self._part.queue_offset >= 0 else -1

    @property
    def is_deferred(self) -> bool:
        """Whether it was deferred; a message whose time had passed when it was stored was not."""
        return self._part.queue_offset < 0

    @property
    def message_id(self) -> str:
        """32 hex digits that never change; the copy that is delivered of a deferred message has them as ``copy_of``."""
        return message_id(self._store_id, handle(self._part.physical_offset, self._part.first + self._step))

    @property
    def durable(self) -> bool:
        """Whether it was on disk before the broker replied."""
        return self._part.durable

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it."""
        return from_us(self._part.stored_at)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Receipt):
            return NotImplemented
        return (self.topic, self.queue_id, self.message_id) == (other.topic, other.queue_id, other.message_id)

    def __hash__(self) -> int:
        return hash(self.message_id)

    def __repr__(self) -> str:
        durable = "durable" if self.durable else "not yet durable"
        where = "delayed" if self.is_deferred else f"offset {self.queue_offset}"
        return f"<Receipt {self.topic}/{self.queue_id} {where}, {self.message_id}, {durable}>"


class Receipts(Sequence[Receipt]):
    """The receipts of one ``send_many``, in the order of its messages."""

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
        return Receipt(self.topic, self.queue_id, part, place - (self._ends[which] - part.messages), self._store_id)

    def __repr__(self) -> str:
        return f"<Receipts of {len(self)} messages in {self.topic}/{self.queue_id}>"
