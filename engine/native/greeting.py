"""The first exchange of a connection: who we are, and what the broker says to that."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any

from rmq.wire.errors import OK, ProtocolUnsupported
from rmq.wire.protocol.frames import PUSH, REPLY, REQUEST, pack
from rmq.wire.protocol.hello import Hello, HelloReply, ProducerHello, hello_from_map, hello_to_map, other_protocol
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op, Push

from .refusals import farewell, refusal


def greeting(request_id: int, client: str, session: bytes, producer: ProducerHello | None) -> bytes:
    """The frame that opens a connection."""
    proto = [ops.PROTOCOL, ops.PROTOCOL]
    hello = Hello(proto=proto, client=client, version=version(), session=session, producer=producer)
    return pack(REQUEST, request_id, Op.HELLO, hello_to_map(hello))


def greeted(request_id: int, parts: list[Any]) -> HelloReply | None:
    """
    The broker's greeting, or None for a frame that is none.

    Raises:
        WireError: the broker does not want us, or what it says cannot be read.
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


@cache
def version() -> str:
    """The version of rmq that this program runs with."""
    try:
        return metadata.version("rmq")
    except metadata.PackageNotFoundError:
        return "unknown"
