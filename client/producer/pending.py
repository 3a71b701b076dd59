"""
Pending sends: the messages of one call, from acceptance until the caller is notified, and their deadlines.

The messages of a call leave in one or more pieces, each a part of some batch. A send is *settled* once its caller was
notified (stored, failed, timed out) or gave up; messages that were not cut by then are never sent.

One timer serves all sends of a producer: they have the same time-out, so they expire in the order of acceptance.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rmq.engine.native.connection import describe
from rmq.wire.batch.texts import Bodies, pack_bodies
from rmq.wire.deferral import Delay
from rmq.wire.errors import OutcomeUnknown, RequestTimeout, RmqError, WireError, from_wire
from rmq.wire.model import DELAY, Message

from .receipts import Part, Receipt, Receipts

if TYPE_CHECKING:
    from .routing import Choice


class PendingSend:
    """The messages of one call to one queue, and their outcome so far."""

    __slots__ = (
        "_at",
        "_bodies",
        "_cut",
        "_delay",
        "_delays",
        "_parts",
        "_unanswered",
        "born_at",
        "choice",
        "count",
        "deadline",
        "extras",
        "future",
        "key",
        "messages",
        "number",
        "on_settled",
        "queue_id",
        "settled",
        "shown_topic",
        "size",
        "topic",
        "trouble",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        bodies: Bodies,
        messages: Sequence[Message] | None,
        *,
        choice: Choice,
        key: str | None,
        born_at: int,
        shown_topic: str | None = None,
        delay: Delay | None = None,
        extras: int | None = None,
    ) -> None:
        assert messages is None or extras is not None, "what messages have besides bodies is gathered with those"
        self.topic = topic
        self.shown_topic = topic if shown_topic is None else shown_topic  # as the caller named it
        self.messages = messages
        self.choice = choice
        self.key = key
        self.born_at = born_at
        self.deadline = 0.0  # written by the deadlines
        self.future: asyncio.Future[Any] | None = None  # of a caller who waits, for the receipts
        self.on_settled: Callable[[PendingSend, Exception | None], None] | None = None
        self.count = bodies.count
        self.size = bodies.size
        self.queue_id = -1  # written by the routing
        self.number = 0  # written by the deadlines: it counts what was accepted
        self.settled = False
        self.trouble: Exception | None = None  # written by the router: why there is no route yet
        self._bodies: Bodies | None = bodies
        self._cut = 0  # messages that were cut, and where the bodies of the others start
        self._at = 0
        self._unanswered = 0
        self._parts: list[Part | None] = []
        self._delay: Delay | None = delay
        self._delays: list[Delay | None] | None = None
        self.extras = extras or 0  # what its messages have besides bodies
        if messages is not None and self.extras & DELAY:
            self._delay, self._delays = _delays(messages)

    @property
    def left(self) -> int:
        """The number of messages that were not cut yet."""
        return self.count - self._cut

    @property
    def delay(self) -> Delay | None:
        """The delay of the next message."""
        return self._delay if self._delays is None else self._delays[self._cut]

    def fit(self, count: int, size: int) -> tuple[int, int]:
        """Return how many uncut messages with one delay fit into ``count`` and ``size``, and their bytes."""
        assert self._bodies is not None, "nothing is cut of what is settled"
        if self._delays is None and self.count - self._cut <= count and self.size - self._at <= size:
            return self.count - self._cut, self.size - self._at
        count = min(count, self.count - self._cut)
        if self._delays is not None:
            count = _run(self._delays[self._cut : self._cut + count])
        count = self._bodies.fit(self._cut, count, size)
        return count, self._bodies.size_of(self._cut, count)

    def size_ahead(self, count: int) -> int:
        """Return how many bytes the bodies of the next ``count`` messages have."""
        assert self._bodies is not None, "nothing is cut of what is settled"
        return self._bodies.size_of(self._cut, count)

    def ahead(self, count: int, size: int) -> Bodies:
        """Return the bodies of the next ``count`` messages, which have ``size`` bytes."""
        assert self._bodies is not None, "nothing is cut of what is settled"
        return self._bodies if count == self.count else self._bodies.run(self._cut, count, self._at, size)

    def messages_ahead(self, count: int) -> Sequence[Message]:
        """Return the next ``count`` messages; none for a send of bare bodies."""
        return () if self.messages is None else self.messages[self._cut : self._cut + count]

    def cut(self, count: int, size: int) -> Cut:
        """Take the next ``count`` messages, whose bodies have ``size`` bytes."""
        piece = SendPiece(self, len(self._parts), self._cut, count, self._at)
        self._cut += count
        self._at += size
        self._unanswered += 1
        self._parts.append(None)
        return piece

    def put_back(self, piece: Cut) -> None:
        """Undo the newest cut, so that its messages are cut again; those of a settled send are not."""
        if self.settled:
            return
        assert piece.which == len(self._parts) - 1, "pieces go back newest first"
        self._cut, self._at = piece.start, piece.at
        self._unanswered -= 1
        self._parts.pop()

    def piece_stored(self, which: int, part: Part, store_id: int) -> None:
        """Record that a piece was stored as this part; the last one settles the send."""
        self._parts[which] = part
        self._unanswered -= 1
        if self._unanswered or self.left or self.settled:
            return
        self._settle()
        if self.future is not None and not self.future.done():
            parts = [part for part in self._parts if part is not None]
            self.future.set_result(Receipts(self.shown_topic, self.queue_id, store_id, parts))

    def fail(self, error: Exception) -> None:
        """Raise an error at the caller; messages that were not cut are not sent any more."""
        if self.settled:
            return
        self._settle(error)
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def give_up(self) -> None:
        """Settle without notifying the caller, which is gone; messages that were not cut are not sent any more."""
        if not self.settled:
            self._settle()

    def overdue(self, why: str, error: RmqError | None = None) -> RmqError:
        """
        Return the error for a caller without an answer: unknown if anything may have been stored, else a time-out.

        ``error`` replaces the time-out where the reason is known.
        """
        stored = sum(part.messages for part in self._parts if part is not None)
        if stored or self._unanswered:
            text = f"{why}: {stored} of {self.count} messages for {self.topic!r} are known to be stored"
            return OutcomeUnknown(f"{text}, the others may or may not be" if self._unanswered else text)
        if error is not None:
            return error
        trouble = f" ({self.trouble})" if self.trouble is not None else ""
        return RequestTimeout(f"{why}: nothing was stored in {self.topic!r}{trouble}")

    def _settle(self, error: Exception | None = None) -> None:
        self.settled = True
        if self.on_settled is not None:
            self.on_settled(self, error)
        # They are not read any more, and a settled send may stay in an outbox for a while.
        self._bodies = self.messages = self._delays = None


_delay_of = attrgetter("delay")


def _delays(messages: Sequence[Message]) -> tuple[Delay | None, list[Delay | None] | None]:
    """Return the common delay of messages, or the delay of each."""
    delays = list(map(_delay_of, messages))
    return (delays[0], None) if len(set(delays)) == 1 else (None, delays)


def _run(delays: Sequence[Delay | None]) -> int:
    """Return how many delays at the start are equal."""
    return next((i for i, delay in enumerate(delays) if delay != delays[0]), len(delays))


class SendPiece:
    """A run of a send's messages within one batch."""

    __slots__ = ("at", "count", "pending", "start", "which")

    def __init__(self, pending: PendingSend, which: int, start: int, count: int, at: int) -> None:
        self.pending = pending
        self.which = which
        self.start = start
        self.count = count
        self.at = at  # where its bodies start among those of the send

    def stored(self, batch: Part, first: int, store_id: int) -> None:
        """Record that the batch was stored; the run starts at its message ``first``."""
        offset = batch.queue_offset + first if batch.queue_offset >= 0 else -1  # deferred messages have none
        part = Part(self.count, offset, batch.physical_offset, first, batch.stored_at, batch.durable)
        self.pending.piece_stored(self.which, part, store_id)


