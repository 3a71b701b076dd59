"""
The sending half of a producer: cuts batches from the outboxes, sends them in order, and follows each to its answer.

**Rules.** A batch is cut, numbered and written in one synchronous step, and only while the window has room and the
socket accepts data; until then messages stay uncut, where they can still be taken back. After a lost connection
everything in the window is sent again, in order, before anything new. After a temporary refusal nothing is sent until
everything in flight was answered; then, after a pause, everything from the refused batch on is sent again.

**Every event that makes room pumps**: an answer, a socket that accepts more, a connection, the end of a pause, the end
of a pump that was long enough. A message for an outbox that is already in the round does not.

**After a new connection** the broker's hello reports the outcome of each batch in the window. These are settled; the
others are certainly not stored and are cut again, with the numbers that the broker expects.

**Two halves.** Many callers that were answered together would send together again, and each side would wait while the
other works. So half of them are notified, their next messages are sent, then the others are notified: from then on
each side always has one of the halves. Where answers wait for the disk, that would be two waits instead of one.

**A defect of the broker** (``INTERNAL``) is retried a few times; then a new hello makes certain whether the batch was
stored, and if not, its callers get the error and the others are sent without it.
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
from .routing import Router
from .window import InFlightWindow, SentBatch, is_temporary

log = get_logger("rmq.client")

FRAME_BYTES: Final = 1 << 20  # a frame is closed once it is as long; one more batch stays far below the limit
FRAME_BATCHES: Final = 64
WINDOW_BYTES: Final = 64 << 20
TURN_S: Final = 0.002
WORTH_HALVING: Final = 32  # calls that are answered together
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 1.0
MAX_DEFECTS: Final = 5


class Sender:
    """Sends what is in the outboxes; ``after_answers()`` runs whenever callers may have been notified."""

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        max_in_flight: int,
        linger_s: float,
        on_fenced: Callable[[ProducerFenced], None],
        on_refusal: Callable[[WireError | None], None] | None,
        after_answers: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_fenced = on_fenced
        self._on_refusal = on_refusal  # called with None when the refusal is over
        self._after_answers = after_answers
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._max_in_flight = max_in_flight
        self._linger_s = linger_s
        self._window = InFlightWindow()
        self._ready: deque[Outbox] = deque()
        self._lingering: dict[Outbox, asyncio.TimerHandle] = {}
        self._pump_due = False
        self._unnotified: list[tuple[Part, list[Cut], int]] = []  # second halves of stored batches, and their starts
        self._stores = StoreIds(0)
        self._acknowledged = False  # the broker with this store has stored something of ours
        self._miscounted = False  # a new hello must report the next number
        self._fenced: ProducerFenced | None = None
        self._limit = max_in_flight  # batches in flight that this broker allows
        self._allowed = max_in_flight  # and how many are allowed now
        self._blocked = False  # by a temporary refusal
        self._pause_s = FIRST_PAUSE_S
        self._pause: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self.refusal: WireError | None = None  # the temporary refusal that holds messages back
        self._reported: int | None = None  # the code of the one that was reported last, until something is stored
        self._router: Router

    def attach(self, connection: Connection, router: Router) -> None:
        """Use this connection and this router, which call the methods below."""
        self._connection = connection
        self._router = router

    def producer_hello(self) -> ProducerHello:
        """Return the identity of the producer, and the first number whose outcome is not known."""
        return ProducerHello(self._producer_id, self._producer_epoch, self._window.first_unresolved)

    # Called by the producer

    def placed(self, outbox: Outbox) -> None:
        """
        Send from an outbox that was not ``ready`` at the end of this loop turn, or when the linger time is over.
        """
        if self._linger_s <= 0 or outbox.full:
            self._release(outbox)
        elif outbox not in self._lingering:
            self._lingering[outbox] = self._loop.call_later(self._linger_s, self._release, outbox)

    def hurry(self) -> None:
        """End all lingering."""
        for outbox in list(self._lingering):
            self._release(outbox)

    def close(self) -> None:
        """Send no more."""
        self._connection = None
        for timer in (*self._lingering.values(), self._pause):
            if timer is not None:
                timer.cancel()
        self._ready.clear()
        self._window.clear()

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
        if self.refusal is not None and not (self._blocked or self._ready or self._window):
            self.refusal = None  # the messages that it held back are gone
        self._after_answers()  # a message that cannot be encoded has failed

    def _has_room(self, connection: Connection) -> bool:
        window = self._window
        return not self._blocked and connection.writable and window.span < self._allowed and window.size < WINDOW_BYTES

    def _cut(self, outbox: Outbox) -> SentBatch | None:
        cut = outbox.cut(ProducerMark(self._producer_id, self._window.next_sequence, self._producer_epoch))
        outbox.ready = bool(outbox.sends)
        if outbox.ready:
            self._ready.append(outbox)
        if cut is None:
            return None
        self._router.left(outbox)
        return self._window.add(cut[0], outbox, cut[1])

    def _transmit(self, connection: Connection, batches: list[SentBatch]) -> None:
        parts: list[Buffer] = [array_header(1) + array_header(len(batches))]
        for batch in batches:
            parts.append(_TRIPLE + msgpack.packb(batch.outbox.queue_id) + bin_header(batch.size))
            parts += batch.data
            parts.append(msgpack.packb(batch.outbox.generation))
        connection.submit(Op.SEND, parts, partial(self._answered, batches))

    def _send_again(self, connection: Connection, frame_batches: int = FRAME_BATCHES) -> None:
        """Send everything in the window again, in order."""
        frame: list[SentBatch] = []
        size = 0
        for batch in self._window.resend():
            frame.append(batch)
            size += batch.size
            if size >= FRAME_BYTES or len(frame) == frame_batches:
                self._transmit(connection, frame)
                frame, size = [], 0
        if frame:
            self._transmit(connection, frame)

    # Called by the connection

    def connected(self, hello: HelloReply) -> None:
        """Settle the batches that the hello of a new connection reports; what is not settled is sent first."""
        connection = self._connection
        if connection is None:
            return
        # Another store reports numbers of other messages; a copy of the previous store reports ours.
        is_ours = not self._stores.current or hello.stores.has(self._stores.current)
        self._acknowledged &= self._stores.current == hello.store_id
        self._stores = hello.stores
        self._limit = max(1, min(self._max_in_flight, hello.limits.max_in_flight))
        self._allowed = self._limit
        self._unblock()
        if hello.producer is not None:
            self._settle(hello.producer, believed=is_ours)
        else:
            self._send_again(connection)
        self._pump_soon()

    def _settle(self, resumed: ProducerResumed, *, believed: bool) -> None:
        """Take over the outcomes that the broker reports; a number that it does not report as spent is not stored."""
        forgotten = not resumed.known and self._acknowledged
        for batch in self._window.unresolved():
            if not believed or (not forgotten and batch.sequence >= resumed.next_sequence):
                break
            place = batch.sequence - resumed.first
            if forgotten or not 0 <= place < len(resumed.outcomes):
                self._unknown(batch)
            elif (outcome := resumed.outcomes[place]).status != OK:
                self._fail(batch, from_wire(outcome.status, outcome.text or ""))
            else:
                self._stored(batch, *outcome[1:5])
        left = self._window.restart(resumed.next_sequence)
        if left and left[-1].defects >= MAX_DEFECTS:
            self._give_up(left[-1])
        self._put_back(left)
        self.notify_all()
        self._after_answers()

    def _unknown(self, batch: SentBatch) -> None:
        self._window.resolved(batch)
        for piece in batch.pieces:
            text = f"the broker does not know any more whether messages for {batch.outbox.topic!r} were stored"
            piece.pending.fail(OutcomeUnknown(text))

    def _give_up(self, batch: SentBatch) -> None:
        """Fail a batch that is not stored, and at which the broker fails each time; send the others one by one."""
        log.error("producer.gave_up", topic=batch.outbox.topic, queue=batch.outbox.queue_id, error=batch.refusal)
        for piece in batch.pieces:
            piece.pending.fail(batch.refusal or OutcomeUnknown("the broker failed at this batch"))
        self._allowed = 1

    def lost(self, _error: Exception) -> None:
        """Record that the connection ended; what was certainly not stored returns to its outbox, and can time out."""
        self._window.lost()
        self._take_back()

    def writable(self) -> None:
        """Continue to send, as the socket accepts more."""
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
        if self._blocked and not self._window.flying:
            self._recover()
        self._pump_soon()
        if self._unnotified:
            self._loop.call_soon(self._notify_others)  # after the pump, which sends what the first half had to send
        self._after_answers()

    def _notify_others(self) -> None:
        self.notify_all()
        self._pump_soon()
        self._after_answers()

    def notify_all(self) -> None:
        """Notify all callers whose messages are stored."""
        unnotified, self._unnotified = self._unnotified, []
        for whole, pieces, first in unnotified:
            self._notify(whole, pieces, first)

    def _judge(self, batch: SentBatch, result: Any) -> None:
        status, base_offset, physical_offset, stored_at, durable = result[:5]
        if status != OK:
            self._refused(batch, from_wire(status, str(result[6]) if len(result) > 6 else ""))
            return
        self._stored(batch, base_offset, physical_offset, stored_at, durable)
        self._allowed, self._pause_s = self._limit, FIRST_PAUSE_S
        if self._reported is not None:
            self._accepted()

    def _stored(self, batch: SentBatch, base_offset: int, physical_offset: int, stored_at: int, durable: bool) -> None:
        self._window.resolved(batch)
        self._acknowledged = True
        whole, pieces = Part(0, base_offset, physical_offset, 0, stored_at, durable), batch.pieces
        idle = not self._window.flying and not self._pump_due  # nothing is at the broker, or about to be sent
        if idle and len(pieces) >= WORTH_HALVING and not durable and self._allowed > 1:
            half = len(pieces) // 2
            self._unnotified.append((whole, pieces[half:], self._notify(whole, pieces[:half], 0)))
        else:
            self._notify(whole, pieces, 0)

    def _notify(self, whole: Part, pieces: list[Cut], first: int) -> int:
        """Notify the callers of pieces, which start at the message ``first`` of their batch; return where they end."""
        store_id = self._stores.at(whole.physical_offset)
        for piece in pieces:
            piece.stored(whole, first, store_id)
            first += piece.count
        return first

    def _refused(self, batch: SentBatch, error: WireError) -> None:
        if is_temporary(error.code):
            self._window.refused(batch, error)
            self._blocked = True
            return
        if isinstance(error, ProducerFenced):
            self._fenced = error
            self._blocked = True
        elif isinstance(error, SequenceConflict):
            self._miscounted = self._blocked = True
        self._fail(batch, error)

    def _fail(self, batch: SentBatch, error: WireError) -> None:
        self._window.resolved(batch)
        if isinstance(error, TopicNotFound | QueueNotFound):
            self._router.forget(batch.outbox.topic)
        for piece in batch.pieces:
            piece.pending.fail(error)

    # After a temporary refusal

    def _recover(self) -> None:
        """Pause, now that everything is answered, then send again what was refused, starting with one batch."""
        if self._fenced is not None:
            self._on_fenced(self._fenced)  # nothing is stored from here on
            return
        head = self._window.head
        why = None if head is None else head.refusal
        self._take_back()
        self._allowed = 1
        # Nothing is missing before the first batch, so the two sides count differently: a new hello settles that.
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
        Report a temporary refusal once, until something is stored or another refusal replaces it.

        Refusals of a hello or of a route are reported here, too.
        """
        if self._reported != refusal.code:
            log.warning("producer.refused", error=describe(refusal))
            if self._on_refusal is not None:
                self._loop.call_soon(self._on_refusal, refusal)
        self._reported = refusal.code

    def _accepted(self) -> None:
        self.refusal = self._reported = None
        log.warning("producer.accepted")
        if self._on_refusal is not None:
            self._loop.call_soon(self._on_refusal, None)

    def _resume(self) -> None:
        self._unblock()
        connection = self._connection
        if connection is not None and connection.connected:
            self._send_again(connection, 1)  # so that one that the broker fails at fails no other in its frame
            self._pump_soon()

    def _unblock(self) -> None:
        self._blocked = False
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _take_back(self) -> None:
        self._put_back(self._window.take_back())

    def _put_back(self, batches: list[SentBatch]) -> None:
        """Return batches to their outboxes, to be cut again; they come newest first."""
        for batch in batches:
            batch.outbox.put_back(batch.pieces)
            if not batch.outbox.ready:
                batch.outbox.ready = True
                self._ready.append(batch.outbox)


_TRIPLE: Final = array_header(3)
