"""
The real broker as a target: bytes in, and a judgement of what became of them.

Everything between the socket and the disk is the production code; only the socket is missing, and time stands still
unless it is moved. A finding is an :class:`AssertionError` whose text says what was wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, cast

from structlog.testing import capture_logs

from rmq.broker.net.connection import Connection
from rmq.broker.net.limits import PeerLimits
from rmq.broker.state.leases import Lease
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import Fatal, FrameStalled, HelloTimeout, Internal, WireError
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import Op, Push
from rmq.wire.stores import StoreIds

from rigs.bad_input.mutations import BATCHES, GROUP, TOPIC, resealed
from rigs.raw_peer import hello, request

PING_ID = 1 << 40
FAST_TURNS = 50
MOST_TURNS = 5000
LIMITS = PeerLimits(10.0, 30.0)


class _Transport:
    """A peer that takes every answer at once, and goes when the broker closes it."""

    def __init__(self, protocol: Connection) -> None:
        self.protocol = protocol
        self.taken = bytearray()
        self.waiting = b""
        self.reading = True
        self.ended = False

    def get_extra_info(self, name: str) -> object:
        return None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.ended

    def get_write_buffer_size(self) -> int:
        return 0

    def writelines(self, buffers: Iterable[Buffer]) -> None:
        self.taken += b"".join(buffers)

    def write_eof(self) -> None:
        self.close()

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            self.protocol.connection_lost(None)

    abort = close

    def deliver(self) -> None:
        while self.waiting and self.reading and not self.ended:
            buffer = self.protocol.get_buffer(-1)
            count = min(len(buffer), len(self.waiting))
            buffer[:count] = self.waiting[:count]
            self.waiting = self.waiting[count:]
            self.protocol.buffer_updated(count)


class FuzzPeer:
    """A connection of the target without a socket."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.connection = Connection(target.memory.broker, target.loop)
        self.transport = _Transport(self.connection)
        self.connection.connection_made(cast(asyncio.Transport, self.transport))

    def give(self, data: bytes) -> list[list[Any]]:
        """Send; the answers that came of it."""
        self.transport.waiting += data
        self._target.loop.run_until_complete(self._settle())
        return self._frames()

    async def _settle(self) -> None:
        self.transport.deliver()  # while the loop runs, as bytes always come
        for turn in range(MOST_TURNS):
            await asyncio.sleep(0 if turn < FAST_TURNS else 0.001)  # some answers come from threads
            self.transport.deliver()
            if self._idle():
                break

    def _idle(self) -> bool:
        broker, connection = self._target.memory.broker, self.connection
        working = connection._flush_scheduled or connection._backlog or broker._pulls._working or broker._read_pool.jobs
        waiting = not self.transport.ended and (connection.in_flight or not connection._reading)
        return broker._committer.idle and not working and not waiting

    def _frames(self) -> list[list[Any]]:
        found, at, data = [], 0, bytes(self.transport.taken)
        while at < len(data):
            (length,) = frames.LENGTH.unpack_from(data, at)
            found.append(frames.unpack(data[at + 4 : at + 4 + length], trusted=True))
            at += 4 + length
        self.transport.taken.clear()
        return found

    def ask(self, op: int, payload: object) -> Any:
        """Return an answer that must not be a refusal."""
        (answer,) = (answer for answer in self.give(request(PING_ID, op, payload)) if answer[0] == frames.REPLY)
        assert answer[2] == 0, answer
        return answer[3]


