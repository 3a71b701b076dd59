"""Compressed batches: judged by what they unpack to, stored as they came."""

from __future__ import annotations

import struct

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import ProducerMark, Rows
from rmq.wire.batch.compression import CODECS
from rmq.wire.errors import BadBatch, BatchTooLarge, UnsupportedFormat
from rmq.wire.protocol.ops.core import OutgoingBatch

from ..builders import BORN_AT
from ..harness import Client, bodies
from support.batches import every_codec, patched

pytestmark = pytest.mark.virtual_time

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
