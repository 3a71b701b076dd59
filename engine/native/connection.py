"""
A client's connection to its broker: one session, reconnected whenever it breaks.

The keeper dials forever, with a growing pause between attempts. Without a connection every request fails at once; a
caller that must not lose anything sends again from ``on_connected``, which runs in the same loop step as the broker's
greeting, before any waiter wakes. Pings keep a steady pace whatever else is sent, and silence ends the link.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgpack

from rmq.runtime import clock
from rmq.runtime.logging import get_logger
from rmq.runtime.package import version
from rmq.wire.address import Address, parse_address
from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import (
    OK,
    BadFrame,
    BadRequest,
    ConnectionLost,
    DiskFull,
    FrameTooLarge,
    ProducerFenced,
    ProtocolUnsupported,
    Refused,
    RequestTimeout,
    RmqError,
    StoreFailed,
    WireError,
    code_name,
    from_wire,
)
from rmq.wire.protocol.frames import MAX_FRAME, PUSH, REPLY, REQUEST, array_header, pack, pack_parts
from rmq.wire.protocol.hello import Hello, HelloReply, ProducerHello, hello_from_map, hello_to_map, other_protocol
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op, Push
from rmq.wire.zones import client_in_zone

from .link import RECEIVE_BUFFER, Link

log = get_logger("rmq.client")
T = TypeVar("T")
OnReply = Callable[[int, Any], None]
REQUEST_TIMEOUT_S: Final = 3.0
DIAL_TIMEOUT_S: Final = 2.0
CLOSE_TIMEOUT_S: Final = 1.0
TEMPORARY: Final = (DiskFull, StoreFailed)  # why a hello is refused that is to come again
SETTLED_S: Final = 1.0  # a connection that lived this long resets the back-off


class Connection:
    """
    Sends requests to a broker over one TCP connection, which it makes again when it ends.

    ``on_push(push, payload)`` gets the broker's pushes; ``on_connected(hello)`` and ``on_lost(error)`` each change,
    ``on_writable()`` the end of back-pressure, ``on_ended(error)`` the final refusal of this client, after which there
    is no connection any more, and ``on_refused(error)`` a temporary refusal of a hello. An exception from one of them
    is logged. ``zone`` becomes part of the name of this client, which the other members of its groups see.
    """

    def __init__(
        self,
        address: str,
        *,
        client: str | None = None,
        on_push: Callable[[int, list[Any]], None] | None = None,
        on_connected: Callable[[HelloReply], None] | None = None,
        on_lost: Callable[[Exception], None] | None = None,
        on_writable: Callable[[], None] | None = None,
        on_ended: Callable[[Exception], None] | None = None,
        on_refused: Callable[[WireError], None] | None = None,
        producer_hello: Callable[[], ProducerHello] | None = None,
        keep_alive: bool = False,
        now: Callable[[], float] | None = None,
        zone: str = "",
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.address = parse_address(address)
        self.client = client_in_zone(zone, client or f"{socket.gethostname()}@{os.getpid()}")
        self.session = secrets.token_bytes(16)
        self.member = f"{self.client}#{self.session.hex()[:8]}"
        self.hello: HelloReply | None = None  # the newest greeting of the broker
        self.answered_sent_at = float("-inf")  # when the newest answered request had been sent; written by replies
        self._on_push = on_push
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._on_writable = on_writable
        self._on_ended = on_ended
        self._on_refused = on_refused
        self._producer_hello = producer_hello
        self._keep_alive = keep_alive
        self._now = now or clock.boottime
        self._chance = chance
        self._receive = memoryview(bytearray(RECEIVE_BUFFER))
        self._keeper: asyncio.Task[None] | None = None
        self._pinger: KeepAlive | None = None
        self._link: Link | None = None  # set while connected
        self._up = asyncio.Event()  # connected, or never again
        self._ended: Exception | None = None  # why there will be no connection any more
        self._last_error: Exception | None = None
        self._reached = False  # whether something took the newest dial
        self._last_id = 0
        self._greeting: asyncio.Future[None] | None = None  # of the dial under way
        self._greeted_at = float("-inf")
        self._waiting: dict[int, tuple[OnReply, float]] = {}
        self._futures: dict[int, asyncio.Future[tuple[int, Any]]] = {}

    @property
    def refusal(self) -> WireError | None:
        """Why the broker refused the last hello, if that may pass."""
        return self._last_error if isinstance(self._last_error, TEMPORARY) else None

    @property
    def connected(self) -> bool:
        """Whether requests can be sent now."""
        return self._link is not None

    @property
    def writable(self) -> bool:
        """Whether the connection takes more without filling memory; see :meth:`drain`."""
        return self._link is not None and self._link.writable

    # Life

    def start(self) -> None:
        """Start to connect in the background; further calls do nothing."""
        if self._keeper is None and self._ended is None:
            self._keeper = asyncio.create_task(self._keep(), name=f"connection to {self.address}")
            self._keeper.add_done_callback(self._keeper_ended)

    async def open(self, *, timeout_s: float | None = None) -> None:
        """
        Connect within ``timeout_s`` (None: without a limit). Cancelling or failing ends it for good.

        Raises:
            ConnectionLost: no broker answered in time.
            DiskFull, StoreFailed: the broker refused for this reason until the time was over.
            ProtocolUnsupported, Refused: the broker refuses this client.
        """
        self.start()
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait_connected()
        except TimeoutError:
            await self.close()
            if self.refusal is not None:
                raise self.refusal from None
            raise unreachable(self.address, self._last_error, reached=self._reached) from self._last_error
        except BaseException:
            await self.close()
            raise

    async def wait_connected(self) -> None:
        """
        Wait until there is a connection; cancelling is safe.

        Raises:
            ConnectionLost: it was closed.
            ProtocolUnsupported, Refused: the broker refuses this client.
        """
        while self._link is None:
            if self._ended is not None:
                raise self._ended
            await self._up.wait()

    async def close(self) -> None:
        """Close it after sending what was written; requests without an answer fail. Cancelling closes it at once."""
        error = ConnectionLost(f"the connection to {self.address} was closed")
        self._finish(error)
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
        link = self._link
        try:
            if link is not None:
                await link.close(error, within_s=CLOSE_TIMEOUT_S)
        finally:
            if link is not None:
                link.drop(error)
        if keeper is not None:
            await asyncio.wait([keeper])

    def drop(self, reason: Exception) -> None:
        """Abort the present connection; the keeper makes another."""
        if self._link is not None:
            self._link.drop(reason)

    def give_up(self, error: Exception) -> None:
        """Abort the present connection and make no other, as the broker refuses this client from now on."""
        self._finish(error)
        self.drop(error)

    # Requests

    async def request(self, op: Op, payload: Sequence[Any], *, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """
        Send a request and return the payload of its answer. Cancelling is safe; the request may still be served.

        Raises:
            ConnectionLost: there is no connection, or it ended before the answer.
            RequestTimeout: no answer within ``timeout_s``; the connection stays.
            Refused, Fatal: the broker's own error, by its class.
        """
        packed: bytes = msgpack.packb(payload)
        if len(packed) > MAX_FRAME - 64:
            raise FrameTooLarge(
                f"a request of {len(packed)} bytes is over the limit of {MAX_FRAME}: ask for less at once"
            )
        answer: asyncio.Future[tuple[int, Any]] = asyncio.get_running_loop().create_future()
        request_id = self.submit(op, (packed,), lambda status, reply: _settle(answer, (status, reply)))
        self._futures[request_id] = answer
        try:
            async with asyncio.timeout(timeout_s):
                status, reply = await answer
        except TimeoutError as error:
            text = f"no answer from {self.address} to {op.name} within {timeout_s:g} s"
            raise RequestTimeout(text) from error
        finally:
            del self._futures[request_id]
            self._waiting.pop(request_id, None)
        if status != OK:
            raise refusal(status, reply)
        return reply

    def submit(self, op: Op, payload_parts: Sequence[Buffer], on_reply: OnReply) -> int:
        """
        Send a request without a future: ``on_reply(status, payload)`` runs with the answer, or never if the connection
        ends. ``payload_parts`` together are one msgpack value; they must not change until they were answered.

        Raises:
            ConnectionLost: there is no connection.
        """
        link = self._link
        if link is None:
            raise ConnectionLost(f"not connected to {self.address}") from self._last_error
        self._last_id = request_id = self._last_id + 1
        self._waiting[request_id] = (on_reply, self._now())
        parts = pack_parts(REQUEST, request_id, op, payload_parts)
        link.write(parts, sum(map(len, parts)))
        return request_id

    def flush(self) -> None:
        """Write what was submitted in this loop turn, without waiting for the turn to end."""
        if self._link is not None:
            self._link.flush()

    async def drain(self) -> None:
        """
        Wait until the connection is writable; cancelling is safe.

        Raises:
            ConnectionLost: there is none, or it ended meanwhile.
        """
        if self._link is not None:
            await self._link.drain()
        if self._link is None:
            raise ConnectionLost(f"not connected to {self.address}") from self._last_error

    # The keeper

    async def _keep(self) -> None:
        """Dial, stay until the link ends, pause, again; the pause grows while links fail or die young."""
        loop = asyncio.get_running_loop()
        attempt = 0
        while self._ended is None:
            link = await self._dial()
            if link is not None:
                began = loop.time()
                await link.ended
                if loop.time() - began >= SETTLED_S:
                    attempt = 0
            longest_s = cap(None if self.hello is None else self.hello.limits.grace_s)
            await asyncio.sleep(pause(attempt, longest_s=longest_s, chance=self._chance()))
            attempt += 1

    async def _dial(self) -> Link | None:
        loop = asyncio.get_running_loop()
        link = Link(self._receive, self._on_frame, self._on_end, self._on_writable)
        self._greeting = answer = loop.create_future()
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                self._reached = False
                await loop.create_connection(lambda: link, self.address.host, self.address.port)
                self._reached = True
                self._greet(link)
                await answer
        except (OSError, UnicodeError, RmqError) as error:  # a host name may not even be encodable
            self._note_failure(error)
        finally:
            self._greeting = None
            if self._link is not link:
                link.drop(ConnectionLost(f"no greeting from {self.address}"))
        return self._link

    def _greet(self, link: Link) -> None:
        self._last_id += 1
        self._greeted_at = self._now()
        producer = None if self._producer_hello is None else self._producer_hello()
        frame = greeting(self._last_id, self.client, self.session, producer)
        link.write([frame], len(frame))

    def _on_greeting(self, link: Link, parts: list[Any]) -> None:
        if self._ended is not None:
            return  # closed meanwhile: the keeper is cancelled, and drops the link soon
        if (hello := greeted(self._last_id, parts)) is None:
            return
        self.hello = hello
        self.member = hello.member
        self.answered_sent_at = max(self.answered_sent_at, self._greeted_at)
        self._link = link
        self._last_error = None
        if self._keep_alive:
            self._pinger = KeepAlive(link, hello.limits.ping_s, partial(self.submit, Op.PING, (array_header(0),)))
        log.info("connection.made", address=self.address, member=self.member, broker=hello.broker)
        if self._on_connected is not None:
            self._guarded(self._on_connected, hello)
        self._up.set()
        if self._greeting is not None:
            _settle(self._greeting, None)

    def _on_end(self, link: Link, error: Exception) -> None:
        if link is not self._link:
            if self._greeting is not None and not self._greeting.done():
                self._greeting.set_exception(error)
            return
        self._link = None
        self._last_error = error
        if self._ended is None:
            self._up.clear()
            log.warning("connection.lost", address=self.address, error=error)
        if self._pinger is not None:
            self._pinger.stop()
        self._waiting.clear()
        failure = lost(self.address, error)
        for answer in self._futures.values():
            if not answer.done():
                answer.set_exception(failure)
        if self._on_lost is not None:
            self._guarded(self._on_lost, failure)

    def _note_failure(self, error: Exception) -> None:
        passes = isinstance(error, TEMPORARY)
        never_taken = isinstance(error, ProtocolUnsupported | Refused) and not passes and self.hello is None
        if passes and self._on_refused is not None:
            self._guarded(self._on_refused, error)
        if never_taken or isinstance(error, ProducerFenced):
            # It will refuse this client the next time, too: end all waiting.
            self._finish(error)
            if self._on_ended is not None:
                self._guarded(self._on_ended, error)
        elif self._last_error is None:
            log.warning("connection.failed", address=self.address, error=error, now="trying until there is a broker")
        self._last_error = error

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            log.error("connection.keeper_failed", address=self.address, exc_info=error)
            self._finish(ConnectionLost(f"the connection to {self.address} failed by a defect: {error!r}"))

    def _finish(self, error: Exception) -> None:
        if self._ended is None:
            self._ended = error
            self._up.set()

    # What arrives

    def _on_frame(self, link: Link, parts: list[Any]) -> None:
        if link is not self._link:
            self._on_greeting(link, parts)
        elif parts[0] == REPLY:
            waiting = self._waiting.pop(parts[1], None)
            if waiting is not None:
                on_reply, sent_at = waiting
                self.answered_sent_at = max(self.answered_sent_at, sent_at)
                self._guarded(on_reply, parts[2], parts[3])
        elif parts[0] == PUSH:
            if parts[2] == Push.CLOSING:
                link.reason = farewell(parts[3])
            elif self._on_push is not None:
                self._guarded(self._on_push, parts[2], parts[3])

    def _guarded(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            callback(*args)
        except Exception:
            log.exception("connection.callback_failed", callback=getattr(callback, "__qualname__", callback))


def _settle(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


MAX_UNANSWERED: Final = 3


class KeepAlive:
    """
    Pings every ``every_s`` seconds; ``ping(on_reply)`` sends one.

    At most three are unanswered at a time. A link that brought no byte since the first of three unanswered pings is
    dropped; one that brings a long answer is not, although its pings are queued after that.
    """

    def __init__(self, link: Link, every_s: float, ping: Callable[[Callable[[int, Any], None]], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._every_s = every_s
        self._ping = ping
        self._unanswered = 0
        self._silent = 0
        self._timer = self._loop.call_later(every_s, self._tick)

    def stop(self) -> None:
        """Send no more pings."""
        self._timer.cancel()

    def _tick(self) -> None:
        if self._link.heard:
            self._link.heard = False
            self._silent = 0
        elif self._unanswered:
            self._silent += 1
        if self._silent >= MAX_UNANSWERED:
            self._link.drop(ConnectionLost(f"the broker was silent for {self._silent * self._every_s:g} s"))
            return
        self._timer = self._loop.call_later(self._every_s, self._tick)
        if self._unanswered < MAX_UNANSWERED:
            self._unanswered += 1
            self._ping(self._answered)

    def _answered(self, _status: int, _payload: Any) -> None:
        self._unanswered -= 1


FIRST_S: Final = 0.05
LONGEST_S: Final = 0.8  # below 1 s, so that a broker started after its clients is joined within a second
SHARE_OF_GRACE: Final = 0.4  # below half, so that two attempts fit before the broker gives leases away


def cap(grace_s: float | None) -> float:
    """Return the longest pause for the grace of the broker that was last seen."""
    return LONGEST_S if grace_s is None else min(LONGEST_S, SHARE_OF_GRACE * grace_s)


def pause(attempt: int, *, longest_s: float, chance: float) -> float:
    """
    Return the pause after failed attempt number ``attempt`` (0 is the first).

    Doubles from 50 ms up to ``longest_s``; ``chance`` in [0, 1) spreads it over the upper half, so that the
    clients of a broker that comes back do not all arrive at once.
    """
    full = min(longest_s, FIRST_S * 2.0 ** min(attempt, 16))
    return full * (0.5 + 0.5 * chance)


def greeting(request_id: int, client: str, session: bytes, producer: ProducerHello | None) -> bytes:
    """Return the frame that opens a connection."""
    proto = [ops.PROTOCOL, ops.PROTOCOL]
    hello = Hello(proto=proto, client=client, version=version(), session=session, producer=producer)
    return pack(REQUEST, request_id, Op.HELLO, hello_to_map(hello))


def greeted(request_id: int, parts: list[Any]) -> HelloReply | None:
    """
    Return the broker's greeting, or None for any other frame.

    Raises:
        WireError: the broker refuses this client, or its reply cannot be read.
    """
    kind, reply_to, status, payload = parts[:4]
    if kind == PUSH and status == Push.CLOSING:
        raise farewell(payload)
    if kind != REPLY or reply_to != request_id:
        return None
    if status != OK:
        raise refusal(status, payload)
    if type(payload) is dict and type(payload.get("proto")) is int and payload["proto"] != ops.PROTOCOL:
        # Before the rest is read, which may have another shape.
        raise ProtocolUnsupported(
            other_protocol(f"this client speaks protocol {ops.PROTOCOL}, the broker", [payload["proto"]])
        )
    reply: HelloReply = hello_from_map(HelloReply, payload)
    return reply


def refusal(status: int, payload: Any) -> WireError:
    """Return the error in a reply whose status is not OK."""
    if isinstance(payload, list) and payload and isinstance(payload[0], str):
        return from_wire(status, payload[0])
    return from_wire(status, f"the broker refused with {code_name(status)}")


def farewell(payload: Any) -> WireError:
    """Return the reason in the broker's announcement that it closes the connection."""
    if isinstance(payload, list) and len(payload) > 1 and isinstance(payload[0], int):
        return from_wire(payload[0], str(payload[1]))
    return BadRequest("the broker closed the connection with a reason that cannot be read")


