"""
A connection to a broker without an event loop: one request at a time over a blocking socket.

Tables and the workers of Spark use it; it needs nothing but the wire layer. A request may be sent before its answer is
needed (:meth:`BlockingConnection.send`), so that the broker works while the caller does. A connection that failed in
any way stays unusable, so that an answer is never taken for that of another request.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

from rmq.wire.address import parse_address
from rmq.wire.errors import OK, BadFrame, BadRequest, ConnectionLost, Fatal, RequestTimeout, RmqError, from_wire
from rmq.wire.protocol import frames
from rmq.wire.protocol.hello import Hello, HelloReply, hello_from_map, hello_to_map
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op, Push

RECEIVE_BUFFER: Final = 256 << 10
VERSION: Final = "1"
DEFAULT_TIMEOUT_S: Final = 30.0  # of silence; a broker that reads from a cold disk is slow, not dead


class BlockingConnection:
    """
    A greeted connection; use it in a ``with`` block.

    ``timeout_s`` bounds how long the broker may be silent while an answer is due, and how long connecting may take.
    """

    def __init__(self, address: str, *, client: str = "spark", timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.address = address
        self._reader = frames.FrameReader(memoryview(bytearray(RECEIVE_BUFFER)))
        self._last_id = 0
        self._asked: Op | None = None  # what was sent and not answered yet
        self._timeout_s = timeout_s
        self._socket = self._connect()
        try:
            self.hello = self._greet(client)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; may be called again."""
        self._socket.close()

    def request(self, op: Op, payload: Sequence[Any] | dict[str, Any]) -> Any:
        """
        Return the payload of the answer.

        Raises:
            WireError: the broker refused.
            ConnectionLost, RequestTimeout: no answer came; the connection is closed.
        """
        self.send(op, payload)
        return self.receive()

    def send(self, op: Op, payload: Sequence[Any] | dict[str, Any]) -> None:
        """Send a request; :meth:`receive` has to be called next. Raises as that does."""
        assert self._asked is None, "the answer to the request before was not received"
        self._last_id += 1
        self._asked = op
        with self._closing_on_error(op):
            self._socket.sendall(frames.pack(frames.REQUEST, self._last_id, op, payload))

    def receive(self) -> Any:
        """Return the payload of the answer to the request that was sent; raises as :meth:`request` does."""
        op, self._asked = self._asked, None
        assert op is not None, "nothing was sent"
        with self._closing_on_error(op):
            status, answer = self._answer(op)
        if status != OK:
            raise from_wire(status, _sentence(answer))
        return answer

    @contextmanager
    def _closing_on_error(self, op: Op) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise RequestTimeout(
                f"the broker at {self.address} did not answer {op.name} within {self._timeout_s:g} s"
            ) from error
        except OSError as error:
            self.close()
            raise ConnectionLost(f"the connection to the broker at {self.address} was lost: {error}") from error
        except RmqError:
            self.close()
            raise

    def _connect(self) -> socket.socket:
        try:
            connected = socket.create_connection(parse_address(self.address), timeout=self._timeout_s)
        except OSError as error:
            raise ConnectionLost(f"no broker at {self.address} ({error}): start one with `rmq-broker start`") from error
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def _greet(self, client: str) -> HelloReply:
        hello = Hello([ops.PROTOCOL, ops.PROTOCOL], client, VERSION, os.urandom(16))
        answer = self.request(Op.HELLO, hello_to_map(hello))
        try:
            reply: HelloReply = hello_from_map(HelloReply, answer)
        except BadRequest as error:
            raise BadFrame(f"what listens at {self.address} is not a broker of this version: {error}") from error
        return reply

    def _answer(self, op: Op) -> tuple[int, Any]:
        while True:
            count = self._socket.recv_into(self._reader.buffer())
            if not count:
                raise ConnectionLost(f"the broker at {self.address} closed the connection before it answered {op.name}")
            # Unpacking copies, so nothing refers to the receive buffer when the next bytes arrive.
            for frame in self._reader.received(count):
                kind, request_id, code, payload, *_ = frames.unpack(frame, trusted=True)
                if kind == frames.REPLY and request_id == self._last_id:
                    return code, payload
                if kind == frames.PUSH and code == Push.CLOSING:
                    raise _closing(payload)


def _closing(payload: Any) -> RmqError:
    if type(payload) is list and len(payload) >= 2 and type(payload[0]) is int and type(payload[1]) is str:
        return from_wire(payload[0], payload[1])
    return Fatal("the broker closes the connection and gives no reason")


def _sentence(payload: Any) -> str:
    if type(payload) is list and payload and type(payload[0]) is str:
        return payload[0]
    return "the broker gives no reason"
