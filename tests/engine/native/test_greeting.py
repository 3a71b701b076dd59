"""The first exchange."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.engine.native.connection import greeted, greeting
from rmq.wire import errors
from rmq.wire.protocol.frames import PUSH, REPLY, REQUEST, unpack
from rmq.wire.protocol.hello import Hello, HelloReply, Limits, ProducerHello, hello_from_map, hello_to_map
from rmq.wire.protocol.ops.core import Op, Push

REPLY_MAP = hello_to_map(HelloReply(1, "b", "c", 7, 1, "me#1", Limits(1, 2, 3, 5.0, 1.0)))


def test_the_greeting_is_a_map_with_who_we_are() -> None:
    producer = ProducerHello(5, 0, 9)
    kind, request_id, op, payload = unpack(greeting(3, "me", b"s" * 16, producer)[4:])
    hello = hello_from_map(Hello, payload)

    assert (kind, request_id, op) == (REQUEST, 3, Op.HELLO)
    assert (hello.client, hello.session, hello.producer, hello.proto) == ("me", b"s" * 16, producer, [1, 1])


def as_received(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "limits": list(payload["limits"])}


def test_the_answer_to_it_is_the_brokers_greeting() -> None:
    hello = greeted(3, [REPLY, 3, 0, as_received(REPLY_MAP)])

    assert hello is not None
    assert (hello.member, hello.limits.grace_s) == ("me#1", 5.0)


@pytest.mark.parametrize("parts", [[REPLY, 2, 0, []], [PUSH, 0, 99, []]])
def test_other_frames_are_not(parts: list[Any]) -> None:
    assert greeted(3, parts) is None


def test_a_refusal_or_a_farewell_is_raised() -> None:
    with pytest.raises(errors.ProtocolUnsupported):
        greeted(3, [REPLY, 3, errors.ProtocolUnsupported.code, ["no"]])
    with pytest.raises(errors.TooManyConnections):
        greeted(3, [PUSH, 0, Push.CLOSING, [errors.TooManyConnections.code, "full"]])
    with pytest.raises(errors.BadRequest):
        greeted(3, [REPLY, 3, 0, {"proto": "x"}])


def test_a_broker_of_another_protocol_is_refused_before_the_rest_is_read() -> None:
    text = "this client speaks protocol 1, the broker 2: run the same version of rmq on both sides"
    with pytest.raises(errors.ProtocolUnsupported, match=text):
        greeted(3, [REPLY, 3, 0, {"proto": 2, "limits": "of another shape"}])
