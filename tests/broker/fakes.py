"""A broker's connection without a socket: bytes in, frames out, turns and time by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from rmq.broker.net.connection import DEFERRED, Connection, Handler, Service
from rmq.broker.net.limits import AnswerBudget, ReceiveBudget
from rmq.broker.state.sessions import Session
from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import Fatal, TooManyInFlight
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import Op

ECHO = 50
LATER = 51
BROKEN = 52
COSTLY = 53  # takes 1 ms by the service's clock
BIG = 54


class Later:
    """A callback of a timer; a test runs it when it wants the time to be up."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.run = run
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Turns:
    """The part of a loop that a connection uses; a turn runs what was asked for before it began."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        self.later: list[Later] = []

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self.soon.append(lambda: callback(*args))

    def call_later(self, delay: float, callback: Callable[[], object]) -> Later:
        self.later.append(Later(callback))
        return self.later[-1]

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


class FakeService:
    """What a connection needs of the broker."""

    def __init__(self, *, budget: int = 1 << 20, answers: int = 128 << 20, buffer: int = 256 << 10) -> None:
        self.time = 0.0
        self.fine = 0.0
        self.max_in_flight = 1024
        self.high_water = 1000
        self.shared_buffer = memoryview(bytearray(buffer))
        self.budget = ReceiveBudget(budget)
        self.answers = AnswerBudget(answers, now=self.now)
        self.outgoing: Any = self
        self.refusal: Fatal | None = None
        self.open: list[Connection] = []
        self.unblocked_calls: list[Connection] = []
        self.served: list[Any] = []
        self.later: list[tuple[Connection, int]] = []
        self.handlers: dict[int, Handler] = {
            Op.HELLO: self._hello, ECHO: self._echo, LATER: self._later, BROKEN: self._broken, COSTLY: self._costly,
            BIG: self._big,
        }  # fmt: skip

    def add(self, connection: Connection) -> None:
        """As that of what goes out at the end of a turn."""
        connection._loop.call_soon(connection.flush)

    def now(self) -> float:
        return self.time

    def clock(self) -> float:
        return self.fine

    def opened(self, connection: Connection) -> Fatal | None:
        self.open.append(connection)
        return self.refusal

    def closed(self, connection: Connection) -> None:
        self.open.remove(connection)

    def unblocked(self, connection: Connection) -> None:
        self.unblocked_calls.append(connection)

    def _hello(self, connection: Connection, request_id: int, payload: Any) -> object:
        connection.greeted(Session(b"s" * 16, "test#73737373", connection, self.time))
        return {}

    def _echo(self, connection: Connection, request_id: int, payload: Any) -> object:
        self.served.append(payload)
        return payload

    def _later(self, connection: Connection, request_id: int, payload: Any) -> object:
        self.later.append((connection, request_id))
        return DEFERRED

    def _broken(self, connection: Connection, request_id: int, payload: Any) -> object:
        raise ZeroDivisionError("a defect")

    def _costly(self, connection: Connection, request_id: int, payload: Any) -> object:
        self.fine += 0.001
        return self._echo(connection, request_id, payload)

    def _big(self, connection: Connection, request_id: int, payload: Any) -> object:
        return bytes(payload[0])


class FakeTransport:
    """A peer: what it sends is kept while reading is paused, what it does not take is buffered."""

    def __init__(self, protocol: Connection) -> None:
        self.protocol = protocol
        self.incoming = b""
        self.reading = True
        self.callbacks = 0
        self.taken = bytearray()  # what the peer has read
        self.unsent = bytearray()
        self.takes = True
        self.high = 0
        self.paused = False
        self.closing = False
        self.ended = False
        self.half_closed = False
        self.leaves = True  # whether it closes when the broker has half-closed

    # what the connection calls

    def get_extra_info(self, name: str) -> object:
        return ("10.0.0.7", 4711) if name == "peername" else None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0
        self._maybe_pause()

    def pause_reading(self) -> None:
        assert self.reading and not self.closing
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading and not self.closing
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def writelines(self, buffers: Iterable[Buffer]) -> None:
        assert not self.half_closed
        self.unsent += b"".join(buffers)
        if self.takes:
            self.take(len(self.unsent))
        else:
            self._maybe_pause()

    def _maybe_pause(self) -> None:
        if len(self.unsent) > self.high and not self.paused:
            self.paused = True
            self.protocol.pause_writing()

    def write_eof(self) -> None:
        self.half_closed = True
        self._leave()

    def close(self) -> None:
        self.closing = True
        if not self.unsent:
            self._end()

    def abort(self) -> None:
        self.closing = True
        self.unsent.clear()
        self._end()

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            self.protocol.connection_lost(None)

    # what the peer does

    def take(self, count: int) -> None:
        """Read some of what was answered."""
        self.taken += self.unsent[:count]
        del self.unsent[:count]
        if self.paused and len(self.unsent) <= self.high // 4:
            self.paused = False
            self.protocol.resume_writing()
        if self.closing and not self.unsent:
            self._end()
        self._leave()

    def _leave(self) -> None:
        """A peer that has read everything and the end of it closes too."""
        if self.half_closed and not self.unsent and self.leaves and not self.closing:
            assert not self.protocol.eof_received()
            self.close()

    def deliver(self, *, callbacks: int = 1 << 30) -> None:
        """Run read callbacks while the connection reads and something is there."""
        while callbacks and self.incoming and self.reading and not self.closing:
            buffer = self.protocol.get_buffer(-1)
            count = min(len(buffer), len(self.incoming))
            buffer[:count] = self.incoming[:count]
            self.incoming = self.incoming[count:]
            self.protocol.buffer_updated(count)
            self.callbacks += 1
            callbacks -= 1


class Peer:
    """A client of a fake service, seen from its side."""

    def __init__(
        self, service: Service, turns: Turns | None = None, *, greet: bool = True, leaves: bool = True
    ) -> None:
        self.turns = turns or Turns()
        self.connection = Connection(service, cast(asyncio.AbstractEventLoop, self.turns))
        self.transport = FakeTransport(self.connection)
        self.transport.leaves = leaves
        self.connection.connection_made(cast(asyncio.Transport, self.transport))
        if greet:
            self.send(request(0, Op.HELLO, {}))
            assert self.answers() == [[frames.REPLY, 0, 0, {}]]

    def send(self, data: bytes) -> None:
        """Send, and let the connection read until it pauses; answers leave in the next turn."""
        self.transport.incoming += data
        self.transport.deliver()

    def answers(self) -> list[list[Any]]:
        """Run turns until nothing is to be done; all frames that came since the last call."""
        while self.turns.soon or (self.transport.incoming and self.transport.reading and not self.transport.closing):
            self.turns.turn()
            self.transport.deliver()
        return self.taken()

    def taken(self) -> list[list[Any]]:
        """All whole frames that the peer has read since the last call."""
        found, at, data = [], 0, bytes(self.transport.taken)
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            found.append(frames.unpack(data[at + 4 : end]))
            at = end
        del self.transport.taken[:at]
        return found


def request(request_id: int, op: int, payload: object) -> bytes:
    """A request as it travels."""
    return frames.pack(frames.REQUEST, request_id, op, payload)


def ok(request_id: int, payload: object) -> list[Any]:
    """An answer that is no refusal."""
    return [frames.REPLY, request_id, 0, payload]


class HeldPool:
    """A read pool whose jobs run when told, on the loop."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.full = False

    def __len__(self) -> int:
        return len(self.jobs)

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Keep a job."""
        if self.full:
            raise TooManyInFlight("too many reads wait for the disk already: try again")
        self.jobs.append((job, done))

    def run(self, count: int = 1 << 30) -> int:
        """Do jobs, the oldest first, and tell what came of them; how many that were."""
        jobs, self.jobs = self.jobs[:count], self.jobs[count:]
        for job, done in jobs:
            try:
                result = job()
            except Exception as error:
                result = error
            done(result)
        return len(jobs)
