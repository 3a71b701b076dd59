"""
A parcel: the messages of one call, from the moment they are accepted until the caller is told.

Its messages leave in one or more pieces, each a part of some batch. A parcel is *settled* once its caller was told
(stored, failed, timed out, or gave up); what of it was not cut by then is never sent.

When callers stop waiting: one timer for all parcels of a producer, and who waits for all of them.

All parcels have the same time, so the order of acceptance is the order of deadlines.
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


class Parcel:
    """Messages of one call to one queue, with all that is known of them."""

    __slots__ = (
        "_at", "_bodies", "_cut", "_delay", "_delays", "_parts", "_unanswered", "born_at", "choice", "count",
        "deadline", "extras", "future", "messages", "number", "on_settled", "ordering_key", "queue_id", "settled",
        "shown_topic", "size", "topic", "trouble",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        bodies: Bodies,
        messages: Sequence[Message] | None,
        *,
        choice: Choice,
        ordering_key: str | None,
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
        self.ordering_key = ordering_key
        self.born_at = born_at
        self.deadline = 0.0  # written by the deadlines
        self.future: asyncio.Future[Any] | None = None  # of a caller who waits, for the receipts
        self.on_settled: Callable[[Parcel, Exception | None], None] | None = None
        self.count = bodies.count
        self.size = bodies.size
        self.queue_id = -1  # written by the routing
        self.number = 0  # written by the producer: the how-manyth it accepted
        self.settled = False
        self.trouble: Exception | None = None  # written by the router: why there is no route yet
        self._bodies: Bodies | None = bodies
        self._cut = 0  # messages that were cut, and where the bodies of the others begin
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
        """How many messages were not cut yet."""
        return self.count - self._cut

    @property
    def delay(self) -> Delay | None:
        """That of the next message."""
        return self._delay if self._delays is None else self._delays[self._cut]

    def fit(self, count: int, size: int) -> tuple[int, int]:
        """How many uncut messages with one delay fit into ``count`` places and ``size`` bytes, and their bytes."""
        assert self._bodies is not None, "nothing is cut of what is settled"
        if self._delays is None and self.count - self._cut <= count and self.size - self._at <= size:
            return self.count - self._cut, self.size - self._at
        count = min(count, self.count - self._cut)
        if self._delays is not None:
            count = _run(self._delays[self._cut : self._cut + count])
        count = self._bodies.fit(self._cut, count, size)
        return count, self._bodies.size_of(self._cut, count)

    def size_ahead(self, count: int) -> int:
        """The bytes of the bodies of the next ``count`` messages."""
        assert self._bodies is not None, "nothing is cut of what is settled"
        return self._bodies.size_of(self._cut, count)

    def ahead(self, count: int, size: int) -> Bodies:
        """The bodies of the next ``count`` messages, which have ``size`` bytes."""
        assert self._bodies is not None, "nothing is cut of what is settled"
        return self._bodies if count == self.count else self._bodies.run(self._cut, count, self._at, size)

    def messages_ahead(self, count: int) -> Sequence[Message]:
        """The next ``count`` messages; none for a parcel of bare bodies."""
        return () if self.messages is None else self.messages[self._cut : self._cut + count]

    def cut(self, count: int, size: int) -> Cut:
        """Take the next ``count`` messages, whose bodies have ``size`` bytes."""
        piece = Piece(self, len(self._parts), self._cut, count, self._at)
        self._cut += count
        self._at += size
        self._unanswered += 1
        self._parts.append(None)
        return piece

    def put_back(self, piece: Cut) -> None:
        """Undo the newest cut, so that its messages are cut again; a settled parcel's are not."""
        if self.settled:
            return
        assert piece.which == len(self._parts) - 1, "pieces go back newest first"
        self._cut, self._at = piece.start, piece.at
        self._unanswered -= 1
        self._parts.pop()

    def piece_stored(self, which: int, part: Part, store_id: int) -> None:
        """A piece was stored as this part; the last one settles the parcel."""
        self._parts[which] = part
        self._unanswered -= 1
        if self._unanswered or self.left or self.settled:
            return
        self._settle()
        if self.future is not None and not self.future.done():
            parts = [part for part in self._parts if part is not None]
            self.future.set_result(Receipts(self.shown_topic, self.queue_id, store_id, parts))

    def fail(self, error: Exception) -> None:
        """Tell the caller; what was not cut is not sent any more."""
        if self.settled:
            return
        self._settle(error)
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def give_up(self) -> None:
        """The caller is gone; what was not cut is not sent any more."""
        if not self.settled:
            self._settle()

    def overdue(self, why: str, error: RmqError | None = None) -> RmqError:
        """
        What the caller is told when no answer came: unknown if anything may have been stored, else just late.

        ``error`` takes the place of the latter, where more is known than that it is late.
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
        # Nobody reads them any more, and a settled parcel may stay in a line for a while.
        self._bodies = self.messages = self._delays = None


_delay_of = attrgetter("delay")


def _delays(messages: Sequence[Message]) -> tuple[Delay | None, list[Delay | None] | None]:
    """The one delay of messages that share it, or that of each."""
    delays = list(map(_delay_of, messages))
    return (delays[0], None) if len(set(delays)) == 1 else (None, delays)


def _run(delays: Sequence[Delay | None]) -> int:
    """How many of them are as the first."""
    return next((i for i, delay in enumerate(delays) if delay != delays[0]), len(delays))


class Piece:
    """A run of a parcel's messages within one batch."""

    __slots__ = ("at", "count", "parcel", "start", "which")

    def __init__(self, parcel: Parcel, which: int, start: int, count: int, at: int) -> None:
        self.parcel = parcel
        self.which = which
        self.start = start
        self.count = count
        self.at = at  # where its bodies begin among those of the parcel

    def stored(self, batch: Part, first: int, store_id: int) -> None:
        """The batch was stored; the run begins at its message ``first``."""
        offset = (
            batch.queue_offset + first if batch.queue_offset >= 0 else -1
        )  # those that wait for their time have none
        part = Part(self.count, offset, batch.physical_offset, first, batch.stored_at, batch.durable)
        self.parcel.piece_stored(self.which, part, store_id)


