"""The greeting: a map, so that old and new can talk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq.wire.errors import BadRequest
from rmq.wire.protocol import frames
from rmq.wire.protocol.hello import (
    Hello,
    HelloReply,
    Limits,
    ProducerHello,
    ProducerOutcome,
    ProducerResumed,
    ResumedLease,
    hello_from_map,
    hello_to_map,
)
from rmq.wire.protocol.ops import core as ops

from rigs.batches import STORE_ID, golden

GOLDEN = Path(__file__).parents[1] / "golden"

HELLO = Hello(
    proto=[1, 1], client="billing", version="0.1.0", session=bytes(range(16)), features=[], auth=None, namespace=None,
    producer=ProducerHello(0xA1B2C3D4E5F60708, 7, 42),
)  # fmt: skip
REPLY = HelloReply(
    proto=1, broker="127.0.0.1:10911", cluster="default", store_id=STORE_ID, log_epoch=3, member="billing#00010203",
    limits=Limits(16777216, 4259840, 256, 5.0, 1.0, 60.0, 120.0),
    leases=[ResumedLease("g", "orders", 2, (3 << 32) | 1, 1000, -1, 0)],
)  # fmt: skip
RESUMED = REPLY._replace(
    producer=ProducerResumed(
        45, True, 42,
        [
            ProducerOutcome(0, 1000, 4096, 1_700_000_000_123_456, True),
            ProducerOutcome(121, text="refused"),
            ProducerOutcome(0, 1001, 8192, 1_700_000_000_123_457, False),
        ],
    )
)  # fmt: skip
LEAST: dict[str, Any] = {"proto": [1, 1], "client": "c", "version": "v", "session": b"s"}


@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("hello_request", frames.pack(frames.REQUEST, 1, ops.Op.HELLO, hello_to_map(HELLO))),
        ("hello_reply", frames.pack(frames.REPLY, 1, 0, hello_to_map(REPLY))),
        ("hello_reply_producer", frames.pack(frames.REPLY, 1, 0, hello_to_map(RESUMED))),
    ],
)
def test_the_bytes_of_a_greeting_never_change(name: str, frame: bytes) -> None:
    assert frame == golden(GOLDEN / f"{name}.hex")


@pytest.mark.parametrize(
    ("name", "greeting"), [("hello_request", HELLO), ("hello_reply", REPLY), ("hello_reply_producer", RESUMED)]
)
def test_a_greeting_comes_back(name: str, greeting: Hello | HelloReply) -> None:
    _, _, _, payload = frames.unpack(golden(GOLDEN / f"{name}.hex")[4:])

    assert hello_from_map(type(greeting), payload) == greeting


def test_a_lease_of_a_broker_that_knows_no_runs_is_understood() -> None:
    _, _, _, payload = frames.unpack(golden(GOLDEN / "hello_reply.hex")[4:])
    assert payload["leases"][0].pop() == []

    assert hello_from_map(HelloReply, payload) == REPLY


def test_unknown_fields_are_ignored() -> None:
    more: dict[Any, Any] = {**LEAST, "later": 1, "much": {"later": [2]}, b"bytes": None}

    assert hello_from_map(Hello, more) == Hello(**LEAST)


def test_optional_fields_may_be_left_out() -> None:
    hello = hello_from_map(Hello, LEAST)

    assert (hello.features, hello.auth, hello.namespace, hello.producer) == ([], None, None, None)


def test_a_default_list_is_not_shared_between_greetings() -> None:
    hello_from_map(Hello, LEAST).features.append("x")

    assert hello_from_map(Hello, LEAST).features == []


@pytest.mark.parametrize("auth", [None, "token", b"token", {"user": "a"}, ["a", 1], 5])
def test_auth_may_be_anything(auth: object) -> None:
    assert hello_from_map(Hello, {**LEAST, "auth": auth}).auth == auth


@pytest.mark.parametrize("name", LEAST)
def test_a_needed_field_that_is_missing_is_named(name: str) -> None:
    without = {key: value for key, value in LEAST.items() if key != name}

    with pytest.raises(BadRequest, match=f"Hello: {name} is missing"):
        hello_from_map(Hello, without)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"proto": 1}, "Hello: proto must be list, not int"),
        ({"proto": ["1"]}, r"Hello: proto\.\[\] must be int, not str"),
        ({"client": None}, "Hello: client must be str, not NoneType"),
        ({"client": b"c"}, "Hello: client must be str, not bytes"),
        ({"session": "s"}, "Hello: session must be bytes, not str"),
        ({"features": None}, "Hello: features must be list, not NoneType"),
        ({"features": [1]}, r"Hello: features\.\[\] must be str, not int"),
        ({"namespace": 1}, "Hello: namespace must be str, not int"),
        ({"producer": [1, 2]}, "Hello: producer.first_unresolved is missing"),
        ({"producer": [1, 2, True]}, "Hello: producer.first_unresolved must be int, not bool"),
    ],
)
def test_a_known_field_of_a_wrong_type_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        hello_from_map(Hello, {**LEAST, **change})


@pytest.mark.parametrize("value", [None, [], [1, 2], "hello", 1])
def test_what_is_no_map_is_no_greeting(value: object) -> None:
    with pytest.raises(BadRequest, match="the hello is not a map"):
        hello_from_map(Hello, value)


def test_limits_of_an_older_broker_have_the_timers_it_always_had() -> None:
    reply = hello_from_map(HelloReply, {**hello_to_map(REPLY), "limits": [1, 2, 3, 5.0, 1.0], "leases": []})

    assert (reply.limits.lock_lease_s, reply.limits.member_expiry_s) == (60.0, 120.0)


def test_limits_may_be_whole_numbers() -> None:
    reply = hello_from_map(HelloReply, {**hello_to_map(REPLY), "limits": [1, 2, 3, 5, 1], "leases": []})

    assert reply.limits == Limits(1, 2, 3, 5.0, 1.0)


def test_the_reply_of_an_older_broker_tells_of_no_producer() -> None:
    older = hello_to_map(REPLY)

    assert "producer" not in older
    assert hello_from_map(HelloReply, {**older, "limits": [1, 2, 3, 5, 1], "leases": []}).producer is None
