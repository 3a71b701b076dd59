"""
Compressed batches: judged by what they unpack to, stored as they came.

A send frame that takes long is worked off in several turns: order, answers and memory are as with a short one.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import ProducerMark, Rows
from rmq.wire.batch.compression import CODECS
from rmq.wire.errors import (
    BadBatch,
    BadRequest,
    BatchTooLarge,
    DiskFull,
    OutOfSequence,
    ProducerFenced,
    QueueNotFound,
    Refused,
    SequenceConflict,
    StoreFailed,
    TopicNotFound,
    UnsupportedFormat,
)
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.hello import ProducerHello
from rmq.wire.protocol.ops.core import Op, OutgoingBatch, SendResult

from ..builders import BORN_AT, ORDERS, files_limited_to, make_batch, segment_files
from ..harness import Client, bodies
from rigs.batches import every_codec, patched

pytestmark = pytest.mark.virtual_time


async def test_a_stored_batch_is_answered_with_its_place(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        first = await client.send(b"a", b"b")
        second = await client.send(b"c")

        assert (first.status, first.base_offset, first.durable, first.duplicate) == (0, 0, True, False)
        assert second.base_offset == 2
        assert second.physical_offset > first.physical_offset
        assert bodies(await client.pull(0)) == [b"a", b"b", b"c"]
        assert (await client.range())[:5] == (0, 0, 3, -1, None)


async def test_without_sync_the_answer_says_that_it_is_not_durable() -> None:
    async with InMemoryBroker(flush="async") as broker, Client(broker) as client:
        await client.create()

        assert not (await client.send(b"a")).durable
        assert bodies(await client.pull(0)) == [b"a"]


async def test_batches_of_one_frame_have_an_answer_each(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        good, other = make_batch(b"a"), make_batch(b"b", to=MessageQueue("orders", 3))
        damaged = bytearray(make_batch(b"body"))
        damaged[-9] ^= 1

        results = await client.send_batches(
            OutgoingBatch(0, good), OutgoingBatch(0, bytes(damaged)), OutgoingBatch(4, good), OutgoingBatch(3, other),
            OutgoingBatch(0, make_batch(b"x", to=MessageQueue("nothing", 0))), OutgoingBatch(0, good),
            OutgoingBatch(0, b"garbage"), OutgoingBatch(0, good + bytes(8)),
        )  # fmt: skip

        assert [result.status for result in results] == [
            0, BadBatch.code, QueueNotFound.code, 0, TopicNotFound.code, 0, BadBatch.code, BadBatch.code,
        ]  # fmt: skip
        assert [results[i].base_offset for i in (0, 3, 5)] == [0, 0, 1]
        assert all(result.text for result in results if result.status)
        assert "there is no topic 'nothing': create it with `rmq-admin" in (results[4].text or "")


async def test_an_empty_frame_is_answered_with_an_empty_list(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        assert await client.send_batches() == []


async def test_a_send_of_another_shape_is_refused(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        with pytest.raises(BadRequest, match=r"Send: batches"):
            await client.request(Op.SEND, [[["0", b""]]])


async def test_a_producer_may_not_send_state(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create("orders")
        state = batches.encode("orders", 0, Rows([b"\x90"], BORN_AT), kind=layout.KIND_STATE)

        (result,) = await client.send_batches(OutgoingBatch(0, bytes(state)))

        assert (result.status, result.text) == (UnsupportedFormat.code, "a producer may not send batches of kind 2")


# ---- a producer's line


def numbered(sequence: int, body: bytes = b"x", *, epoch: int = 0, to: MessageQueue = ORDERS) -> OutgoingBatch:
    return OutgoingBatch(to.queue_id, make_batch(body, to=to, by=ProducerMark(7, sequence, epoch)))


async def test_a_batch_sent_again_is_stored_once_and_answered_as_the_first_time(broker: InMemoryBroker) -> None:
    async with Client(broker) as client, Client(broker, "other") as other:
        await client.create()
        first, second = await client.send_batches(numbered(0, b"a"), numbered(1, b"b"))

        again = [*await client.send_batches(numbered(0, b"a")), *await other.send_batches(numbered(1, b"b"))]

        assert again == [first._replace(duplicate=True), second._replace(duplicate=True)]
        assert bodies(await client.pull(0)) == [b"a", b"b"]


async def test_a_batch_sent_twice_in_one_frame_is_stored_once(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()

        first, second = await client.send_batches(numbered(0), numbered(0))

        assert second == first._replace(duplicate=True)
        assert (await client.range()).max_offset == 1


async def test_a_batch_after_a_missing_one_is_refused_and_may_come_again(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send_batches(numbered(0, b"0"))

        refused = await client.send_batches(numbered(2, b"2"), numbered(3, b"3"))
        stored = await client.send_batches(numbered(1, b"1"), numbered(2, b"2"), numbered(3, b"3"))

        assert [result.status for result in refused] == [OutOfSequence.code] * 2
        assert [result.status for result in stored] == [0, 0, 0]
        assert bodies(await client.pull(0)) == [b"0", b"1", b"2", b"3"]


async def test_a_number_used_for_another_batch_is_a_conflict(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send_batches(numbered(0, b"a"))

        (result,) = await client.send_batches(numbered(0, b"b"))

        assert result.status == SequenceConflict.code


async def test_a_higher_epoch_of_a_producer_fences_the_lower(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send_batches(numbered(0, epoch=1))
        await client.send_batches(numbered(1, epoch=2))

        (result,) = await client.send_batches(numbered(2, epoch=1))

        assert result.status == ProducerFenced.code


async def test_a_refusal_for_good_spends_its_number(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        nowhere = numbered(1, to=MessageQueue("nothing", 0))

        results = await client.send_batches(numbered(0), nowhere, numbered(2))

        assert [result.status for result in results] == [0, TopicNotFound.code, 0]


@pytest.mark.parametrize(("at", "fmt", "value"), [(98, ">H", 3), (76, ">H", 1), (64, ">B", 1), (78, ">H", 0)])
async def test_a_batch_that_is_not_sound_spends_no_number_and_the_next_hello_passes_over_it(
    broker: InMemoryBroker, at: int, fmt: str, value: int
) -> None:
    """Whose it is cannot be believed either; a producer that counts on says so in its hello."""
    client = Client(broker)
    client.connection._producer_hello = lambda: ProducerHello(7, 0, 2 if client.connection.hello else 0)
    async with client:
        await client.create()
        unsound = bytearray(numbered(1).batch)
        struct.pack_into(fmt, unsound, at, value)

        results = await client.send_batches(numbered(0), OutgoingBatch(0, bytes(unsound)), numbered(2))
        await client.blip()
        (again,) = await client.send_batches(numbered(2))

        assert results[1].status in (UnsupportedFormat.code, BadBatch.code)
        assert [results[0].status, results[2].status, again.status] == [0, OutOfSequence.code, 0]


async def test_the_numbers_survive_a_restart(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        first, _ = await client.send_batches(numbered(0, b"a"), numbered(1, b"b"))
    await broker.restart()
    async with Client(broker) as client:
        results = await client.send_batches(numbered(0, b"a"), numbered(3, b"d"), numbered(2, b"c"))

        assert results[0] == first._replace(duplicate=True)
        assert [result.status for result in results] == [0, OutOfSequence.code, 0]
        assert bodies(await client.pull(0)) == [b"a", b"b"]  # what a start found is in files, what came then in memory
        assert bodies(await client.pull(2)) == [b"c"]


async def test_a_hello_moves_the_line_to_the_first_unresolved_number(broker: InMemoryBroker) -> None:
    client = Client(broker)
    client.connection._producer_hello = lambda: ProducerHello(7, 0, 10)
    async with client:
        await client.create()

        results = await client.send_batches(numbered(11), numbered(10), numbered(11))

        assert [result.status for result in results] == [OutOfSequence.code, 0, 0]


# ---- the disk


async def test_a_write_that_fails_is_reported_and_leaves_offsets_and_numbers_to_be_used_again(
    broker: InMemoryBroker,
) -> None:
    async with Client(broker) as client, Client(broker, "other") as other:
        await client.create()
        await client.send_batches(numbered(0, b"a"))
        (segment,) = segment_files(broker.broker.config.data_path())
        with files_limited_to(segment.stat().st_size + 100):
            failed = await client.send_batches(numbered(1, b"b" * 50), numbered(2, b"c" * 50))
            repeated = await other.send_batches(numbered(1, b"b" * 50))
            read = bodies(await client.pull(0))

        assert [result.status for result in [*failed, *repeated]] == [StoreFailed.code] * 3
        assert failed[0].text == "the log could not be written: File too large"
        assert read == [b"a"]
        stored = await client.send_batches(numbered(1, b"b" * 50), numbered(2, b"c" * 50))
        assert [(result.status, result.base_offset) for result in stored] == [(0, 1), (0, 2)]
        assert bodies(await client.pull(0)) == [b"a", b"b" * 50, b"c" * 50]


async def test_a_duplicate_whose_original_was_not_written_is_refused_too(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        (segment,) = segment_files(broker.broker.config.data_path())
        with files_limited_to(segment.stat().st_size + 10):
            results = await client.send_batches(numbered(0), numbered(0))

        assert [result.status for result in results] == [StoreFailed.code] * 2


async def test_below_the_free_space_sends_are_refused_and_reads_go_on() -> None:
    async with InMemoryBroker() as broker, Client(broker) as client:
        await client.create()
        await client.send_batches(numbered(0, b"kept"))
        await broker.stop()
        full = InMemoryBroker(data_dir=broker.config.data_dir, min_free_bytes=1 << 60)
        async with full, Client(full) as reader:
            (result,) = await reader.send_batches(numbered(1))

            assert result.status == DiskFull.code
            assert "MiB are needed: free some space" in (result.text or "")
            assert bodies(await reader.pull(0)) == [b"kept"]
            await reader.join()
            assert (await reader.acquire()).status == 0
        await broker.start()
        await client.connection.wait_connected()
        (result,) = await client.send_batches(numbered(1))  # the refusal had not spent the number
        assert result.status == 0


async def test_a_send_has_at_most_256_batches(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        outgoing = OutgoingBatch(0, make_batch(b"x"))

        assert len(await client.send_batches(*[outgoing] * 256)) == 256
        with pytest.raises(BadRequest, match="a request has at most 256 entries, not 257"):
            await client.send_batches(*[outgoing] * 257)


BODIES_AT = 162  # of the batch that packed() makes
TEXTS = [b"created " * 50, b"paid " * 50]


def packed(name: str, *texts: bytes, by: ProducerMark | None = None) -> bytes:
    rows, mark = Rows(texts or TEXTS, BORN_AT), by or ProducerMark()
    return bytes(batches.encode("orders", 0, rows, by=mark, codec=CODECS.by_name(name)))


@every_codec
async def test_a_compressed_batch_is_stored_byte_for_byte(broker: InMemoryBroker, name: str) -> None:
    sent = packed(name)
    async with Client(broker) as client:
        await client.create()

        (result,) = await client.send_batches(OutgoingBatch(0, sent))

        answer = await client.pull(0)
        assert (result.status, result.base_offset) == (0, 0)
        assert answer.batches[layout.BROKER_PART :] == sent[layout.BROKER_PART :]
        assert bodies(answer) == TEXTS


@pytest.mark.parametrize(
    ("at", "fmt", "value", "code"),
    [
        (76, ">H", 4, UnsupportedFormat.code),
        (76, ">H", 0, BadBatch.code),
        (108, ">I", 649, BadBatch.code),
        (108, ">I", 651, BadBatch.code),
        (108, ">I", 1 << 31, BatchTooLarge.code),
        (BODIES_AT, ">B", 0xFF, BadBatch.code),
    ],
)
async def test_what_does_not_unpack_is_refused_and_not_stored(
    broker: InMemoryBroker, at: int, fmt: str, value: int, code: int
) -> None:
    wrong = patched(packed("zlib"), at, fmt, value)
    async with Client(broker) as client:
        await client.create()

        wrong_result, result = await client.send_batches(OutgoingBatch(0, wrong), OutgoingBatch(0, packed("zlib")))

        assert (wrong_result.status, result.status, result.base_offset) == (code, 0, 0)
        assert wrong_result.text


async def test_a_bomb_is_refused(broker: InMemoryBroker) -> None:
    bomb = bytearray(packed("zlib", bytes(layout.MAX_BODY)))
    struct.pack_into("<I", bomb, layout.parse_header(bomb).header_size + 3, 100_000)  # the first column: lengths
    async with Client(broker) as client:
        await client.create()

        (result,) = await client.send_batches(OutgoingBatch(0, patched(bytes(bomb), 108, ">I", 100_000)))

        assert result.status == BadBatch.code
        assert "do not unpack to the 100000 bytes that are announced" in (result.text or "")


async def test_a_compressed_batch_sent_twice_is_stored_once(broker: InMemoryBroker) -> None:
    sent = OutgoingBatch(0, packed("zlib", by=ProducerMark(7, 1)))
    async with Client(broker) as client:
        await client.create()

        first, second = await client.send_batches(sent, sent)

        assert (first.base_offset, first.duplicate) == (0, False)
        assert (second.base_offset, second.duplicate) == (0, True)


async def test_bodies_that_do_not_unpack_spend_their_number(broker: InMemoryBroker) -> None:
    """As every refusal for good: the producer goes on with the next one, and need not be told anew where it stands."""
    wrong = patched(packed("zlib", by=ProducerMark(7, 1)), BODIES_AT, ">B", 0xFF)
    async with Client(broker) as client:
        await client.create()

        (refused,) = await client.send_batches(OutgoingBatch(0, wrong))
        (stored,) = await client.send_batches(OutgoingBatch(0, packed("zlib", by=ProducerMark(7, 2))))

        assert (refused.status, stored.status, stored.base_offset) == (BadBatch.code, 0, 0)


class Costly:
    """A clock that is 1.5 ms further each time it is read: two batches a turn."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.0015
        return self.now