class Single(Parcel):
    """
    A parcel of one message, and the piece that it is: most calls send one, so nothing is made that it can do without.

    Its caller gets the receipt itself.
    """

    __slots__ = ("body", "is_plain")

    count = 1
    which = start = at = 0
    _parts = ()  # type: ignore[assignment]  # it is stored as a whole, and told at once
    _delays = None

    def __init__(  # called for every message: keywords would cost more than they say
        self, topic: str, message: Message, choice: Choice, ordering_key: str | None, born_at: int
    ) -> None:
        self.topic = topic
        self.shown_topic = message.topic
        self.body = message.body
        self.messages = (message,)
        self.choice = choice
        self.ordering_key = ordering_key
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
        self.is_plain = not extras and ordering_key is None  # nothing but a body: neither a delay nor a sharding key

    @property
    def parcel(self) -> Single:
        """As a piece it is a part of itself."""
        return self

    def fit(self, count: int, size: int) -> tuple[int, int]:
        """Whether it fits."""
        return (1, self.size) if count and self.size <= size else (0, 0)

    def size_ahead(self, count: int) -> int:
        """The bytes of its body."""
        return self.size

    def ahead(self, count: int, size: int) -> Bodies:
        """Its body."""
        return pack_bodies((self.body,))

    def cut(self, count: int, size: int) -> Single:
        """Take its message."""
        self._cut = self._unanswered = 1
        return self

    @staticmethod
    def cut_all(singles: Sequence[Single]) -> None:
        """Take the messages of many, in one call."""
        for single in singles:
            single._cut = single._unanswered = 1

    def put_back(self, piece: Cut) -> None:
        """Let it be cut again, unless it is settled."""
        if not self.settled:
            self._cut = self._unanswered = 0

    def stored(self, batch: Part, first: int, store_id: int) -> None:
        """The batch was stored; the message is the one at ``first``."""
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


Cut = Piece | Single  # what a batch is made of


class Deadlines:
    """The parcels whose callers were not told yet, oldest first (told ones leave when they reach the front)."""

    def __init__(
        self, after_s: float, state: Callable[[], str], refusal: Callable[[], WireError | None] = lambda: None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._after_s = after_s
        self._state = state  # what to tell with a time-out
        self._refusal = refusal  # why the broker accepts nothing at present
        self._parcels: deque[Parcel] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._accepted = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def add(self, parcel: Parcel) -> None:
        """Watch a parcel, whose time begins now."""
        self._accepted += 1
        parcel.number = self._accepted
        parcel.deadline = self._loop.time() + self._after_s
        self._parcels.append(parcel)
        if self._timer is None:
            self._timer = self._loop.call_at(parcel.deadline, self._expire)

    def tidy(self) -> None:
        """Let go of what was settled; call it after settling."""
        parcels = self._parcels
        while parcels and parcels[0].settled:
            parcels.popleft()
        while self._waiters and (not parcels or parcels[0].number > self._waiters[0][0]):
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)

    async def all_settled(self) -> None:
        """Wait until everything accepted so far is settled; cancelling is safe."""
        self.tidy()
        if self._parcels:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((self._accepted, waiter))
            await waiter

    def fail_all(self, why: str, error: RmqError | None = None) -> None:
        """Tell every caller that no answer comes any more; by ``error`` those of whom nothing was sent."""
        if self._timer is not None:
            self._timer.cancel()
        for parcel in self._parcels:
            if not parcel.settled:
                parcel.fail(parcel.overdue(why, error))
        self.tidy()

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for parcel in self._parcels:
            if parcel.deadline > now:
                break
            if not parcel.settled:
                parcel.fail(self._late(parcel))
        self.tidy()
        if self._parcels:
            self._timer = self._loop.call_at(self._parcels[0].deadline, self._expire)

    def _late(self, parcel: Parcel) -> RmqError:
        """Return what a caller gets whose time is over: the refusal itself only if nothing may have been stored."""
        within = f"within {self._after_s:g} s"
        refusal = parcel.trouble if isinstance(parcel.trouble, WireError) else self._refusal()
        if refusal is None:
            return parcel.overdue(f"no answer {within}{self._state()}")
        error = from_wire(refusal.code, f"nothing was stored in {parcel.topic!r} {within}: {refusal}")
        return parcel.overdue(f"no success {within}, last refused with {describe(refusal)}", error)