class PendingMessage(PendingSend):
    """
    A pending send of one message, which is its own piece: most calls send one, so it creates as little as possible.

    Its caller gets the receipt itself.
    """

    __slots__ = ("body", "is_plain")

    count = 1
    which = start = at = 0
    _parts = ()  # type: ignore[assignment]  # it is stored as a whole, and its caller notified at once
    _delays = None

    def __init__(  # called for every message: keywords would cost more than they say
        self, topic: str, message: Message, choice: Choice, key: str | None, born_at: int
    ) -> None:
        self.topic = topic
        self.shown_topic = message.topic
        self.body = message.body
        self.messages = (message,)
        self.choice = choice
        self.key = key
        self.born_at = born_at
        self.deadline = 0.0
        self.future = None
        self.on_settled = None
        self.size = len(message.body)
        self.queue_id = -1
        self.number = 0
        self.settled = False
        self.trouble = None
        self._cut = 0
        self._unanswered = 0
        self._delay = message.delay
        self.extras = extras = message.extras
        self.is_plain = not extras and key is None  # nothing but a body: neither a delay nor a key

    @property
    def pending(self) -> PendingMessage:
        """The send that this piece belongs to: itself."""
        return self

    def fit(self, count: int, size: int) -> tuple[int, int]:
        """Return whether it fits, as a count and a size."""
        return (1, self.size) if count and self.size <= size else (0, 0)

    def size_ahead(self, count: int) -> int:
        """Return the bytes of its body."""
        return self.size

    def ahead(self, count: int, size: int) -> Bodies:
        """Return its body."""
        return pack_bodies((self.body,))

    def cut(self, count: int, size: int) -> PendingMessage:
        """Take its message."""
        self._cut = self._unanswered = 1
        return self

    @staticmethod
    def cut_all(singles: Sequence[PendingMessage]) -> None:
        """Take the messages of many, in one call."""
        for single in singles:
            single._cut = single._unanswered = 1

    def put_back(self, piece: Cut) -> None:
        """Let it be cut again, unless it is settled."""
        if not self.settled:
            self._cut = self._unanswered = 0

    def stored(self, batch: Part, first: int, store_id: int) -> None:
        """Record that the batch was stored; the message is the one at ``first``."""
        self._unanswered = 0
        if self.settled:
            return
        self._settle()
        future = self.future
        if future is not None and not future.done():
            future.set_result(Receipt(self.shown_topic, self.queue_id, batch, first, store_id))

    def _settle(self, error: Exception | None = None) -> None:
        self.settled = True
        if self.on_settled is not None:
            self.on_settled(self, error)
        self.body, self.messages = b"", None


