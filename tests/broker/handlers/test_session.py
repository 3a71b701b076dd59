"""What a producer's hello is told of its batches, and when."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmq.engine.native.connection import Connection
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import layout
from rmq.wire.batch.batch import ProducerMark
from rmq.wire.errors import (
    BadRequest,
    DiskFull,
    HelloRequired,
    HelloTimeout,
    ProducerFenced,
    ProtocolUnsupported,
    SequenceConflict,
    SessionReplaced,
    StoreFailed,
    TopicNotFound,
    code_name,
)
from rmq.wire.model import MessageQueue
from rmq.wire.protocol import frames
from rmq.wire.protocol.hello import ProducerHello
from rmq.wire.protocol.ops.core import Op, OutgoingBatch, Push

from ..builders import ORDERS, files_limited_to, make_batch, segment_files
from ..fakes import request
from ..harness import Client, crash_copy, holder, until
from ..raw import GREETING, Raw
from rigs.disk.faulty import FaultyFiles
from rigs.stalling_broker import StallingBroker

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
async def test_a_client_of_another_protocol_gets_the_reason_and_is_closed(
    broker: InMemoryBroker, proto: list[int]
) -> None:
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


async def test_a_request_before_the_hello_closes_the_connection_with_a_reason(broker: InMemoryBroker) -> None:
    raw = await Raw.open(broker)

    answer = await raw.ask(request(1, Op.LIST_TOPICS, []))

    assert answer[2] == HelloRequired.code
    assert await raw.ended()
    await raw.close()


async def test_a_connection_without_a_hello_is_closed_after_10_s(broker: InMemoryBroker) -> None:
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


async def test_a_fenced_producer_is_refused_and_leaves_no_session(broker: InMemoryBroker) -> None:
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


P = 7


@pytest.fixture
async def held() -> AsyncIterator[StallingBroker]:
    """The real broker, whose disk can be held."""
    async with StallingBroker() as broker:
        async with Client(broker) as client:
            await client.create()
        yield broker
        broker.go_on()


def hello(first: int = 1, *, epoch: int = 0, session: bytes = b"p" * 16, request_id: int = 1) -> bytes:
    return request(request_id, Op.HELLO, {**GREETING, "session": session, "producer": [P, epoch, first]})


def numbered(sequence: int, *, epoch: int = 0, to: MessageQueue = ORDERS) -> OutgoingBatch:
    return OutgoingBatch(to.queue_id, make_batch(b"%d" % sequence, to=to, by=ProducerMark(P, sequence, epoch)))


def send(*sequences: int, epoch: int = 0, request_id: int = 2) -> bytes:
    return request(request_id, Op.SEND, [[numbered(sequence, epoch=epoch) for sequence in sequences]])


async def silent(raw: Raw) -> bool:
    """Whether nothing comes within a second."""
    coming = asyncio.ensure_future(raw.reader.read(1))
    done, _ = await asyncio.wait([coming], timeout=1.0)
    coming.cancel()
    await asyncio.wait([coming])
    return not done


async def told(broker: InMemoryBroker, first: int = 1, *, epoch: int = 0) -> list[Any]:
    """What a hello is answered with: next number, whether known, first told, outcomes."""
    raw = await Raw.open(broker)
    reply = await raw.ask(hello(first, epoch=epoch))
    await raw.close()
    assert reply[2] == 0
    resumed: list[Any] = reply[3]["producer"]
    return resumed


async def test_a_hello_without_a_producer_gets_none(broker: InMemoryBroker) -> None:
    for producer in (None, [0, 0, 5]):
        raw = await Raw.open(broker)
        reply = await raw.ask(request(1, Op.HELLO, {**GREETING, "producer": producer}))
        assert "producer" not in reply[3]
        await raw.close()


async def test_a_hello_tells_what_became_of_each_number_and_which_is_next(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        assert await told(broker) == [1, False, 1, []]
        nowhere = numbered(2, to=MessageQueue("nothing", 0))
        one, two, three = await client.send_batches(numbered(1), nowhere, numbered(3))

        resumed = await told(broker)

        refusal = [two.status, 0, 0, 0, False, "batch 2 of this producer was refused for good"]
        assert two.status == TopicNotFound.code
        assert resumed == [4, True, 1, [[*one[:5], None], refusal, [*three[:5], None]]]
        assert await told(broker, 4) == [4, True, 4, []]
        assert await told(broker, 9) == [9, True, 9, []]


async def test_a_batch_that_was_refused_for_good_is_refused_again_for_the_same_reason(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        nowhere = numbered(1, to=MessageQueue("nothing", 0))
        (first,) = await client.send_batches(nowhere)
        await client.create("nothing")

        (again,) = await client.send_batches(nowhere)

        assert first.status == again.status == TopicNotFound.code


async def test_after_a_crash_a_refused_number_between_stored_ones_is_reported_as_not_stored(
    broker: InMemoryBroker, memory_path: Path
) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send_batches(numbered(1), numbered(2, to=MessageQueue("nothing", 0)), numbered(3))
    async with crash_copy(broker, memory_path / "copy") as copy:
        following, known, first, outcomes = await told(copy, 1)

    assert (following, known, first) == (4, True, 1)
    assert [outcome[0] for outcome in outcomes] == [0, SequenceConflict.code, 0]
    assert outcomes[1][5] == "batch 2 of this producer was not stored; why is not known any more"


async def test_with_async_flush_what_is_written_is_reported_as_not_durable() -> None:
    async with InMemoryBroker(flush="async") as broker, Client(broker) as client:
        await client.create()
        await client.send_batches(numbered(1))

        assert (await told(broker))[3][0][4] is False


# Durability


async def test_a_hello_is_answered_when_all_of_it_is_durable_and_no_later_request_before(
    held: StallingBroker,
) -> None:
    held.stall()
    older, newer = await Raw.open(held), await Raw.open(held)
    await older.ask(hello())
    older.writer.write(send(1, 2))
    assert await silent(older)
    newer.writer.write(hello() + request(2, Op.PING, []))
    assert await silent(newer)
    newer.writer.write(request(3, Op.PING, []) + send(3, request_id=4))
    assert await silent(newer)

    held.go_on()
    answers = [await newer.next() for _ in range(4)]

    assert [answer[1] for answer in answers] == [1, 2, 3, 4]
    assert answers[0][3]["producer"][:3] == [3, True, 1]
    assert [outcome[0] for outcome in answers[0][3]["producer"][3]] == [0, 0]
    assert answers[3][3][0][0] == 0
    for raw in (older, newer):
        await raw.close()


async def test_a_hello_does_not_wait_for_what_is_not_its_own(held: StallingBroker) -> None:
    async with Client(held) as client, Client(held) as other:
        await client.send_batches(numbered(1))
        held.stall()
        creating = asyncio.create_task(other.create("other"))  # so that something is not durable
        await asyncio.sleep(0.1)

        assert (await told(held))[:3] == [2, True, 1]
        assert not creating.done()

        held.go_on()
        await creating


async def test_a_hello_with_nothing_to_tell_does_not_wait_for_the_disk(held: StallingBroker) -> None:
    held.stall()

    assert await told(held) == [1, False, 1, []]


async def test_a_client_that_closes_before_the_answer_does_no_harm(held: StallingBroker, logs: list[Any]) -> None:
    held.stall()
    first = await Raw.open(held)
    await first.ask(hello())
    first.writer.write(send(1))
    for _ in range(3):
        raw = await Raw.open(held)
        raw.writer.write(hello())
        await asyncio.sleep(0.1)
        await raw.close()
    await asyncio.sleep(1)

    held.go_on()

    assert (await told(held))[:3] == [2, True, 1]
    assert not [entry for entry in logs if entry["event"] in ("answer.failed", "request.failed")]
    await first.close()


async def test_a_newer_hello_of_the_session_is_answered_and_the_older_one_is_not(held: StallingBroker) -> None:
    held.stall()
    raws = [await Raw.open(held) for _ in range(3)]
    await raws[0].ask(hello())
    raws[0].writer.write(send(1, 2, 3))
    await asyncio.sleep(0.1)
    for raw in raws[1:]:
        raw.writer.write(hello(2))
        await asyncio.sleep(0.1)

    held.go_on()

    assert (await raws[2].next())[3]["producer"][:3] == [4, True, 2]
    assert (await raws[1].next())[0] == frames.PUSH, "it is told that it was replaced, no more"
    assert await raws[1].ended()
    for raw in raws:
        await raw.close()


async def test_a_write_that_fails_in_the_turn_of_the_hello_is_reported_as_not_stored(held: StallingBroker) -> None:
    sender, raw = await Raw.open(held), await Raw.open(held)
    await sender.ask(hello())
    await sender.ask(send(1))
    (segment,) = segment_files(held.broker.config.data_path())
    with files_limited_to(segment.stat().st_size + 100):
        sender.writer.write(send(2, 3))
        raw.writer.write(hello(1, session=b"q" * 16))
        refused, reply = await sender.next(), await raw.next()

    assert [result[0] for result in refused[3]] == [StoreFailed.code] * 2
    assert reply[3]["producer"][:3] == [2, True, 1]
    for each in (sender, raw):
        await each.close()


async def test_a_refusal_in_a_turn_that_was_not_written_is_reported_as_temporary(held: StallingBroker) -> None:
    async with Client(held) as client:
        await client.send_batches(numbered(1))
        (segment,) = segment_files(held.broker.config.data_path())
        with files_limited_to(segment.stat().st_size + 100):
            nowhere = numbered(3, to=MessageQueue("nothing", 0))
            failed = await client.send_batches(numbered(2), nowhere, numbered(4))

        again = await client.send_batches(numbered(2), numbered(3), numbered(4))

        assert [result.status for result in failed] == [StoreFailed.code] * 3
        assert [result.status for result in again] == [0] * 3


# Epochs


async def test_a_raised_epoch_is_answered_when_it_is_durable(held: StallingBroker) -> None:
    held.stall()
    raw = await Raw.open(held)
    raw.writer.write(hello(1, epoch=3))
    assert await silent(raw)

    held.go_on()

    assert (await raw.next())[3]["producer"] == [1, False, 1, []]
    await raw.close()


async def test_a_raised_epoch_that_cannot_be_written_is_refused_at_once_until_it_can(memory_path: Path) -> None:
    files = FaultyFiles()
    async with InMemoryBroker(files=files, data_dir=str(memory_path)) as broker:
        files.fail("write", "commitlog", errno.ENOSPC)
        for _ in range(2):
            raw = await Raw.open(broker)
            reply = await asyncio.wait_for(raw.ask(hello(1, epoch=3)), 1.0)
            assert reply[2:] == [DiskFull.code, ["the log could not be written: No space left on device"]]
            await raw.close()
        files.heal()
        await asyncio.sleep(1)

        assert await told(broker, epoch=3) == [1, False, 1, []]
        copy = crash_copy(broker, memory_path.with_name(memory_path.name + "-copy"))
    async with copy:
        raw = await Raw.open(copy)
        assert (await raw.ask(hello(1, epoch=2)))[2] == ProducerFenced.code
        await raw.close()


async def test_a_second_hello_with_a_raised_epoch_waits_as_the_first(held: StallingBroker) -> None:
    held.stall()
    raws = [await Raw.open(held) for _ in range(2)]
    for raw in raws:
        raw.writer.write(hello(1, epoch=3))
        await asyncio.sleep(0.1)
    assert await silent(raws[1])

    held.go_on()

    assert (await raws[1].next())[3]["producer"] == [1, False, 1, []]
    for raw in raws:
        await raw.close()


async def test_an_epoch_that_is_fenced_before_its_hello_was_answered_learns_so(held: StallingBroker) -> None:
    held.stall()
    lower, higher = await Raw.open(held), await Raw.open(held)
    lower.writer.write(hello(1, epoch=1, session=b"1" * 16))
    await asyncio.sleep(0.1)
    higher.writer.write(hello(1, epoch=2, session=b"2" * 16))
    await asyncio.sleep(0.1)

    held.go_on()

    assert (await lower.next())[2] == ProducerFenced.code
    assert (await higher.next())[2] == 0
    for raw in (lower, higher):
        await raw.close()


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.parametrize("batches", [0, 2])
async def test_a_fenced_epoch_stays_fenced_over_the_end_of_the_broker(
    broker: InMemoryBroker, memory_path: Path, how: str, batches: int
) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send_batches(*(numbered(sequence, epoch=4) for sequence in range(1, 10)))
        assert (await told(broker, 1, epoch=5))[:2] == [1, False]
        await client.send_batches(*(numbered(sequence, epoch=5) for sequence in range(1, batches + 1)))
    after = broker
    if how == "restart":
        await broker.stop()
        await broker.start()
    else:
        after = crash_copy(broker, memory_path / "copy")
        await after.start()

    lower = await Raw.open(after)
    refused = await lower.ask(hello(10, epoch=4))
    assert refused[2] == ProducerFenced.code
    async with Client(after) as client:
        (result,) = await client.send_batches(numbered(10, epoch=4))
        assert result.status == ProducerFenced.code
    assert (await told(after, 1, epoch=5))[0] == batches + 1
    await lower.close()
    if after is not broker:
        await after.stop()


# Bounds


async def test_many_producers_are_forgotten_but_for_the_last_ones(broker: InMemoryBroker) -> None:
    table = broker.broker._producers
    table.max_producers, table.ring_bytes = 100, 20 << 10
    async with Client(broker) as client:
        await client.create()
        for first in range(1, 3001, 250):
            marks = [ProducerMark(producer, producer % 256) for producer in range(first, first + 250)]
            sent = [OutgoingBatch(0, make_batch(b"x", by=mark)) for mark in marks]
            assert {result.status for result in await client.send_batches(*sent)} == {0}

    assert len(table) == 100
    assert table.used_bytes == sum(len(line.ring) for line in table._producers.values()) <= 20 << 10
