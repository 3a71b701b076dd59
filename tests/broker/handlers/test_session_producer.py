"""What a producer's hello is told of its batches, and when."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch.batch import ProducerMark
from rmq.wire.errors import DiskFull, ProducerFenced, SequenceConflict, StoreFailed, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import Op, OutgoingBatch

from ..builders import ORDERS, files_limited_to, make_batch, segment_files
from ..fakes import request
from ..faulty_files import FaultyFiles
from ..harness import Client, crash_copy
from ..raw import GREETING, Raw
from support.held_broker import HeldBroker

pytestmark = pytest.mark.virtual_time

P = 7


@pytest.fixture
async def held() -> AsyncIterator[HeldBroker]:
    """The real broker, whose disk can be held."""
    async with HeldBroker() as broker:
        async with Client(broker) as client:
            await client.create()
        yield broker
        broker.release()


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


async def test_a_hello_without_a_producer_is_told_of_none(broker: InMemoryBroker) -> None:
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


async def test_after_a_crash_a_refused_number_between_stored_ones_is_told_as_not_stored(
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


async def test_with_async_flush_what_is_written_is_told_as_not_durable() -> None:
    async with InMemoryBroker(flush="async") as broker, Client(broker) as client:
        await client.create()
        await client.send_batches(numbered(1))

        assert (await told(broker))[3][0][4] is False


# Durability


async def test_a_hello_is_answered_when_all_it_tells_is_durable_and_nothing_behind_it_is_served_before(
    held: HeldBroker,
) -> None:
    held.hold()
    older, newer = await Raw.open(held), await Raw.open(held)
    await older.ask(hello())
    older.writer.write(send(1, 2))
    assert await silent(older)
    newer.writer.write(hello() + request(2, Op.PING, []))
    assert await silent(newer)
    newer.writer.write(request(3, Op.PING, []) + send(3, request_id=4))
    assert await silent(newer)

    held.release()
    answers = [await newer.next() for _ in range(4)]

    assert [answer[1] for answer in answers] == [1, 2, 3, 4]
    assert answers[0][3]["producer"][:3] == [3, True, 1]
    assert [outcome[0] for outcome in answers[0][3]["producer"][3]] == [0, 0]
    assert answers[3][3][0][0] == 0
    for raw in (older, newer):
        await raw.close()


async def test_a_hello_does_not_wait_for_what_is_not_its_own(held: HeldBroker) -> None:
    async with Client(held) as client, Client(held) as other:
        await client.send_batches(numbered(1))
        held.hold()
        creating = asyncio.create_task(other.create("other"))  # so that something is not durable
        await asyncio.sleep(0.1)

        assert (await told(held))[:3] == [2, True, 1]
        assert not creating.done()

        held.release()
        await creating


async def test_a_hello_with_nothing_to_tell_does_not_wait_for_the_disk(held: HeldBroker) -> None:
    held.hold()

    assert await told(held) == [1, False, 1, []]


async def test_a_client_that_closes_before_the_answer_harms_nobody(held: HeldBroker, logs: list[Any]) -> None:
    held.hold()
    first = await Raw.open(held)
    await first.ask(hello())
    first.writer.write(send(1))
    for _ in range(3):
        raw = await Raw.open(held)
        raw.writer.write(hello())
        await asyncio.sleep(0.1)
        await raw.close()
    await asyncio.sleep(1)

    held.release()

    assert (await told(held))[:3] == [2, True, 1]
    assert not [entry for entry in logs if entry["event"] in ("answer.failed", "request.failed")]
    await first.close()


async def test_a_newer_hello_of_the_session_is_answered_and_the_older_one_is_not(held: HeldBroker) -> None:
    held.hold()
    raws = [await Raw.open(held) for _ in range(3)]
    await raws[0].ask(hello())
    raws[0].writer.write(send(1, 2, 3))
    await asyncio.sleep(0.1)
    for raw in raws[1:]:
        raw.writer.write(hello(2))
        await asyncio.sleep(0.1)

    held.release()

    assert (await raws[2].next())[3]["producer"][:3] == [4, True, 2]
    assert (await raws[1].next())[0] == frames.PUSH, "it is told that it was replaced, no more"
    assert await raws[1].ended()
    for raw in raws:
        await raw.close()


async def test_a_write_that_fails_in_the_turn_of_the_hello_is_told_as_not_stored(held: HeldBroker) -> None:
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


async def test_a_refusal_in_a_turn_that_was_not_written_is_told_as_temporary(held: HeldBroker) -> None:
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


async def test_a_raised_epoch_is_answered_when_it_is_durable(held: HeldBroker) -> None:
    held.hold()
    raw = await Raw.open(held)
    raw.writer.write(hello(1, epoch=3))
    assert await silent(raw)

    held.release()

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


async def test_a_second_hello_with_a_raised_epoch_waits_as_the_first(held: HeldBroker) -> None:
    held.hold()
    raws = [await Raw.open(held) for _ in range(2)]
    for raw in raws:
        raw.writer.write(hello(1, epoch=3))
        await asyncio.sleep(0.1)
    assert await silent(raws[1])

    held.release()

    assert (await raws[1].next())[3]["producer"] == [1, False, 1, []]
    for raw in raws:
        await raw.close()


async def test_an_epoch_that_is_fenced_before_its_hello_was_answered_is_told_so(held: HeldBroker) -> None:
    held.hold()
    lower, higher = await Raw.open(held), await Raw.open(held)
    lower.writer.write(hello(1, epoch=1, session=b"1" * 16))
    await asyncio.sleep(0.1)
    higher.writer.write(hello(1, epoch=2, session=b"2" * 16))
    await asyncio.sleep(0.1)

    held.release()

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
    assert table.used_bytes == sum(len(line.ring) for line in table._lines.values()) <= 20 << 10
