"""
SEND: judge, number, stage. The reply leaves when the batches are as durable as the flush mode promises.

A frame is worked off for 2 ms a turn. Later frames of its connection wait, so order is kept; a producer that loses the
connection in between sends again what is missing, since a frame is not a transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.errors import OK, BadName, DiskFull, OutOfSequence, Refused, StoreFailed, UnsupportedFormat
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import MAX_BATCHES, OutgoingBatch, Send, SendResult

from ..net.connection import DEFERRED, WORK_S, Connection
from ..state.deferred import Delays
from ..state.producers import ProducerTable
from ..state.topics import TopicTable
from ..store.committer import Committer, refusal_of
from ..store.message_store import MessageStore, Placed
from .requests import check_entries

# Refusals that may pass by themselves: the producer keeps its number and comes again.
_TEMPORARY = (OutOfSequence, StoreFailed, DiskFull)


class SendFrame:
    """A frame: worked off in one turn or several, answered once."""

    __slots__ = ("_unsettled", "connection", "left", "request_id", "tickets")

    def __init__(self, connection: Connection, request_id: int, batches_: list[OutgoingBatch]) -> None:
        self.connection = connection
        self.request_id = request_id
        self.left = deque(batches_)
        self.tickets: list[SendTicket] = []  # one a turn
        self._unsettled = 0

    def add(self, ticket: SendTicket) -> None:
        """Some of the batches are about to be staged."""
        self.tickets.append(ticket)
        self._unsettled += 1

    def settled(self) -> None:
        """What was staged in one of the turns has its results; the last one answers."""
        self._unsettled -= 1
        if not self.left and not self._unsettled:
            results = [result for ticket in self.tickets for result in ticket.results]
            self.connection.reply(self.request_id, results)


class SendTicket:
    """What one turn made of a send frame, waiting for the disk."""

    __slots__ = ("_frame", "_handler", "numbered", "results")

    def __init__(self, handler: SendHandler, frame: SendFrame) -> None:
        self._handler = handler
        self._frame = frame
        self.results: list[SendResult] = []
        self.numbered: list[tuple[int, layout.Header]] = []  # results that hold once the turn is written, by place

    def stored(self) -> None:
        """Answer, if this was the last of the frame."""
        self._frame.settled()

    def failed(self, error: OSError) -> None:
        """
        Take back the numbers of what was not written, and say so.

        Also of batches that were refused for good: after one that was not stored a number cannot stay spent.
        """
        refusal = _refusal(refusal_of(error))
        for place, header in reversed(self.numbered):
            self._handler.producers.retract(header.producer_id, header.producer_epoch, header.sequence)
            if header.producer_id:
                self.results[place] = refusal
        # A duplicate's original may not be durable yet either: both are refused for now.
        self.results = [refusal if result.status == OK else result for result in self.results]
        self.stored()


class SendHandler:
    """Appends batches to the log, each producer's in order and once."""

    def __init__(
        self, store: MessageStore, topics: TopicTable, producers: ProducerTable, committer: Committer, delays: Delays,
        *, durable: bool, now: Callable[[], float], clock: Callable[[], float], call_soon: Callable[..., object],
    ) -> None:  # fmt: skip
        self._store = store
        self._topics = topics
        self.producers = producers
        self._committer = committer
        self._delays = delays
        self._durable = durable
        self._now = now
        self._clock = clock
        self._call_soon = call_soon
        self.refuse_because: str | None = None  # why nothing is accepted at present (set by the disk watch)

    def send(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Stage every batch of a frame; each has its own answer."""
        if isinstance(payload, Send):  # taken apart already, without a copy
            request = payload
        else:
            check_entries(payload, 0, MAX_BATCHES)
            request = decode(Send, payload)
        frame = SendFrame(connection, request_id, request.batches)
        self._work(frame)
        if frame.left:
            connection.suspend()
        return DEFERRED

    def _work(self, frame: SendFrame) -> None:
        """Stage for 2 ms, at least one batch; the next turn comes back to what is left."""
        until = self._clock() + WORK_S
        ticket = SendTicket(self, frame)
        frame.add(ticket)
        self._committer.add_send(ticket)  # first: what is staged below must be taken back if the write fails
        while frame.left:
            outgoing = frame.left.popleft()
            try:
                ticket.results.append(self._append(ticket, *outgoing))
            except Refused as error:
                ticket.results.append(_refusal(error))
            except Exception as error:
                ticket.results.append(_refusal(frame.connection.defect(error, frame.request_id)))
            if frame.left and self._clock() > until:
                self._call_soon(self._go_on, frame)
                return

    def _go_on(self, frame: SendFrame) -> None:
        if frame.connection.closing:
            return
        self._work(frame)
        if not frame.left:
            frame.connection.resume()

    def _append(self, ticket: SendTicket, queue_id: int, batch: bytes, generation: int) -> SendResult:
        # Before anything is believed of whose batch it is; but for its bodies, whose refusal spends the number.
        checked = batches.check(batch, stamped=False, unpack=False)
        header, now = checked.header, self._now()
        mark = (header.producer_id, header.producer_epoch, header.sequence)
        known = self.producers.admit(*mark, header.batch_crc, now=now)
        if known is not None:
            return SendResult(OK, known.base_offset, known.physical_offset, known.stored_at, self._durable, True)
        try:
            batches.check_bodies(batch, header)
            placed = self._stage(queue_id, batch, checked, generation)
        except _TEMPORARY:
            raise
        except Refused as error:
            self.producers.spend(*mark, header.batch_crc, error.code, now=now)
            ticket.numbered.append((len(ticket.results), header))
            raise
        self.producers.record(*mark, header.batch_crc, *placed, now=now)
        ticket.numbered.append((len(ticket.results), header))
        return SendResult(OK, placed.base_offset, placed.physical_offset, placed.stored_at, self._durable, False)

    def _stage(self, queue_id: int, batch: bytes, checked: batches.Checked, generation: int) -> Placed:
        header = checked.header
        if self.refuse_because is not None:
            raise DiskFull(self.refuse_because)
        if header.kind != layout.KIND_DATA:
            raise UnsupportedFormat(f"a producer may not send batches of kind {header.kind}")
        if header.topic[:1] == "%":
            raise BadName(f"the topic {header.topic!r} is written by the broker alone: send to one of your own")
        topic = self._topics.require_queue(header.topic, queue_id, generation)
        due_at = self._delays.due_at(header) if header.delay_level or header.deliver_at else 0
        self._committer.before_send()
        return self._store.stage(MessageQueue(header.topic, queue_id), topic.generation, batch, checked, 0, due_at)


def _refusal(error: Refused) -> SendResult:
    return SendResult(error.code, text=error.text)
