"""The first exchange."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.client.greeting import greeted, greeting
from rmq.wire import errors, ops
from rmq.wire.frames import PUSH, REPLY, REQUEST, unpack
from rmq.wire.ops import Op, Push

REPLY_MAP = ops.hello_to_map(ops.HelloReply(1, "b", "c", 7, 1, "me#1", ops.Limits(1, 2, 3, 5.0, 1.0)))


def test_the_greeting_is_a_map_with_who_we_are() -> None:
    producer = ops.ProducerHello(5, 0, 9)
    kind, request_id, op, payload = unpack(greeting(3, "me", b"s" * 16, producer)[4:])
    hello = ops.hello_from_map(ops.Hello, payload)

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