@pytest.fixture
async def slow() -> AsyncIterator[InMemoryBroker]:
    """A broker whose every batch takes long to judge."""
    async with InMemoryBroker() as broker:
        broker.broker._sends._clock = Costly()
        yield broker


def outgoing(count: int, *, first: int = 0, producer: int = 0) -> list[OutgoingBatch]:
    marks = [ProducerMark(producer, first + i if producer else 0, 0) for i in range(count)]
    return [OutgoingBatch(0, make_batch(b"%d" % (first + i), by=mark)) for i, mark in enumerate(marks)]


def send(client: Client, *batches: OutgoingBatch) -> asyncio.Task[list[SendResult]]:
    return asyncio.create_task(client.send_batches(*batches))


async def begun(broker: InMemoryBroker) -> None:
    """Wait until the first turn of a frame is stored."""
    queue = broker.broker._store.queue(ORDERS)
    while not queue.readable:
        await asyncio.sleep(0)


async def test_all_batches_are_answered_together_in_their_order(slow: InMemoryBroker) -> None:
    async with Client(slow) as client:
        await client.create()

        results = await client.send_batches(*outgoing(9))

        assert [(result.status, result.base_offset) for result in results] == [(0, i) for i in range(9)]
        assert bodies(await client.pull(0)) == [b"%d" % i for i in range(9)]