def describe(error: Exception) -> str:
    """Return an error as one sentence, with its code if it has one."""
    return f"{error.name}: {error}" if isinstance(error, WireError) else str(error) or type(error).__name__


def lost(address: Address, error: Exception) -> ConnectionLost:
    """Return the error for requests without an answer whose connection ended by ``error``."""
    if isinstance(error, ConnectionLost):
        return error
    wrapped = ConnectionLost(f"the connection to {address} ended: {describe(error)}")
    wrapped.__cause__ = error
    return wrapped


def unreachable(address: Address, error: Exception | None, *, reached: bool = False) -> ConnectionLost:
    """
    Return the error for a client that reached no broker in time.

    ``error`` ended the last attempt, or is None; ``reached``: something accepted the connection.
    """
    if isinstance(error, BadFrame | FrameTooLarge):
        return ConnectionLost(f"what listens at {address} is not an rmq broker: check the address and its port")
    if isinstance(error, socket.gaierror):
        return ConnectionLost(f"no broker at {address}: no host has this name; check the address")
    if reached and (error is None or isinstance(error, OSError)):
        text = "it is not an rmq broker, or it hangs; check the address and its port"
        return ConnectionLost(f"what listens at {address} accepts the connection and does not greet: {text}")
    if error is None or isinstance(error, TimeoutError):
        return ConnectionLost(f"no broker at {address}: nothing answers there; check the address and the network")
    if isinstance(error, OSError):
        return ConnectionLost(f"no broker at {address}: start one with `rmq-broker start`")
    return ConnectionLost(f"the broker at {address} cannot be used: {describe(error)}")