class Target:
    """A broker with something stored, and a witness that is connected all the time."""

    def __init__(self) -> None:
        self.loop = asyncio.SelectorEventLoop()
        self.now = 1000.0
        self.epoch = 0
        self._problems: list[str] = []
        self._generation, self._read_to = 0, [0, 0, 0, 0]
        self.loop.set_exception_handler(lambda loop, context: self._problems.append(str(context)))

    def __enter__(self) -> Self:
        self._logs_of = capture_logs()
        self._logs = self._logs_of.__enter__()
        self.memory = InMemoryBroker(now=lambda: self.now, min_free_bytes=0)
        self.loop.run_until_complete(self.memory.start())
        self.memory.broker._delivery.stop()  # what becomes due would change what a refused request must not
        self.witness = FuzzPeer(self)
        self.witness.ask(Op.HELLO, hello())
        for topic in ("kept", TOPIC):
            self.witness.ask(Op.CREATE_TOPIC, [topic, 4])
        for batch in BATCHES[:3]:  # those without a delay
            renamed = batch.replace(b"\x06orders\0", b"\x04kept\0\0\0")
            self.witness.ask(Op.SEND, [[[0, resealed(renamed)]]])
        self._kept = self._content()
        assert sum(map(len, self._kept)) > 500
        return self

    def __exit__(self, *exc: object) -> None:
        self.witness.transport.close()
        self.loop.run_until_complete(self.memory.__aexit__())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self._logs_of.__exit__(None, None, None)

    def _content(self) -> list[bytes]:
        """The bytes of all that was stored at first."""
        return [data for _, data in self._pulled("kept", 0, 0)]

    def _pulled(self, topic: str, queue_id: int, at: int) -> Iterator[tuple[int, bytes]]:
        """The batches of a queue from an offset on, one by one, and the offsets after them."""
        end = self.witness.ask(Op.RANGES, [None, [[topic, queue_id]]])[0][2]
        while at < end:
            ((_, status, at, _, _, data, _),) = self.witness.ask(Op.PULL, [None, 0, 1, [[topic, queue_id, at]]])
            assert status == 0
            yield at, data

    def _check_readable(self) -> None:
        """Whatever was accepted can be read by every consumer, or it would block its queue."""
        self._have_topic()
        for queue_id, begin in enumerate(self._read_to):
            for end, data in self._pulled(TOPIC, queue_id, begin):
                for batch in batches.read_all(data, stores=StoreIds(1)):
                    for message in batch.messages(begin):
                        assert message.topic == TOPIC and repr(message) and message.properties is not None
                self._read_to[queue_id] = end

    def state(self) -> tuple[object, ...]:
        """All that a refused request must leave as it is."""
        broker = self.memory.broker
        return (
            broker._store.log.written,
            [(topic.name, topic.generation, topic.queues) for topic in broker._topics.all()],
            list(broker._ledger.rows()),
            [(lease.group, lease.queue, lease.session, lease.epoch) for lease in self._leases()],
            {group: broker._members.members(group) for group in (GROUP, "")},
        )

    def _leases(self) -> Sequence[Lease]:
        return self.memory.broker._locks.rows(None, now=self.now)

    # ---- one input

    def member(self) -> FuzzPeer:
        """A peer that has greeted, joined and holds a lease; ``epoch`` is that of the lease."""
        peer = FuzzPeer(self)
        peer.ask(Op.HELLO, hello())
        self._have_topic()
        peer.ask(Op.JOIN, [GROUP, True, "clustering", "average", {TOPIC: "*"}])
        status, self.epoch, *_ = peer.ask(Op.ACQUIRE, [GROUP, [[TOPIC, 0]]])[0]
        assert status == 0
        return peer

    def _have_topic(self) -> None:
        """An input may have ended the topic that the others are about: then it is another one."""
        generation = self.witness.ask(Op.ROUTE, [TOPIC, True])[1]
        if generation != self._generation:
            self._generation, self._read_to = generation, [0, 0, 0, 0]

    def judge(self, peer: FuzzPeer, data: bytes) -> str:
        """Give one input, check every promise, and return what became of it."""
        before, alone = self.state(), _is_one_frame(data) and not peer.connection._reader.unfinished
        answers = peer.give(data)
        closed = peer.connection.closing
        self._check_answers(answers, closed)
        if closed or _all_refused(answers):
            assert closed or answers, "neither an answer nor an end"
            if len(answers) == 1 and alone:  # of several, some may have been served before the end
                assert self.state() == before, f"refused, and yet something changed: {answers}"
        if closed:
            return "closed"
        return "refused" if _all_refused(answers) else "served"

    def finish(self, peer: FuzzPeer) -> None:
        """The peer is still served, or waited for no longer than it may be; when it has gone, nothing of it is left."""
        if not peer.connection.closing:
            reader = peer.connection._reader
            waits = reader.unfinished
            answers = peer.give(request(PING_ID, Op.PING, []))
            if waits and not _is_pinged(answers) and not reader.unfinished and not peer.connection.closing:
                answers = peer.give(request(PING_ID, Op.PING, []))  # the first was just what the frame lacked
            if not _is_pinged(answers):
                self._check_stalled(peer, answers)
        peer.transport.close()
        broker = self.memory.broker
        assert broker.budget.used == 0, f"{broker.budget.used} bytes are still held"
        assert broker._connections == {self.witness.connection}
        assert not broker._pulls._waiting and not broker._parked_pulls.all()
        self.let_go()

    def _check_stalled(self, peer: FuzzPeer, answers: list[list[Any]]) -> None:
        """The ping was swallowed by a frame that announces more than came: its time runs out."""
        if not peer.connection.closing:
            assert peer.connection._reader.unfinished, f"a ping was not answered, but {answers}"
            peer.connection.check_timeouts(self.now + 1000.0, LIMITS)
            answers = peer._frames()
            assert peer.connection.closing
            assert answers[-1][3][0] in (FrameStalled.code, HelloTimeout.code)
        self._check_answers(answers, True)

    def _check_answers(self, answers: list[list[Any]], closed: bool) -> None:
        for entry in self._logs:
            assert entry["log_level"] not in ("error", "critical"), f"the broker met a defect: {entry}"
        self._logs.clear()
        assert not self._problems, self._problems
        for kind, _, code, payload, *_ in answers:
            if kind == frames.REPLY:
                assert code != Internal.code
                assert not code or (isinstance(payload[0], str) and 5 < len(payload[0]) < 1000), payload
        if closed:
            assert answers and _why(answers[-1]) is not None, f"closed without a reason: {answers[-1:]}"

    def check_kept(self) -> None:
        """What was stored at first is there, what was accepted since can be read, and the broker serves on."""
        self._deliver()
        assert self._content() == self._kept
        self._check_readable()
        self.witness.ask(Op.SEND, [[[3, BATCHES[0]]]])

    def _deliver(self) -> None:
        """Have all delivered that is due by now."""
        broker = self.memory.broker
        broker._delivery.start()
        while broker._store.delays.due(broker._delays.now_us(), max_batches=1, max_bytes=1):
            self.loop.run_until_complete(asyncio.sleep(0.001))
        broker._delivery.stop()

    def let_go(self) -> None:
        """Let the grace of all that is gone run out, as the timers would."""
        broker = self.memory.broker
        for _ in range(7):
            self.now += 0.9
            broker._handlers.tick()
        self.witness.give(b"")  # what ended goes to the log now, not with the next input
        assert len(broker._sessions._sessions) == 1
        assert not self._leases()
        assert not broker._members.members(GROUP)


def _is_pinged(answers: Iterable[list[Any]]) -> bool:
    return any(answer[:3] == [frames.REPLY, PING_ID, 0] for answer in answers)


def _is_one_frame(data: bytes) -> bool:
    return len(data) < 4 or 4 + int.from_bytes(data[:4], "big") >= len(data)


def _all_refused(answers: list[list[Any]]) -> bool:
    return all(answer[0] == frames.REPLY and answer[2] for answer in answers) and bool(answers)


def _why(answer: list[Any]) -> type[WireError] | None:
    """The reason in the last frame of a connection."""
    code = answer[3][0] if answer[0] == frames.PUSH and answer[2] == Push.CLOSING else answer[2]
    kind = WireError.by_code.get(code)
    return kind if kind is not None and issubclass(kind, Fatal) else None
