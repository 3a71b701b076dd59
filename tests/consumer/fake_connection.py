"""A connection to the fake broker, which a test can cut, stall and delay."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from rmq.wire import errors
from rmq.wire.protocol import hello
from rmq.wire.protocol.ops.core import Op, Push
from rmq.wire.zones import client_in_zone

if TYPE_CHECKING:
    from .fake_broker import FakeBroker


class Request(NamedTuple):
    """A request as it was sent."""

    at: float
    member: str
    op: Op
    payload: Any


@dataclass
class Hold:
    """A request or reply that a test keeps back."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)


class FakeConnection:
    """The client's side, with the API of ``rmq.engine.native.connection.Connection`` that consumers use."""

    def __init__(
        self,
        broker: FakeBroker,
        *,
        on_push: Callable[[int, list[Any]], None],
        on_connected: Callable[[hello.HelloReply], None],
        on_lost: Callable[[Exception], None],
        keep_alive: bool,
        now: Callable[[], float],
        zone: str = "",
    ) -> None:
        assert keep_alive, "a consumer has to ping, or it loses its leases"
        self.broker = broker
        self.session = secrets.token_bytes(16)
        self.member = client_in_zone(zone, f"member-{len(broker.connections)}")
        self.hello: hello.HelloReply | None = None
        self.connected = False
        self.reachable = True  # a test's partition
        self.silent = False  # connected, but no answer comes
        self.answered_sent_at = float("-inf")
        self._on_push = on_push
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._now = now
        self._started = self._closed = False
        self._up = asyncio.Event()
        self._ping: asyncio.TimerHandle | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._answered_at = 0.0  # the broker's view
        self._waiting: set[asyncio.Future[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # Life

    def start(self) -> None:
        self._started = True
        asyncio.get_running_loop().call_soon(self.dial)

    def dial(self) -> None:
        if self.connected or self._closed or not self._started or not self.reachable or not self.broker.up:
            return
        self.connected = True
        if self._grace is not None:
            self._grace.cancel()
        self.answered_sent_at = self._now()
        self.hello = self.broker.hello(self)
        self._on_connected(self.hello)
        self._up.set()
        self._beat()

    def cut(self) -> None:
        """The connection ends; the broker starts the grace."""
        if not self.connected:
            return
        self.connected = False
        self._up.clear()
        if self._ping is not None:
            self._ping.cancel()
        self._fail(errors.ConnectionLost("cut by the test"))
        self._on_lost(errors.ConnectionLost("cut by the test"))
        if not self._closed:
            deadline = self._answered_at + self.broker.grace_s + 0.001
            self._grace = asyncio.get_running_loop().call_at(deadline, self.broker.end_session, self.session)

    def _beat(self) -> None:
        if not self.silent:
            self.answered_sent_at = self._now()
            self._answered_at = self.broker.now
        self._ping = asyncio.get_running_loop().call_later(1.0, self._beat)

    async def wait_connected(self) -> None:
        while not self.connected:
            if self._closed:
                raise errors.ConnectionLost("closed")
            await self._up.wait()

    async def close(self) -> None:
        self._closed = True
        self.cut()
        self._up.set()
        for handle in (self._ping, self._grace):
            if handle is not None:
                handle.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def push(self, push: Push, payload: Any) -> None:
        if self.connected:
            self._on_push(push, msgpack.unpackb(msgpack.packb(payload)))

    def _fail(self, error: Exception) -> None:
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(error)

    # Requests

    async def request(self, op: Op, payload: Sequence[Any], *, timeout_s: float = 3.0) -> Any:
        if not self.connected:
            raise errors.ConnectionLost("not connected")
        sent_at = self._now()
        self.broker.requests.append(Request(self.broker.now, self.member, op, payload))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(answer)
        self._run(self._serve(op, msgpack.unpackb(msgpack.packb(payload)), answer))
        try:
            async with asyncio.timeout(timeout_s):
                reply = await answer
        except TimeoutError as error:
            raise errors.RequestTimeout(f"{op.name} timed out") from error
        finally:
            self._waiting.discard(answer)
        self.answered_sent_at = max(self.answered_sent_at, sent_at)
        return reply

    def submit(self, op: Op, payload_parts: Sequence[bytes], on_reply: Callable[[int, Any], None]) -> int:
        if not self.connected:
            raise errors.ConnectionLost("not connected")
        payload = msgpack.unpackb(b"".join(payload_parts))
        self.broker.requests.append(Request(self.broker.now, self.member, op, payload))
        refusals = self.broker.refuse[op]
        status = getattr(refusals.pop(0), "code", 0) if refusals else 0
        asyncio.get_running_loop().call_soon(on_reply, status, None)
        return len(self.broker.requests)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, op: Op, payload: Any, answer: asyncio.Future[Any]) -> None:
        await self._held(self.broker.before[op])
        if self.silent:
            return
        self._answered_at = self.broker.now
        try:
            reply: Any = await self.broker.serve(self, op, payload)
        except errors.RmqError as error:
            reply = error
        await self._held(self.broker.after[op])
        if answer.done() or self.silent:
            return
        if isinstance(reply, Exception):
            answer.set_exception(reply)
        else:
            answer.set_result(msgpack.unpackb(msgpack.packb(reply)))

    async def _held(self, holds: list[Hold]) -> None:
        if holds:
            hold = holds.pop(0)
            hold.reached.set()
            await hold.let_go.wait()