async def test_what_comes_after_on_the_connection_waits_for_the_whole_frame(slow: InMemoryBroker) -> None:
    async with Client(slow) as client:
        await client.create()

        first, second = send(client, *outgoing(7)), send(client, *outgoing(7, first=7))
        pulled = asyncio.create_task(client.pull(0, wait_ms=1000))

        assert [result.base_offset for result in await first + await second] == list(range(14))
        assert bodies(await pulled)
        assert slow.broker.budget.used == 0


async def test_others_are_served_between_the_turns(slow: InMemoryBroker) -> None:
    async with Client(slow, "long") as long, Client(slow, "short") as short:
        await long.create()

        sending = send(long, *outgoing(200))
        trips = 0
        while not sending.done():
            await short.request(Op.PING, [])
            trips += 1

        assert trips > 20
        assert len(await sending) == 200


async def test_the_memory_of_a_frame_that_waits_counts(slow: InMemoryBroker) -> None:
    async with Client(slow, "long") as long, Client(slow, "short") as short:
        await long.create()
        sending, most = send(long, *outgoing(200)), 0
        while not sending.done():
            await short.request(Op.PING, [])
            most = max(most, slow.broker.budget.used)

        assert most > 200 * 150
        assert slow.broker.budget.used == 0


async def test_a_connection_that_ends_in_between_loses_the_rest_and_the_producer_sends_it_again(
    slow: InMemoryBroker,
) -> None:
    async with Client(slow, "long") as long, Client(slow, "short") as short:
        await long.create()
        sending = send(long, *outgoing(200, producer=7))
        await begun(slow)
        for connection in slow.broker._connections:
            if connection.session is not None and connection.session.member == long.member:
                connection.abort()
        with pytest.raises(ConnectionError):
            await sending
        await long.connection.wait_connected()
        stored = (await short.range()).max_offset
        assert 0 < stored < 200

        again = await long.send_batches(*outgoing(200, producer=7))

        assert [result.base_offset for result in again] == list(range(200))
        assert [result.duplicate for result in again] == [True] * stored + [False] * (200 - stored)
        assert slow.broker.budget.used == 0


