"""
A client's connection to its broker: one session, made again whenever it breaks.

The keeper dials for ever. While there is no connection every request fails at once; whoever must not lose anything
sends again from ``on_connected``, which runs in the same loop step as the broker's greeting, before any waiter wakes.
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

from rmq.runtime import client_clock
from rmq.runtime.log import get_logger
from rmq.wire.address import parse_address
from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import (
    OK,
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
)
from rmq.wire.protocol.frames import MAX_FRAME, PUSH, REPLY, REQUEST, array_header, pack_parts
from rmq.wire.protocol.hello import HelloReply, ProducerHello
from rmq.wire.protocol.ops.core import Op, Push
from rmq.wire.zones import client_in

from . import backoff
from .greeting import greeted, greeting
from .keep_alive import KeepAlive
from .link import RECEIVE_BUFFER, Link
from .refusals import farewell, lost, refusal, unreachable

log = get_logger("rmq.client")

T = TypeVar("T")
OnReply = Callable[[int, Any], None]

REQUEST_TIMEOUT_S: Final = 3.0
DIAL_TIMEOUT_S: Final = 2.0
CLOSE_TIMEOUT_S: Final = 1.0
TEMPORARY: Final = (DiskFull, StoreFailed)  # why a hello is refused that is to come again
SETTLED_S: Final = 1.0  # a connection that lived this long starts the back-off anew


class Connection:
    """
    Requests to a broker over one TCP connection that is re-made when it ends.

    ``on_push(push, payload)`` gets what the broker says unasked; ``on_connected(hello)`` and ``on_lost(error)`` tell of
    each change, ``on_writable()`` of the end of back-pressure, ``on_ended(error)`` that there will be no connection any
    more because the broker does not want this client, ``on_refused(error)`` that it refuses a hello for now. If one of
    them raises, that is logged, no more. ``room`` is the machine room of this client, which its name tells to the
    members of its groups.
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
        room: str = "",
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.address = parse_address(address)
        self.client = client_in(room, client or f"{socket.gethostname()}@{os.getpid()}")
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
        self._now = now or client_clock.boottime
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
        """Whether requests can be made now."""
        return self._link is not None

    @property
    def writable(self) -> bool:
        """Whether the connection takes more without filling memory; see :meth:`drain`."""
        return self._link is not None and self._link.writable

    # Life

    def start(self) -> None:
        """Begin to connect, in the background; further calls do nothing."""
        if self._keeper is None and self._ended is None:
            self._keeper = asyncio.create_task(self._keep(), name=f"connection to {self.address}")
            self._keeper.add_done_callback(self._keeper_ended)

    async def open(self, *, timeout_s: float | None = None) -> None:
        """
        Connect within ``timeout_s`` (None: whenever the broker comes). Cancelling or failing ends it for good.

        Raises:
            ConnectionLost: there was no broker in time.
            DiskFull, StoreFailed: the broker refused for this reason until the time was over.
            ProtocolUnsupported, Refused: the broker does not want this client.
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
            ProtocolUnsupported, Refused: the broker does not want this client.
        """
        while self._link is None:
            if self._ended is not None:
                raise self._ended
            await self._up.wait()

    async def close(self) -> None:
        """End it: what was written still leaves, requests without an answer fail. Cancelling ends it at once."""
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
        """Give the present connection up; the keeper makes another."""
        if self._link is not None:
            self._link.drop(reason)

    def give_up(self, error: Exception) -> None:
        """Give the present connection up and make no other: the broker does not want this client any more."""
        self._finish(error)
        self.drop(error)

    # Requests

    async def request(self, op: Op, payload: Sequence[Any], *, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """
        Ask, and return the payload of the answer. Cancelling is safe: the request may still be served.

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
        Ask without a future: ``on_reply(status, payload)`` runs when the answer comes, or never if the connection ends.
        ``payload_parts`` together are one msgpack value; they must not change until they were answered.

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
        """Hand what was submitted in this turn to the network, without waiting for the turn to end."""
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
            longest_s = backoff.cap(None if self.hello is None else self.hello.limits.grace_s)
            await asyncio.sleep(backoff.pause(attempt, longest_s=longest_s, chance=self._chance()))
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
            return  # closed meanwhile: whoever dialled is cancelled, learns it soon, and drops the link
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
            # It will not take this client the next time either: tell whoever waits.
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