Cut = SendPiece | PendingMessage  # what a batch is made of


class Deadlines:
    """Fails the sends of a producer that are not settled in time, oldest first."""

    def __init__(
        self, after_s: float, state: Callable[[], str], refusal: Callable[[], WireError | None] = lambda: None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._after_s = after_s
        self._state = state  # appended to the text of a time-out
        self._refusal = refusal  # why the broker currently accepts nothing
        self._sends: deque[PendingSend] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._accepted = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def add(self, pending: PendingSend, now: float | None = None) -> None:
        """Start the time of a send; those of one call are given one ``now``, so that they run out of time together."""
        self._accepted += 1
        pending.number = self._accepted
        pending.deadline = (self._loop.time() if now is None else now) + self._after_s
        self._sends.append(pending)
        if self._timer is None:
            self._timer = self._loop.call_at(pending.deadline, self._expire)

    def tidy(self) -> None:
        """Drop the sends at the front that are settled; call it after settling any."""
        sends = self._sends
        while sends and sends[0].settled:
            sends.popleft()
        while self._waiters and (not sends or sends[0].number > self._waiters[0][0]):
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)

    async def all_settled(self) -> None:
        """Wait until everything accepted so far is settled; cancelling is safe."""
        self.tidy()
        if self._sends:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((self._accepted, waiter))
            await waiter

    def fail_all(self, why: str, error: RmqError | None = None) -> None:
        """Fail every send, as no answer comes any more; with ``error`` those of which nothing was sent."""
        if self._timer is not None:
            self._timer.cancel()
        for pending in self._sends:
            if not pending.settled:
                pending.fail(pending.overdue(why, error))
        self.tidy()

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for pending in self._sends:
            if pending.deadline > now:
                break
            if not pending.settled:
                pending.fail(self._late(pending))
        self.tidy()
        if self._sends:
            self._timer = self._loop.call_at(self._sends[0].deadline, self._expire)

    def _late(self, pending: PendingSend) -> RmqError:
        """Return the error of a send that ran out of time: the refusal itself only if nothing may have been stored."""
        within = f"within {self._after_s:g} s"
        refusal = pending.trouble if isinstance(pending.trouble, WireError) else self._refusal()
        if refusal is None:
            return pending.overdue(f"no answer {within}{self._state()}")
        error = from_wire(refusal.code, f"nothing was stored in {pending.topic!r} {within}: {refusal}")
        return pending.overdue(f"no success {within}, last refused with {describe(refusal)}", error)
