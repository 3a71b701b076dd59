"""
One client's connection: frames in, replies out, and no harm to other connections.

Requests are handled in the receive callback itself. These rules keep the loop fair and the memory small:

- one read callback a turn: after a full buffer or 2 ms of work reading pauses and continues in the next turn;
- a request that takes longer is served in several turns by its handler, and later requests of the connection wait;
- all connections share one receive buffer; what a callback cannot finish is copied, and those copies have a budget;
- above the write high-water mark pulls wait (acks still go out), above four times that nothing is read; the mark
  sinks while much of the memory for unread replies, of which there is one budget, is taken;
- an error stays in its frame; only what breaks the framing closes the connection;
- a connection is closed in two steps, so that the reason arrives: what the peer still sends is taken and dropped.

:class:`ReplyBatch` lets all replies of a turn leave together. :class:`Service` is the broker as a connection sees it.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import (
    BadFrame,
    BadRequest,
    Fatal,
    HelloRequired,
    Internal,
    Refused,
    SlowReader,
    TooManyInFlight,
    UnknownOp,
    WireError,
    code_name,
)
from rmq.wire.protocol import frames
from rmq.wire.protocol import frames as send_frame
from rmq.wire.protocol.ops.core import Op, Push

from ..state.sessions import Session
from .limits import AnswerBudget, Peer, PeerLimits, PeerTimeouts, ReceiveBudget, Unread

log = get_broker_logger(__name__)
WORK_S = 0.002
FULL_READ = (256 << 10) - 4  # a callback with this much was cut by the buffer: more waits
PARTING_S = 1.0  # how long a peer may send while it is being closed; closed at once, a reset could eat the reason
PARTING_BYTES = 2 * frames.MAX_FRAME


class _Deferred:
    """What a handler returns when the answer comes later."""


DEFERRED = _Deferred()


class Connection(asyncio.BufferedProtocol):
    """The server's side of a connection; see the module for its rules."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._reader = frames.FrameReader(service.shared_buffer, frames.MAX_HELLO_FRAME)
        self._charged = 0
        self._backlog: deque[bytes] = deque()
        self._reading = True
        self._quiet = False
        self._suspended = False
        self._suspended_frame = 0  # size of the request that keeps the others waiting
        self._waits_for_budget = False
        self._out: list[Buffer] = []
        self._large = 0  # bytes of large answers among them
        self._flush_scheduled = False
        self._latest_pushes: dict[object, bytes] = {}  # the newest push of each key that waits for a blocked peer
        self.session: Session | None = None  # set by the hello
        self.peer = ""
        self.in_flight = 0
        self.blocked = False  # above the write high-water mark
        self._parting: asyncio.TimerHandle | None = None  # when a connection that is being closed ends
        self._dropped = 0  # bytes that came meanwhile
        self._closing_since: float | None = None  # as first seen by check_patience
        self._timeouts = PeerTimeouts(service.now())

    # ---- life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept, or say why not and close."""
        transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._transport = transport
        self.peer = _peer_name(transport.get_extra_info("peername"))
        self._answers = Unread(transport, self._service.answers, self._service.high_water, self.peer)
        if (peer := transport.get_extra_info("socket")) is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that vanished says nothing, ever
        refusal = self._service.opened(self)
        if refusal is not None:
            self.fail(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget everything of this connection."""
        self._transport = None
        self._answers.forget()
        if self._parting is not None:
            self._parting.cancel()
        self._out.clear()
        self._backlog.clear()
        self._service.budget.give_back(self, self._charged)
        self._charged = 0
        self._service.closed(self)

    @property
    def closing(self) -> bool:
        """Whether nothing can be answered any more."""
        return self._transport is None or self._parting is not None or self._transport.is_closing()

    @property
    def heard_at(self) -> float:
        """When the peer last said something."""
        return self._timeouts.heard_at

    def fail(self, error: Fatal, request_id: int | None = None) -> None:
        """Say why, then close."""
        if self.closing:
            return
        assert self._transport is not None
        log.warning("connection.closed", peer=self.peer, reason=error.name, text=error.text)
        if request_id is None:
            self._out.append(frames.pack(frames.PUSH, 0, Push.CLOSING, (error.code, error.text)))
        else:
            self._out.append(frames.pack(frames.REPLY, request_id, error.code, (error.text,)))
        self.flush()
        if self.blocked or self.closing:
            self.abort()  # it does not read: waiting for it to take the reason would wait for ever
        else:
            self._part()

    def _part(self) -> None:
        """Half-close; the rest follows when the peer has closed too, or after a moment."""
        assert self._transport is not None
        self._parting = self._loop.call_later(PARTING_S, self._close)
        self._backlog.clear()
        self._suspended_frame = 0
        self._reader = frames.FrameReader(self._service.shared_buffer, 0)
        self._settle_budget()
        try:
            self._transport.write_eof()
        except OSError:  # the peer has gone first
            self.abort()
        else:
            if not self._reading and self._transport is not None:  # not lost by this very call
                self._reading = True
                self._transport.resume_reading()

    def _close(self) -> None:
        if self._transport is None:
            return
        if self.session is None:
            self._transport.abort()  # it was sent only the reason: there is nothing to wait for
        else:
            self._transport.close()

    def abort(self) -> None:
        """End without a word; another connection has taken the session over."""
        if self._transport is not None:
            self._transport.abort()

    # ---- reading

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle what came; leave the rest for the next turn when it is too much for one."""
        if self._parting is not None:
            self._dropped += nbytes
            if self._dropped > PARTING_BYTES:
                self._close()
            return
        began, unfinished = self._service.clock(), self._reader.unfinished
        try:
            found = self._reader.received(nbytes)
        except Fatal as error:
            self.fail(error)
            return
        if found or not unfinished:
            self._timeouts.frame_began(self._service.now())
        for i, frame in enumerate(found):
            if self._suspended or (i and self._service.clock() - began > WORK_S):
                self._backlog.extend(map(bytes, found[i:]))  # views of the shared buffer die with this callback
                break
            self.handle(frame)
        self._settle_budget()
        if self._suspended:
            return  # resume() comes back to what is left
        if self._backlog or nbytes >= FULL_READ or self._service.clock() - began > WORK_S:
            self._pause_reading()
            self._loop.call_soon(self._continue)

    def eof_received(self) -> bool:
        """A half-closed peer gets no more answers: close."""
        return False

    def _continue(self) -> None:
        began = self._service.clock()
        while self._backlog and not self._suspended:
            self.handle(self._backlog.popleft())
            if self._service.clock() - began > WORK_S:
                break
        self._settle_budget()
        if self._suspended:
            return
        if self._backlog:
            self._loop.call_soon(self._continue)
        else:
            self._resume_reading()

    def _settle_budget(self) -> None:
        """Account for copies that outlive the callback; without room, reading waits for others to finish."""
        needed = self._reader.pending + sum(map(len, self._backlog)) + self._suspended_frame
        if self._transport is None or (needed == self._charged and not self._waits_for_budget):
            return
        self._waits_for_budget = not self._service.budget.charge(self, self._charged, needed)
        if self._waits_for_budget:
            self._pause_reading()
        else:
            self._charged = needed

    def budget_freed(self) -> None:
        """Called by the budget when there may be room again."""
        self._timeouts.frame_began(self._service.now())  # the wait was ours, not the peer's
        self._settle_budget()
        self._resume_reading()

    def _pause_reading(self) -> None:
        if self._reading and not self.closing:
            assert self._transport is not None
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading or self._quiet or self._suspended or self._backlog or self._waits_for_budget or self.closing:
            return
        assert self._transport is not None
        if self.blocked and self._answers.is_flooding:
            return  # resume_writing() comes back here
        self._reading = True
        self._transport.resume_reading()

    def quiesce(self) -> None:
        """Take no more requests; answers still go out."""
        self._quiet = True
        self._backlog.clear()
        self._pause_reading()

    def suspend(self) -> None:
        """Serve no later request until :meth:`resume`; they wait unread, or as copies."""
        self._suspended = True
        self._pause_reading()

    def resume(self) -> None:
        """Serve what came after a request that is answered now."""
        self._suspended, self._suspended_frame = False, 0
        self._loop.call_soon(self._continue)

    def handle(self, frame: Buffer) -> None:
        """Serve one frame; whatever goes wrong stays in it."""
        if self.closing:
            return
        try:
            parts = send_frame.split(frame, self._service.shared_buffer) or frames.unpack(frame)
        except Fatal as error:
            self.fail(error)
            return
        kind, request_id, op, payload = parts[:4]
        if kind != frames.REQUEST:
            self.fail(BadFrame(f"a client sends requests only, not frames of kind {kind}"))
            return
        if self.session is None and op != Op.HELLO:
            self.fail(HelloRequired("the first frame must be a hello"), request_id)
            return
        self.in_flight += 1
        try:
            answer = self._serve(request_id, op, payload)
            if answer is not DEFERRED:
                self.reply(request_id, answer)
        except Refused as error:
            self.refuse(request_id, error)
        except Fatal as error:
            self.fail(error, request_id)
        except Exception as error:
            self.refuse(request_id, self.defect(error, request_id))
        if self._suspended:
            self._suspended_frame = len(frame)  # what was decoded of it is kept as long

    def _serve(self, request_id: int, op: int, payload: Any) -> Any:
        handler = self._service.handlers.get(op)
        if handler is None:
            raise UnknownOp(f"operation {op} is unknown to this broker")
        if self.in_flight > self._service.max_in_flight:
            raise TooManyInFlight(f"more than {self._service.max_in_flight} requests of this connection are unanswered")
        return handler(self, request_id, payload)

    def defect(self, error: Exception, request_id: int) -> Internal:
        """Log a defect; return an error that leads the client to the log."""
        log_id = f"{id(self):x}-{request_id:x}"
        log.error("request.failed", log_id=log_id, peer=self.peer, exc_info=error)
        return Internal(f"the broker failed to serve this request; its log has the details under {log_id}")

    def greeted(self, session: Session) -> None:
        """The hello was accepted: larger frames are welcome from now on."""
        self.session = session
        self._reader.max_frame = frames.MAX_FRAME

    def set_aside(self) -> None:
        """A request waits for an event and is bounded by its handler: it keeps no other request from being served."""
        self.in_flight -= 1

    def take_back(self) -> None:
        """A request that was set aside is answered in this very step."""
        self.in_flight += 1

    # ---- writing

    def reply(self, request_id: int, payload: object) -> None:
        """Answer a request."""
        frame = frames.pack(frames.REPLY, request_id, 0, payload)
        if len(frame) > frames.MAX_FRAME:
            self.refuse(
                request_id, BadRequest(f"the answer would have {len(frame)} bytes, over the limit: ask for less")
            )
            return
        self.in_flight -= 1
        self._write(frame)

    def reply_parts(self, request_id: int, payload: Sequence[Buffer], kept: int = 0) -> None:
        """Answer a request with a payload that is msgpack already and keeps ``kept`` bytes besides in memory."""
        buffers = frames.pack_parts(frames.REPLY, request_id, 0, payload)
        self.in_flight -= 1
        self._write(*buffers)
        self._answers.keeps(kept)
        self._large += sum(map(len, buffers))
        if self._large > self._service.high_water:
            self.flush()  # not with the turn: the next large answer must know whether the peer takes this one

    def refuse(self, request_id: int, error: WireError) -> None:
        """Refuse a request; the connection goes on."""
        self.in_flight -= 1
        self._write(frames.pack(frames.REPLY, request_id, error.code, (error.text,)))

    def push_frame(self, frame: bytes, key: object = None) -> None:
        """
        Push a frame that was packed once for many clients.

        While the peer does not read, only the newest frame of a ``key`` is kept for it.
        """
        if self.blocked and key is not None:
            self._latest_pushes[key] = frame
        else:
            self._write(frame)

    def _write(self, *buffers: Buffer) -> None:
        if self.closing:
            return
        self._out += buffers
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._service.outgoing.add(self)  # answers of one turn leave together

    def flush(self) -> None:
        """Hand the answers so far to the transport."""
        self._flush_scheduled = False
        if not self._out or self._transport is None:
            return
        out, self._out, self._large = self._out, [], 0
        self._transport.writelines(out)
        now = self._service.now()
        self._answers.wrote(sum(map(len, out)), len(out), now)
        self._bound_unread()
        if self.session is not None:
            self.session.answered_at = now

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is answered."""
        self.blocked = True

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.blocked = False
        if self._transport is not None:
            self._answers.resumed()
            pushes, self._latest_pushes = self._latest_pushes, {}
            self._write(*pushes.values())
            self._resume_reading()
            self._service.unblocked(self)

    def _bound_unread(self) -> None:
        """Read nothing more from a peer that does not read; end it when too many pushes pile up."""
        if not self._answers.memory or self.closing:
            return
        if not self.blocked:
            self._answers.pause_if_much()
        if not self.blocked or not self._answers.is_flooding:
            return
        self._pause_reading()
        if (unread := self._answers.size) > 4 * self._service.high_water + frames.MAX_FRAME:
            log.warning("connection.aborted", peer=self.peer, reason=code_name(SlowReader.code), unread=unread)
            self.abort()  # it reads nothing, so it cannot be given a reason

    # ---- patience

    def check_timeouts(self, now: float, limits: PeerLimits) -> None:
        """Close a connection that keeps the broker waiting. Called about once a second."""
        self._answers.settle(now)
        if self.closing:
            self._check_farewell(now, limits.stall_s)
            return
        verdict = self._timeouts.judge(now, self._seen(), limits)
        if verdict is not None:
            self._end(verdict)

    def _seen(self) -> Peer:
        unfinished = self._reader.pending if self._reader.unfinished and self._reading else None
        contended, unread = self._service.budget.contended, self._answers.size
        return Peer(self.session is not None, unfinished, contended, unread, self._answers.written - unread)

    def _end(self, error: Fatal) -> None:
        """Say why and close, without waiting for a peer that does not read."""
        unread = self._answers.size
        self.fail(error)
        if unread:
            self.abort()

    def _check_farewell(self, now: float, stall_s: float) -> None:
        """A peer that does not take its last answers would keep a closed connection for ever."""
        if self._closing_since is None:
            self._closing_since = now
        elif now - self._closing_since > stall_s:
            self.abort()


def _peer_name(name: object) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) > 1 else str(name or "local")


class ReplyBatch:
    """
    Flushes connections with pending replies once per loop turn, so that they share one pass of writes.

    The committer flushes at once after the replies of a turn: a further turn of the loop would cost each of them a few
    microseconds more.
    """

    def __init__(self, call_soon: Callable[..., object]) -> None:
        self._call_soon = call_soon
        self._connections: list[Connection] = []

    def add(self, connection: Connection) -> None:
        """Schedule the first pending reply of a connection."""
        if not self._connections:
            self._call_soon(self.flush)
        self._connections.append(connection)

    def flush(self) -> None:
        """Write all pending replies. A connection that fails is aborted; the others continue."""
        connections, self._connections = self._connections, []
        for connection in connections:
            try:
                connection.flush()
            except Exception:  # the defect of one must not keep the others back
                log.exception("answer.failed")
                connection.abort()  # its client would wait for answers that are lost; so it asks again


Handler = Callable[["Connection", int, Any], Any]


class Service(Protocol):
    """What a connection needs of the broker around it."""

    handlers: dict[int, Handler]
    max_in_flight: int
    high_water: int
    shared_buffer: memoryview
    budget: ReceiveBudget
    answers: AnswerBudget
    outgoing: ReplyBatch

    def now(self) -> float:
        """Seconds of a clock that never falls."""

    def clock(self) -> float:
        """A fine clock for measuring work on the loop."""

    def opened(self, connection: Connection) -> Fatal | None:
        """A connection came; the reason if it may not stay."""

    def closed(self, connection: Connection) -> None:
        """A connection ended."""

    def unblocked(self, connection: Connection) -> None:
        """A connection can take large answers again."""
