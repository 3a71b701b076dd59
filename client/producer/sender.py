"""
The machine behind a producer: cuts batches from the outboxes, sends them in line, and follows each to its answer.

**The rules it keeps.** A batch is cut, numbered and written in one synchronous step, only while the window has room and
the socket takes it; until then messages wait uncut, where they can still be taken out. After a lost connection all
that is in line goes out again, in order, before anything new. After a temporary refusal nothing is sent until all that
is under way was answered; then, after a pause, everything from the refused one on goes out again.

**Whoever makes room pumps**: an answer, a socket that takes more, a connection, the end of a pause, the end of a turn
that was long enough. A message for an outbox that stands in the round already does not.

**After a new connection** the broker's hello says what became of each batch in line. These are answered; the others
are certainly not stored and are cut anew, with the numbers that the broker expects.

**Two halves.** Many calls that were answered together would send together again, and each side would wait while the
other works. So half of them are told, what they send next is on its way, then the others are told: from then on each
side always has one of the halves. Where answers wait for the disk, that would be two waits instead of one.

**A defect of the broker** (``INTERNAL``) is met with a few tries; then a new hello makes certain whether the batch was
stored, and if not, its callers get the error and the line goes on without it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgpack

from rmq.engine.native.connection import Connection, describe, refusal
from rmq.runtime.logging import get_logger
from rmq.wire.batch.batch import ProducerMark
from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import (
    OK,
    BadFrame,
    ConnectionLost,
    OutcomeUnknown,
    OutOfSequence,
    ProducerFenced,
    QueueNotFound,
    SequenceConflict,
    TopicNotFound,
    WireError,
    from_wire,
)
from rmq.wire.protocol.frames import array_header, bin_header
from rmq.wire.protocol.hello import HelloReply, ProducerHello, ProducerResumed
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from .outbox import Outbox
from .pending import Cut
from .receipts import Part
from .window import Line, SentBatch, is_temporary

log = get_logger("rmq.client")

FRAME_BYTES: Final = 1 << 20  # a frame is closed once it is as long; one more batch stays far below the limit
FRAME_BATCHES: Final = 64
LINE_BYTES: Final = 64 << 20
TURN_S: Final = 0.002
WORTH_HALVING: Final = 32  # calls that are answered together
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 1.0
MAX_DEFECTS: Final = 5


class Sender:
    """Sends what is in the outboxes; ``after_answers()`` runs whenever callers may have been told something."""

    def __init__(self, producer_id: int, producer_epoch: int = 0, *, max_in_flight: int, linger_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._max_in_flight = max_in_flight
        self._linger_s = linger_s
        self._line = Line()
        self._ready: deque[Outbox] = deque()
        self._lingering: dict[Outbox, asyncio.TimerHandle] = {}
        self._pump_due = False
        self._untold: list[tuple[Part, list[Cut], int]] = []  # of a stored batch the second half, and where that begins
        self._stores = StoreIds(0)
        self._acknowledged = False  # the broker with this store has stored something of ours
        self._miscounted = False  # a new hello must tell the next number
        self._fenced: ProducerFenced | None = None
        self._most = max_in_flight  # batches in flight that this broker allows us
        self._window = max_in_flight  # and that we allow ourselves now
        self._blocked = False  # by a temporary refusal
        self._pause_s = FIRST_PAUSE_S
        self._pause: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self.refusal: WireError | None = None  # the temporary refusal under which messages wait
        self._reported: int | None = None  # the code of the one that was reported last, until something is stored
        self.on_cut: Callable[[Outbox], None] = lambda outbox: None
        self.on_wrong_route: Callable[[str], None] = lambda topic: None
        self.on_fenced: Callable[[ProducerFenced], None] = lambda error: None
        self.on_refusal: Callable[[WireError | None], None] = lambda error: None  # None: it is over
        self.after_answers: Callable[[], None] = lambda: None

    def attach(self, connection: Connection) -> None:
        """Send over this connection, whose events come to the methods below."""
        self._connection = connection

    def producer_hello(self) -> ProducerHello:
        """Who sends, and from which number on the outcome is not known."""
        return ProducerHello(self._producer_id, self._producer_epoch, self._line.first_unresolved)

    # What the producer says

    def placed(self, outbox: Outbox) -> None:
        """
        Something was put into an outbox that was not ``ready``: it is sent at the end of this turn, or when the linger
        time is over.
        """
        if self._linger_s <= 0 or outbox.full:
            self._release(outbox)
        elif outbox not in self._lingering:
            self._lingering[outbox] = self._loop.call_later(self._linger_s, self._release, outbox)

    def hurry(self) -> None:
        """Linger no longer."""
        for outbox in list(self._lingering):
            self._release(outbox)

    def close(self) -> None:
        """Send no more."""
        self._connection = None
        for timer in (*self._lingering.values(), self._pause):
            if timer is not None:
                timer.cancel()
        self._ready.clear()
        self._line.clear()

    def _release(self, outbox: Outbox) -> None:
        timer = self._lingering.pop(outbox, None)
        if timer is not None:
            timer.cancel()
        if not outbox.ready:
            outbox.ready = True
            self._ready.append(outbox)
        self._pump_soon()

    # Sending

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Cut and send while there is room, one batch of each outbox in turn, for at most 2 ms at a stretch."""
        self._pump_due = False
        connection, began = self._connection, self._loop.time()
        frame: list[SentBatch] = []
        size = 0
        while self._ready and connection is not None and self._has_room(connection):
            batch = self._cut(self._ready.popleft())
            if batch is None:
                continue
            frame.append(batch)
            size += batch.size
            if size >= FRAME_BYTES or len(frame) == FRAME_BATCHES:
                self._transmit(connection, frame)
                connection.flush()
                frame, size = [], 0
            if self._loop.time() - began > TURN_S:
                self._pump_soon()
                break
        if connection is not None:
            if frame:
                self._transmit(connection, frame)
            connection.flush()
        if self.refusal is not None and not (self._blocked or self._ready or self._line):
            self.refusal = None  # those who waited are gone
        self.after_answers()  # a message that cannot be encoded was told so

    def _has_room(self, connection: Connection) -> bool:
        line = self._line
        return not self._blocked and connection.writable and line.span < self._window and line.size < LINE_BYTES

    def _cut(self, outbox: Outbox) -> SentBatch | None:
        cut = outbox.cut(ProducerMark(self._producer_id, self._line.next_sequence, self._producer_epoch))
        outbox.ready = bool(outbox.parcels)
        if outbox.ready:
            self._ready.append(outbox)
        if cut is None:
            return None
        self.on_cut(outbox)
        return self._line.add(cut[0], outbox, cut[1])

    def _transmit(self, connection: Connection, batches: list[SentBatch]) -> None:
        parts: list[Buffer] = [array_header(1) + array_header(len(batches))]
        for batch in batches:
            parts.append(_TRIPLE + msgpack.packb(batch.outbox.queue_id) + bin_header(batch.size))
            parts += batch.data
            parts.append(msgpack.packb(batch.outbox.generation))
        connection.submit(Op.SEND, parts, partial(self._answered, batches))

    def _send_again(self, connection: Connection, frame_batches: int = FRAME_BATCHES) -> None:
        """Send all that is in line, in order."""
        frame: list[SentBatch] = []
        size = 0
        for batch in self._line.resend():
            frame.append(batch)
            size += batch.size
            if size >= FRAME_BYTES or len(frame) == frame_batches:
                self._transmit(connection, frame)
                frame, size = [], 0
        if frame:
            self._transmit(connection, frame)

    # What the connection says

    def connected(self, hello: HelloReply) -> None:
        """A new connection: its hello answers for what was in line; what has no answer yet goes first."""
        connection = self._connection
        if connection is None:
            return
        # What another store tells of our numbers is about other messages; a copy of the one before tells of ours.
        is_ours = not self._stores.current or hello.stores.has(self._stores.current)
        self._acknowledged &= self._stores.current == hello.store_id
        self._stores = hello.stores
        self._most = max(1, min(self._max_in_flight, hello.limits.max_in_flight))
        self._window = self._most
        self._unblock()
        if hello.producer is not None:
            self._settle(hello.producer, believed=is_ours)
        else:
            self._send_again(connection)
        self._pump_soon()

    def _settle(self, resumed: ProducerResumed, *, believed: bool) -> None:
        """Take over what the broker reports of the numbers in line; what it does not report as spent is not stored."""
        forgotten = not resumed.known and self._acknowledged
        for batch in self._line.unresolved():
            if not believed or (not forgotten and batch.sequence >= resumed.next_sequence):
                break
            place = batch.sequence - resumed.first
            if forgotten or not 0 <= place < len(resumed.outcomes):
                self._unknown(batch)
            elif (outcome := resumed.outcomes[place]).status != OK:
                self._fail(batch, from_wire(outcome.status, outcome.text or ""))
            else:
                self._stored(batch, *outcome[1:5])
        left = self._line.restart(resumed.next_sequence)
        if left and left[-1].defects >= MAX_DEFECTS:
            self._give_up(left[-1])
        self._put_back(left)
        self.tell_all()
        self.after_answers()

    def _unknown(self, batch: SentBatch) -> None:
        self._line.resolved(batch)
        for piece in batch.pieces:
            text = f"the broker does not know any more whether messages for {batch.outbox.topic!r} were stored"
            piece.parcel.fail(OutcomeUnknown(text))

    def _give_up(self, batch: SentBatch) -> None:
        """It is not stored, and the broker fails at it each time: its callers are told, others go on one by one."""
        log.error("producer.gave_up", topic=batch.outbox.topic, queue=batch.outbox.queue_id, error=batch.refusal)
        for piece in batch.pieces:
            piece.parcel.fail(batch.refusal or OutcomeUnknown("the broker failed at this batch"))
        self._window = 1

    def lost(self, _error: Exception) -> None:
        """The connection ended; what certainly was not stored waits with the others, where it can time out."""
        self._line.lost()
        self._take_back()

    def writable(self) -> None:
        """The socket takes more."""
        self._pump_soon()

    def _answered(self, batches: list[SentBatch], status: int, payload: Any) -> None:
        try:
            if status == OK:
                for batch, result in zip(batches, payload, strict=True):
                    self._judge(batch, result)
            else:
                for batch in batches:
                    self._refused(batch, refusal(status, payload))
        except (TypeError, ValueError, IndexError) as error:
            if self._connection is not None:
                self._connection.drop(BadFrame(f"the answer to a send cannot be read: {error}"))
        if self._blocked and not self._line.flying:
            self._recover()
        self._pump_soon()
        if self._untold:
            self._loop.call_soon(self._tell_others)  # behind the pump, which sends what those told first had to send
        self.after_answers()

    def _tell_others(self) -> None:
        self.tell_all()
        self._pump_soon()
        self.after_answers()

    def tell_all(self) -> None:
        """Keep nobody waiting whose messages are stored."""
        untold, self._untold = self._untold, []
        for whole, pieces, first in untold:
            self._tell(whole, pieces, first)

    def _judge(self, batch: SentBatch, result: Any) -> None:
        status, base_offset, physical_offset, stored_at, durable = result[:5]
        if status != OK:
            self._refused(batch, from_wire(status, str(result[6]) if len(result) > 6 else ""))
            return
        self._stored(batch, base_offset, physical_offset, stored_at, durable)
        self._window, self._pause_s = self._most, FIRST_PAUSE_S
        if self._reported is not None:
            self._accepted()

    def _stored(self, batch: SentBatch, base_offset: int, physical_offset: int, stored_at: int, durable: bool) -> None:
        self._line.resolved(batch)
        self._acknowledged = True
        whole, pieces = Part(0, base_offset, physical_offset, 0, stored_at, durable), batch.pieces
        idle = not self._line.flying and not self._pump_due  # nothing of ours is at the broker, or about to go there
        if idle and len(pieces) >= WORTH_HALVING and not durable and self._window > 1:
            half = len(pieces) // 2
            self._untold.append((whole, pieces[half:], self._tell(whole, pieces[:half], 0)))
        else:
            self._tell(whole, pieces, 0)

    def _tell(self, whole: Part, pieces: list[Cut], first: int) -> int:
        """Tell the callers of these pieces, which begin at the message ``first`` of their batch; where they end."""
        store_id = self._stores.at(whole.physical_offset)
        for piece in pieces:
            piece.stored(whole, first, store_id)
            first += piece.count
        return first

    def _refused(self, batch: SentBatch, error: WireError) -> None:
        if is_temporary(error.code):
            self._line.refused(batch, error)
            self._blocked = True
            return
        if isinstance(error, ProducerFenced):
            self._fenced = error
            self._blocked = True
        elif isinstance(error, SequenceConflict):
            self._miscounted = self._blocked = True
        self._fail(batch, error)

    def _fail(self, batch: SentBatch, error: WireError) -> None:
        self._line.resolved(batch)
        if isinstance(error, TopicNotFound | QueueNotFound):
            self.on_wrong_route(batch.outbox.topic)
        for piece in batch.pieces:
            piece.parcel.fail(error)

    # After a temporary refusal

    def _recover(self) -> None:
        """All that was under way is answered: pause, then send again what was refused, beginning with one batch."""
        if self._fenced is not None:
            self.on_fenced(self._fenced)  # nothing is stored from here on
            return
        head = self._line.head
        why = None if head is None else head.refusal
        self._take_back()
        self._window = 1
        # Nothing is missing before the first in line, so the two sides count differently: a new hello tells it.
        self._miscounted |= why is not None and why.code == OutOfSequence.code
        if self._connection is not None and (self._miscounted or (head is not None and head.defects >= MAX_DEFECTS)):
            self._miscounted = False
            self._connection.drop(ConnectionLost(f"a new hello must tell where this producer stands: {why}"))
            return
        if why is not None:
            self.refusal = why
            self.report(why)
        self._pause = self._loop.call_later(self._pause_s, self._resume)
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)

    def report(self, refusal: WireError) -> None:
        """
        Report a temporary refusal at once, and no more until something is stored or another refusal takes its place.

        Refusals of a hello or of a route are reported here, too.
        """
        if self._reported != refusal.code:
            log.warning("producer.refused", error=describe(refusal))
            self._loop.call_soon(self.on_refusal, refusal)
        self._reported = refusal.code

    def _accepted(self) -> None:
        self.refusal = self._reported = None
        log.warning("producer.accepted")
        self._loop.call_soon(self.on_refusal, None)

    def _resume(self) -> None:
        self._unblock()
        connection = self._connection
        if connection is not None and connection.connected:
            self._send_again(connection, 1)  # one that the broker fails at takes no other down with its frame
            self._pump_soon()

    def _unblock(self) -> None:
        self._blocked = False
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _take_back(self) -> None:
        self._put_back(self._line.take_back())

    def _put_back(self, batches: list[SentBatch]) -> None:
        """Let batches be cut anew; they come newest first."""
        for batch in batches:
            batch.outbox.put_back(batch.pieces)
            if not batch.outbox.ready:
                batch.outbox.ready = True
                self._ready.append(batch.outbox)


_TRIPLE: Final = array_header(3)
