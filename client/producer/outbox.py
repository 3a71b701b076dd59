"""
The outbox of one queue: sends that were not cut into batches yet. No clock, no connection.

Sends leave in the order they came. A batch takes as many as fit, so a longer outbox costs fewer bytes and system calls
per message.

A batch has one delay, so a message with another delay starts the next batch. Messages with the same relative delay
share a batch if they were born within 10 ms of each other; it is due when the last of them is, never early.
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
from rmq.wire.model import INDEX_KEYS, KEY, PROPERTIES, TAG, column

from .pending import Cut, PendingMessage, PendingSend

FULL_BYTES: Final = 1 << 20  # with so much to send there is no point in lingering
DUE_TOGETHER_US: Final = 10_000  # messages with the same relative delay share a batch if they are due within this
WORTH_BYTES: Final = 512 << 10  # bodies of a batch that gets no more calls: longer ones outgrow the caches
PACKED_BYTES: Final = 512 << 10  # bodies of one compressed batch: each end is busy with it for a millisecond or two


class Outbox:
    """Holds the sends to one queue and cuts batches from them."""

    __slots__ = ("_codec", "_count", "_size", "generation", "queue_id", "ready", "sends", "topic")

    def __init__(self, topic: str, queue_id: int, codec: Codec | None = None) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.generation = 0  # written by the routing: topic generation when the queue was chosen
        self._codec = codec
        self.sends: deque[PendingSend] = deque()
        self.ready = False  # written by the sender: it is in the round of outboxes to cut from
        self._count = 0  # messages and bytes put since the last cut
        self._size = 0

    @property
    def full(self) -> bool:
        """Whether there is enough for a batch that need not linger."""
        return self._count >= MAX_COUNT or self._size >= FULL_BYTES

    def put(self, pending: PendingSend) -> None:
        """Add a send after the others."""
        self.sends.append(pending)
        # Several at once were gathered by the caller already: they need no lingering.
        self._count += pending.count if pending.count == 1 else MAX_COUNT
        self._size += pending.size

    def put_back(self, pieces: Sequence[Cut]) -> None:
        """Undo the newest cut: its pieces are at the front again."""
        for piece in reversed(pieces):
            piece.pending.put_back(piece)
            if not self.sends or self.sends[0] is not piece.pending:
                self.sends.appendleft(piece.pending)

    def cut(self, by: ProducerMark) -> tuple[list[Buffer], list[Cut]] | None:
        """
        Return the next batch and its pieces, or None if nothing is left.

        The batch comes in parts, to be sent one after the other. A message that cannot be encoded fails only its own
        send: the batch is halved until that message is alone.
        """
        self._count = self._size = 0
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
        Cut single messages that have nothing but a body, or return None if this needs the general way.

        Most calls of ``send`` come here, so it does for all messages at once what the general way does for each.
        """
        if len(self.sends) > MAX_COUNT or self._codec is not None:
            return None
        singles: list[PendingMessage] = []
        for pending in self.sends:
            if pending.settled:
                continue
            if type(pending) is not PendingMessage or not pending.is_plain:
                return None
            singles.append(pending)
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
            return None  # the general way finds the message at fault
        self.sends.clear()
        PendingMessage.cut_all(singles)
        return data, cast(list[Cut], singles)

    def _collect(self, limit: int) -> list[_Run]:
        runs: list[_Run] = []
        room = MAX_BODY if self._codec is None else PACKED_BYTES
        full = room - WORTH_BYTES
        sends = self.sends
        while sends and (sends[0].settled or not sends[0].left):
            sends.popleft()
        for pending in sends:
            if pending.settled or not pending.left:
                continue
            if runs and not _due_together(runs[0][0], pending):
                break
            count, size = pending.fit(limit, room)
            if not count:
                if runs:
                    break
                count, size = 1, pending.size_ahead(1)  # a large body travels alone
            runs.append((pending, count, size))
            limit -= count
            room -= size
            if count < pending.left or not limit or room <= full:
                break
        return runs

    def _take(self, runs: list[_Run]) -> list[Cut]:
        pieces = [pending.cut(count, size) for pending, count, size in runs]
        while self.sends and (self.sends[0].settled or not self.sends[0].left):
            self.sends.popleft()
        return pieces


_Run = tuple[PendingSend, int, int]  # a send, the number of its next messages, and the bytes of their bodies


def _due_together(first: PendingSend, other: PendingSend) -> bool:
    """Return whether the next messages of both may share a batch."""
    delay = first.delay
    if delay is None or not delay.after_us:
        return other.delay == delay
    return other.delay == delay and 0 <= other.born_at - first.born_at <= DUE_TOGETHER_US


def _due(runs: list[_Run]) -> tuple[int, int]:
    """Return the delay level and the exact due time of a batch."""
    delay = runs[0][0].delay
    if delay is None:
        return 0, 0
    return delay.level, delay.deliver_at(max(pending.born_at for pending, _, _ in runs))


def _rows(runs: list[_Run]) -> Rows:
    """Return the columns of a batch; what no message has is not even looked at."""
    if all(type(pending) is PendingMessage for pending, _, _ in runs):
        bodies = pack_bodies([pending.body for pending, _, _ in runs])  # type: ignore[attr-defined]
    else:
        bodies = put_together([pending.ahead(count, size) for pending, count, size in runs])
    first = runs[0][0]
    if all(pending.born_at == first.born_at for pending, _, _ in runs):
        born_at: int | bytes = first.born_at
    else:
        born_at = b"".join([_TIME.pack(pending.born_at) * count for pending, count, _ in runs])
    extras = 0
    for pending, _, _ in runs:
        extras |= pending.extras
    keys: list[str | None] | None = None
    if extras & KEY or any(pending.key for pending, _, _ in runs):
        keys = list(chain.from_iterable([_keys(pending, count) for pending, count, _ in runs]))
    tags: list[str | None] = []
    index_keys: list[Sequence[str]] = []
    properties: list[Mapping[str, str]] = []
    if extras & (TAG | INDEX_KEYS | PROPERTIES):
        for pending, count, _ in runs:
            messages = pending.messages_ahead(count)
            if extras & TAG:
                tags += column(messages, "tag") if messages else [None] * count
            if extras & INDEX_KEYS:
                index_keys += column(messages, "index_keys") if messages else [()] * count
            if extras & PROPERTIES:
                properties += column(messages, "properties") if messages else [_NO_PROPERTIES] * count
    return Rows(
        bodies,
        born_at,
        tags if any(tags) else None,
        index_keys if any(index_keys) else None,
        keys,
        properties if any(properties) else None,
    )


def _keys(pending: PendingSend, count: int) -> list[str | None]:
    """Return the keys of the next messages of a pending: the one that the caller gave, or those of the messages."""
    if pending.key is None and pending.extras & KEY:
        return column(pending.messages_ahead(count), "key")
    return [pending.key] * count


_TIME: Final = struct.Struct("<q")
_NO_PROPERTIES: Final[Mapping[str, str]] = {}
