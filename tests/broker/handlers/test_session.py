from __future__ import annotations

import asyncio

import pytest

from rmq.engine.native.connection import Connection
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import layout
from rmq.wire.errors import (
    BadRequest,
    HelloRequired,
    HelloTimeout,
    ProducerFenced,
    ProtocolUnsupported,
    SessionReplaced,
    code_name,
)
from rmq.wire.protocol import frames
from rmq.wire.protocol.hello import ProducerHello
from rmq.wire.protocol.ops.core import Op, Push

from ..fakes import request
from ..harness import Client, holder, until
from ..raw import GREETING, Raw

pytestmark = pytest.mark.virtual_time


async def test_the_greeting_tells_the_timers_that_were_set() -> None:
    async with (
        InMemoryBroker(grace_s=3.0, ping_s=0.5, lock_lease_s=20.0, member_expiry_s=40.0) as broker,
        Client(broker) as client,
    ):
        assert client.hello.limits[3:] == (3.0, 0.5, 20.0, 40.0)


async def test_the_greeting_tells_who_the_broker_is_and_what_it_accepts(broker: InMemoryBroker) -> None:
    async with Client(broker, "me") as client:
        hello = client.hello

        assert hello[:3] == (1, "rmq", "default")
        assert hello.limits == (frames.MAX_FRAME, layout.MAX_BATCH, 256, 5.0, 1.0, 60.0, 120.0)
        assert hello.log_epoch > 1
        assert hello.store_id >> 63 == 1
        assert hello.member == f"me#{client.connection.session.hex()[:8]}"
        assert hello.leases == []


@pytest.mark.parametrize("producer", [[0, 0, 0], [(1 << 64) - 1, 65535, (1 << 64) - 1], [1, 0, 0]])
async def test_a_producer_may_use_all_numbers_that_a_batch_can_hold(
    broker: InMemoryBroker, producer: list[int]
) -> None:
    raw = await Raw.open(broker)

    assert (await raw.ask(request(1, Op.HELLO, {**GREETING, "producer": producer})))[:3] == [frames.REPLY, 1, 0]
    await raw.close()


async def test_unknown_fields_of_a_greeting_are_ignored(broker: InMemoryBroker) -> None:
    raw = await Raw.open(broker)

    answer = await raw.ask(request(1, Op.HELLO, {**GREETING, "colour": "green"}))

    assert answer[:3] == [frames.REPLY, 1, 0]
    await raw.close()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"session": b"short"}, "16"),
        ({"session": "text"}, "session must be bytes"),
        ({"client": ""}, "the client's name must have 1 to 128 printable characters"),
        ({"client": "x" * 129}, "the client's name must have 1 to 128 printable characters"),
        ({"client": "a\nb"}, "the client's name must have 1 to 128 printable characters"),
        ({"namespace": "x"}, "namespaces are not supported"),
        ({"proto": "1"}, "proto must be list"),
        ({"producer": [1]}, "producer"),
        ({"producer": [-1, 0, 1]}, "the producer_id of a producer is a number of 64 bits, not -1"),
        ({"producer": [7, 65536, 1]}, "the producer_epoch of a producer is a number of 16 bits, not 65536"),
        ({"producer": [7, -1, 1]}, "the producer_epoch of a producer is a number of 16 bits, not -1"),
        ({"producer": [7, 0, -5]}, "the first_unresolved of a producer is a number of 64 bits, not -5"),
    ],
)
async def test_a_greeting_that_is_wrong_is_refused_and_may_be_repeated(
    broker: InMemoryBroker, change: dict[str, object], text: str
) -> None:
    raw = await Raw.open(broker)

    refused = await raw.ask(request(1, Op.HELLO, {**GREETING, **change}))
    accepted = await raw.ask(request(2, Op.HELLO, GREETING))

    assert refused[:3] == [frames.REPLY, 1, BadRequest.code]
    assert text in refused[3][0]
    assert accepted[:3] == [frames.REPLY, 2, 0]
    await raw.close()


@pytest.mark.parametrize("proto", [[2, 9], [0, 0], [], [1]])
async def test_a_client_of_another_protocol_is_told_and_closed(broker: InMemoryBroker, proto: list[int]) -> None:
    raw = await Raw.open(broker)

    answer = await raw.ask(request(1, Op.HELLO, {**GREETING, "proto": proto}))

    assert answer[2] == ProtocolUnsupported.code
    (text,) = answer[3]
    assert text.startswith("this broker speaks protocol 1, the client ")
    assert text.endswith(": run the same version of rmq on both sides")
    assert await raw.ended()
    await raw.close()


async def test_a_second_greeting_is_refused_and_the_connection_goes_on(broker: InMemoryBroker) -> None:
    raw = await Raw.open(broker)
    await raw.ask(request(1, Op.HELLO, GREETING))

    assert (await raw.ask(request(2, Op.HELLO, GREETING)))[2:] == [
        BadRequest.code, ["this connection has greeted already"],
    ]  # fmt: skip
    assert await raw.ask(request(3, Op.PING, [])) == [frames.REPLY, 3, 0, []]
    await raw.close()


async def test_whoever_asks_before_greeting_is_told_and_closed(broker: InMemoryBroker) -> None:
    raw = await Raw.open(broker)

    answer = await raw.ask(request(1, Op.LIST_TOPICS, []))

    assert answer[2] == HelloRequired.code
    assert await raw.ended()
    await raw.close()


async def test_whoever_does_not_greet_is_closed_after_10_s(broker: InMemoryBroker) -> None:
    raw = await Raw.open(broker)

    answer = await raw.next()

    assert (answer[2], answer[3]) == (Push.CLOSING, [HelloTimeout.code, "no hello within 10 s"])
    assert 10.0 < asyncio.get_running_loop().time() <= 11.1
    assert await raw.ended()
    await raw.close()


async def test_a_newer_connection_of_a_session_ends_the_older(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    await client.connection.close()
    older = await Raw.open(broker)
    session = {**GREETING, "session": client.connection.session}

    reply = await older.ask(request(1, Op.HELLO, session))
    assert reply[3]["leases"][0][:4] == ["g", "orders", 0, epoch]
    newer = await Raw.open(broker)
    await newer.ask(request(1, Op.HELLO, session))

    assert (await older.next())[2:] == [
        Push.CLOSING, [SessionReplaced.code, "a newer connection took this session over"],
    ]  # fmt: skip
    assert await older.ended()
    await until(asyncio.get_running_loop().time() + 4.0)
    assert await newer.ask(request(2, Op.PING, [])) == [frames.REPLY, 2, 0, []]
    assert len(broker.broker._locks) == 1  # the older one's end did not start a grace
    for raw in (older, newer):
        await raw.close()


async def test_a_fenced_producer_is_refused_and_leaves_no_session_behind(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
    newer = Connection(broker.address, client="p", producer_hello=lambda: ProducerHello(7, 2, 1))
    await newer.open(timeout_s=5.0)
    older = Connection(broker.address, client="p", producer_hello=lambda: ProducerHello(7, 1, 1))

    with pytest.raises(ProducerFenced):
        await older.open(timeout_s=5.0)

    assert broker.broker._sessions.get(older.session) is None
    await newer.close()


async def test_garbage_closes_only_its_own_connection(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        raw = await Raw.open(broker)
        answer = await raw.ask(b"GET / HTTP/1.1\r\n\r\n")

        assert code_name(answer[3][0]) == "FRAME_TOO_LARGE"
        assert await raw.ended()
        assert await client.request(Op.PING, []) == []
        await raw.close()
