"""
What waits to be sent to one queue, and how batches are cut from it; no clock and no connection.

Parcels leave in the order they came. A batch takes as many of them as fit, so that the more waits, the fewer bytes and
system calls a message costs.

A batch has one delay, so messages with another one begin the next. Those that wait equally long share a batch if they
were born within 10 ms of each other; it is due when the last of them is: never early.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, cast

from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import OLDEST, ProducerMark, Rows, encode_single
from rmq.wire.batch.compression import Codec
from rmq.wire.batch.layout import MAX_BODY, MAX_COUNT, Buffer
from rmq.wire.batch.texts import pack_bodies, put_together
from rmq.wire.model import DELAY, KEYS, PROPERTIES, TAG, column

from .pending import Cut, Parcel, Single

FULL_BYTES: Final = 1 << 20  # with so much waiting there is no point in lingering
DUE_TOGETHER_US: Final = 10_000  # messages that wait equally long share a batch if they are due within this
WORTH_BYTES: Final = 512 << 10  # bodies of a batch that gets no more calls: longer ones outgrow the caches
PACKED_BYTES: Final = 512 << 10  # bodies of one compressed batch: each end is busy with it for a millisecond or two


class Outbox:
    """The parcels for one queue that were not cut yet."""

    __slots__ = ("_codec", "_size", "_waiting", "generation", "parcels", "queue_id", "ready", "topic")

    def __init__(self, topic: str, queue_id: int, codec: Codec | None = None) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.generation = 0  # written by the routing: of the topic as it was when the queue was chosen
        self._codec = codec
        self.parcels: deque[Parcel] = deque()
        self.ready = False  # written by the sender: it stands in its round
        self._waiting = 0  # messages and bytes put since the last cut
        self._size = 0

    @property
    def full(self) -> bool:
        """Whether there is enough for a batch that is worth sending."""
        return self._waiting >= MAX_COUNT or self._size >= FULL_BYTES

    def put(self, parcel: Parcel) -> None:
        """Add a parcel behind the others."""
        self.parcels.append(parcel)
        # Many at once were gathered by the caller already: they need no lingering.
        self._waiting += parcel.count if parcel.count == 1 else MAX_COUNT
        self._size += parcel.size

    def put_back(self, pieces: Sequence[Cut]) -> None:
        """Undo the newest cut: its pieces stand in front again."""
        for piece in reversed(pieces):
            piece.parcel.put_back(piece)
            if not self.parcels or self.parcels[0] is not piece.parcel:
                self.parcels.appendleft(piece.parcel)

    def cut(self, by: ProducerMark) -> tuple[list[Buffer], list[Cut]] | None:
        """
        The next batch, and what it is made of; None if nothing is left.

        The batch comes in parts, to be sent one behind the other.

        A message that cannot be encoded fails its own parcel only: the batch is halved until that message is alone.
        """
        self._waiting = self._size = 0
        return self._cut_plain(by) or self._cut_any(by)

    def _cut_any(self, by: ProducerMark) -> tuple[list[Buffer], list[Cut]] | None:
        limit = MAX_COUNT
        while runs := self._collect(limit):
            try:
                delay_level, deliver_at = _due(runs)
                data = batches.encode_parts(
                    self.topic, self.queue_id, _rows(runs), by=by, codec=self._codec,
                    delay_level=delay_level, deliver_at=deliver_at,
                )  # fmt: skip
            except Exception as error:  # texts and mappings of the caller's may raise anything
                limit = sum(count for _, count, _ in runs) // 2
                if not limit:
                    limit = MAX_COUNT
                    runs[0][0].fail(error)
                continue
            return data, self._take(runs)
        return None

    def _cut_plain(self, by: ProducerMark) -> tuple[list[Buffer], list[Cut]] | None:
        """
        The short way for single messages that have nothing but a body; None if the long way has to be gone.

        It is what most calls of ``send`` take, so it does for all messages at once what the long way does for each.
        """
        if len(self.parcels) > MAX_COUNT or self._codec is not None:
            return None
        singles: list[Single] = []
        for parcel in self.parcels:
            if parcel.settled:
                continue
            if type(parcel) is not Single or not parcel.is_plain:
                return None
            singles.append(parcel)
        bodies = [single.body for single in singles]
        if not singles or (len(singles) > 1 and sum(map(len, bodies)) > WORTH_BYTES):
            return None
        times = [single.born_at for single in singles]
        first = times[0]
        try:
            if len(singles) == 1 and first >= OLDEST:
                data = encode_single(self.topic, self.queue_id, bodies[0], first, by)
            else:
                rows = Rows(pack_bodies(bodies), first if times.count(first) == len(times) else times)
                data = batches.encode_parts(self.topic, self.queue_id, rows, by=by)
        except Exception:
            return None  # the long way tells whose fault it is
        self.parcels.clear()
        Single.cut_all(singles)
        return data, cast(list[Cut], singles)

    def _collect(self, limit: int) -> list[_Run]:
        runs: list[_Run] = []
        room = MAX_BODY if self._codec is None else PACKED_BYTES
        full = room - WORTH_BYTES
        parcels = self.parcels
        while parcels and (parcels[0].settled or not parcels[0].left):
            parcels.popleft()
        for parcel in parcels:
            if parcel.settled or not parcel.left:
                continue
            if runs and not _due_together(runs[0][0], parcel):
                break
            count, size = parcel.fit(limit, room)
            if not count:
                if runs:
                    break
                count, size = 1, parcel.size_ahead(1)  # a large body travels alone
            runs.append((parcel, count, size))
            limit -= count
            room -= size
            if count < parcel.left or not limit or room <= full:
                break
        return runs

    def _take(self, runs: list[_Run]) -> list[Cut]:
        pieces = [parcel.cut(count, size) for parcel, count, size in runs]
        while self.parcels and (self.parcels[0].settled or not self.parcels[0].left):
            self.parcels.popleft()
        return pieces


_Run = tuple[Parcel, int, int]  # the next so many messages of a parcel, whose bodies have so many bytes


def _due_together(first: Parcel, other: Parcel) -> bool:
    """Whether the next messages of both may share a batch."""
    delay = first.delay
    if delay is None or not delay.after_us:
        return other.delay == delay
    return other.delay == delay and 0 <= other.born_at - first.born_at <= DUE_TOGETHER_US


def _due(runs: list[_Run]) -> tuple[int, int]:
    """Level and exact time of a batch."""
    delay = runs[0][0].delay
    if delay is None:
        return 0, 0
    return delay.level, delay.deliver_at(max(parcel.born_at for parcel, _, _ in runs))


def _rows(runs: list[_Run]) -> Rows:
    """The columns of a batch; what no message has is not even looked at."""
    if all(type(parcel) is Single for parcel, _, _ in runs):
        bodies = pack_bodies([parcel.body for parcel, _, _ in runs])  # type: ignore[attr-defined]
    else:
        bodies = put_together([parcel.ahead(count, size) for parcel, count, size in runs])
    first = runs[0][0]
    if all(parcel.born_at == first.born_at for parcel, _, _ in runs):
        born_at: int | bytes = first.born_at
    else:
        born_at = b"".join([_TIME.pack(parcel.born_at) * count for parcel, count, _ in runs])
    ordering = None
    if any(parcel.ordering_key for parcel, _, _ in runs):
        ordering = list(chain.from_iterable([[parcel.ordering_key] * count for parcel, count, _ in runs]))
    extras = 0
    for parcel, _, _ in runs:
        extras |= parcel.extras
    tags: list[str | None] = []
    keys_of: list[Sequence[str]] = []
    properties: list[Mapping[str, str]] = []
    if extras & ~DELAY:
        for parcel, count, _ in runs:
            messages = parcel.messages_ahead(count)
            if extras & TAG:
                tags += column(messages, "tag") if messages else [None] * count
            if extras & KEYS:
                keys_of += column(messages, "keys") if messages else [()] * count
            if extras & PROPERTIES:
                properties += column(messages, "properties") if messages else [_NO_PROPERTIES] * count
    return Rows(
        bodies,
        born_at,
        tags if any(tags) else None,
        keys_of if any(keys_of) else None,
        ordering,
        properties if any(properties) else None,
    )


_TIME: Final = struct.Struct("<q")
_NO_PROPERTIES: Final[Mapping[str, str]] = {}