@pytest.mark.parametrize(("producer", "behind"), [(0, StoreFailed), (7, OutOfSequence)])
async def test_a_turn_that_cannot_be_written_refuses_its_own_batches(
    slow: InMemoryBroker, producer: int, behind: type[Refused]
) -> None:
    """Behind a numbered batch that was not stored nothing of its producer can be."""
    batches = outgoing(8, producer=producer)
    async with Client(slow) as client:
        await client.create()
        (segment,) = segment_files(slow.broker.config.data_path())
        with files_limited_to(segment.stat().st_size + 3 * len(batches[0].batch)):
            results = await client.send_batches(*batches)

        refused = [StoreFailed.code] * 2 + [behind.code] * 4
        assert [result.status for result in results] == [0, 0, *refused]
        again = await client.send_batches(*batches[2:])
        assert [(result.status, result.base_offset) for result in again] == [(0, i) for i in range(2, 8)]
        assert bodies(await client.pull(0)) == [b"%d" % i for i in range(8)]


async def test_a_stop_in_between_waits_for_the_frame_and_answers_it(slow: InMemoryBroker) -> None:
    async with Client(slow) as client:
        await client.create()
        sending = send(client, *outgoing(200))
        await begun(slow)
        assert not sending.done()

        await slow.restart()

        assert [result.status for result in await sending] == [0] * 200
        await client.connection.wait_connected()
        assert (await client.range()).max_offset == 200
