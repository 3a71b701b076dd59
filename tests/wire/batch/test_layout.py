"""The header: golden bytes, limits, and the name of whatever is unknown."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch import batch, layout
from rmq.wire.batch.layout import Header, parse_header
from rmq.wire.errors import BadBatch, BatchTooLarge, Refused, UnsupportedFormat
from rmq.wire.stores import StoreIds

from rigs.batches import FULL, MARK, MINIMAL, STAMP, golden, patched, quick, sample, stamped

GOLDEN = Path(__file__).parents[1] / "golden"


def test_every_field_of_the_full_golden_batch_lies_where_it_is_documented() -> None:
    header = parse_header(golden(GOLDEN / "batch_full.hex"))

    assert header._replace(header_crc=0, batch_crc=0) == Header(
        size=360, magic=0x524D, format=1, header_words=17, header_crc=0,
        log_epoch=3, physical_offset=4096, base_offset=1000, stored_at=1_700_000_000_123_456, durable_before=2048,
        origin=0, topic_gen=5, queue_id=2, kind=0, reserved=bytes(7),
        batch_crc=0, attributes=0, count=3, producer_id=0xA1B2C3D4E5F60708, sequence=42, producer_epoch=7,
        delay_level=0, meta_size=header.meta_size, body_size=14, raw_size=14, tag_bloom=header.tag_bloom, deliver_at=0,
        topic="orders",
    )  # fmt: skip
    assert (header.header_size, header.end_offset) == (136, 1003)


@pytest.mark.parametrize(
    ("at", "size", "field"),
    [
        (0, 4, "size"), (4, 2, "magic"), (6, 1, "format"), (7, 1, "header_words"), (8, 4, "header_crc"),
        (12, 4, "log_epoch"), (16, 8, "physical_offset"), (24, 8, "base_offset"), (32, 8, "stored_at"),
        (40, 8, "durable_before"), (48, 8, "origin"), (56, 4, "topic_gen"), (60, 4, "queue_id"), (64, 1, "kind"),
        (72, 4, "batch_crc"), (76, 2, "attributes"), (78, 2, "count"), (80, 8, "producer_id"), (88, 8, "sequence"),
        (96, 2, "producer_epoch"), (98, 2, "delay_level"), (100, 4, "meta_size"), (104, 4, "body_size"),
        (108, 4, "raw_size"), (112, 8, "tag_bloom"), (120, 8, "deliver_at"),
    ],
)  # fmt: skip
def test_a_field_is_a_big_endian_number_at_its_place(at: int, size: int, field: str) -> None:
    data = sample()

    assert int.from_bytes(data[at : at + size], "big") == getattr(parse_header(data), field)


def test_what_tells_of_tags_is_found_in_the_rest_of_a_batch_alone() -> None:
    data = sample()
    header = parse_header(data)

    assert header.tag_bloom
    assert layout.tag_fields(data[layout.BROKER_PART :]) == (header.meta_size, header.tag_bloom)


@pytest.mark.parametrize(
    ("at", "fmt", "value", "why"),
    [
        (6, ">B", 0, "batch format 0 is unknown, this version reads 1"),
        (6, ">B", 2, "batch format 2 is unknown"),
        (64, ">B", 3, "batch kind 3 is unknown"),
        (64, ">B", 255, "batch kind 255 is unknown"),
        (76, ">H", 4, "compression codec 4 is unknown"),
        (76, ">H", 7, "compression codec 7 is unknown"),
        (76, ">H", 9, "attribute bits 0x0009 are unknown"),
        (76, ">H", 8, "attribute bits 0x0008 are unknown"),
        (76, ">H", 0x8000, "attribute bits 0x8000 are unknown"),
    ],
)
def test_what_is_unknown_is_refused_by_name(at: int, fmt: str, value: int, why: str) -> None:
    with pytest.raises(UnsupportedFormat, match=why):
        parse_header(patched(sample(), at, fmt, value))


PARKED = STAMP._replace(kind=layout.KIND_PARKED, base_offset=STAMP.stored_at + 1)


@pytest.mark.parametrize(("level", "deliver_at"), [(1, 0), (65_535, 0), (0, 1), (0, layout.MAX_TIME - 1)])
@pytest.mark.parametrize("by", [STAMP, PARKED])
def test_a_batch_may_have_a_level_or_a_time_of_delivery(level: int, deliver_at: int, by: layout.Stamp) -> None:
    data = stamped(batch.encode("orders", 2, MINIMAL, delay_level=level, deliver_at=deliver_at), by)

    header = batch.check(data, stamped=True).header
    assert (header.kind, header.delay_level, header.deliver_at) == (by.kind, level, deliver_at)
    assert header.base_offset == by.base_offset


@pytest.mark.parametrize(
    ("level", "deliver_at", "why"),
    [
        (1, 1, "a delay level or a time of delivery, not both"),
        (0, -1, "the time -1 of deliver_at is not between 1970 and 9999"),
        (0, layout.MAX_TIME, "of deliver_at is not between 1970 and 9999"),
    ],
)
def test_a_delay_that_cannot_be_is_refused_by_who_makes_and_who_reads_it(level: int, deliver_at: int, why: str) -> None:
    changed = patched(patched(sample(), 98, ">H", level), 120, ">q", deliver_at)

    with pytest.raises(BadBatch, match=why):
        parse_header(changed)
    with pytest.raises(BadBatch, match=why):
        batch.encode("orders", 2, MINIMAL, delay_level=level, deliver_at=deliver_at)


def test_a_state_batch_is_never_delayed() -> None:
    with pytest.raises(BadBatch, match="state is never delayed"):
        parse_header(patched(patched(sample(), 98, ">H", 1), 64, ">B", layout.KIND_STATE))
    with pytest.raises(BadBatch, match="state is never delayed"):
        batch.encode("", 0, MINIMAL, kind=layout.KIND_STATE, delay_level=1)


def test_a_parked_batch_without_a_delay_is_a_copy() -> None:
    data = batch.encode("orders", 2, MINIMAL)

    assert parse_header(stamped(data, PARKED._replace(origin=4096))).kind == layout.KIND_PARKED
    with pytest.raises(BadBatch, match="neither a delay level, nor a time of delivery, nor an origin"):
        parse_header(patched(sample(), 64, ">B", layout.KIND_PARKED))


@pytest.mark.parametrize("due_at", [0, layout.MAX_TIME, 1 << 62])
def test_a_parked_batch_is_due_at_a_time_that_can_be_shown(due_at: int) -> None:
    data = stamped(batch.encode("orders", 2, MINIMAL, delay_level=1), PARKED._replace(base_offset=due_at))

    with pytest.raises(BadBatch, match=f"the time {due_at} at which a parked batch is due"):
        batch.check(data, stamped=True)


def test_only_a_broker_parks() -> None:
    with pytest.raises(UnsupportedFormat, match="a batch is parked by a broker alone"):
        batch.encode("orders", 2, MINIMAL, kind=layout.KIND_PARKED, delay_level=1)


def test_a_header_can_be_read_without_what_follows_it() -> None:
    data = sample()

    assert parse_header(data[:136], alone=True) == parse_header(data)
    with pytest.raises(BadBatch, match="announces 360 bytes and has 136"):
        parse_header(data[:136])


@pytest.mark.parametrize("byte", range(65, 72))
def test_each_reserved_byte_must_be_zero(byte: int) -> None:
    with pytest.raises(BadBatch, match="reserved bytes"):
        parse_header(patched(sample(), byte, ">B", 1))


def test_state_batches_are_known() -> None:
    data = batch.encode("orders", 2, MINIMAL, kind=layout.KIND_STATE)

    assert parse_header(data).kind == layout.KIND_STATE


@pytest.mark.parametrize(
    ("at", "fmt", "value", "why"),
    [
        (4, ">H", 0x4D52, "magic 0x4d52, not 0x524d"),
        (0, ">I", 0, "does not fit its parts"),
        (0, ">I", 8, "does not fit its parts"),
        (0, ">I", 352, "does not fit its parts"),
        (0, ">I", 361, "announces 361 bytes and has 360"),
        (7, ">B", 0, "does not fit a topic"),
        (7, ">B", 16, "does not fit a topic"),
        (7, ">B", 18, "does not fit a topic of 6"),
        (7, ">B", 255, "does not fit a topic of 6"),
        (128, ">B", 5, "padding of the topic"),
        (128, ">B", 200, "does not fit a topic of 200"),
        (134, ">B", 0xFF, "the topic is not UTF-8"),
        (78, ">H", 0, "1 to 4096 messages, not 0"),
        (78, ">H", 4097, "1 to 4096 messages, not 4097"),
        (108, ">I", 15, "bodies of 14 bytes announce 15"),
        (104, ">I", 0, "does not fit its parts"),
        (104, ">I", 0xFFFFFFFF, "does not fit its parts"),
        (100, ">I", 0xFFFFFFFF, "does not fit its parts"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(at: int, fmt: str, value: int, why: str) -> None:
    changed = bytearray(sample())
    struct.pack_into(fmt, changed, at, value)

    with pytest.raises(BadBatch, match=why):
        parse_header(changed)


@pytest.mark.parametrize("codec", [1, 2, 3])
def test_a_known_codec_is_read_whether_or_not_it_is_installed(codec: int) -> None:
    """Whoever only walks over batches needs no codec."""
    header = parse_header(patched(patched(sample(), 76, ">H", codec), 108, ">I", 900))

    assert (header.codec, header.body_size, header.raw_size) == (codec, 14, 900)
    assert header.open_size == header.size + 900 - 14


@pytest.mark.parametrize(
    ("raw_size", "error", "why"),
    [
        (0, BadBatch, "compressed bodies of 14 bytes announce 0, which is no gain"),
        (14, BadBatch, "which is no gain"),
        (layout.MAX_BATCH - 340, BatchTooLarge, r"a batch of 4259841 bytes, uncompressed, is over the limit"),
        (0xFFFFFFFF, BatchTooLarge, "uncompressed, is over the limit"),
    ],
)
def test_the_limits_hold_for_what_is_not_yet_uncompressed(raw_size: int, error: type[Refused], why: str) -> None:
    data = patched(sample(), 76, ">H", 1)

    with pytest.raises(error, match=why):
        parse_header(patched(data, 108, ">I", raw_size))


def test_the_largest_batch_may_be_compressed() -> None:
    data = patched(patched(sample(), 76, ">H", 1), 108, ">I", layout.MAX_BATCH - 136 - parse_header(sample()).meta_size)

    assert parse_header(data).raw_size > layout.MAX_BODY


def test_a_state_batch_is_never_compressed() -> None:
    data = patched(patched(sample(), 76, ">H", 1), 108, ">I", 900)

    with pytest.raises(BadBatch, match="the broker's own state is never compressed"):
        parse_header(patched(data, 64, ">B", layout.KIND_STATE))


def test_a_topic_of_seven_bytes_fills_its_words() -> None:
    assert parse_header(batch.encode("seventy", 0, MINIMAL)).header_size == 136
    assert parse_header(batch.encode("seventy8", 0, MINIMAL)).header_size == 144


@pytest.mark.parametrize("topic", ["", "a", "x" * 127, "x" * 254, "x" * 255, "größe"])
def test_any_topic_of_up_to_255_bytes_fits(topic: str) -> None:
    assert parse_header(batch.encode(topic, 0, MINIMAL)).topic == topic


def test_a_longer_topic_is_refused() -> None:
    with pytest.raises(BadBatch, match="the topic has 256 bytes, at most 255 fit"):
        layout.pack_topic("x" * 256)


@pytest.mark.parametrize(("size", "error"), [(layout.MAX_BATCH, BadBatch), (layout.MAX_BATCH + 1, BatchTooLarge)])
def test_a_size_over_the_limit_has_its_own_code(size: int, error: type[Refused]) -> None:
    with pytest.raises(error):
        parse_header(size.to_bytes(4, "big") + sample()[4:])


@pytest.mark.parametrize("length", [0, 1, 72, 128, 135])
def test_fewer_bytes_than_a_header_are_no_batch(length: int) -> None:
    with pytest.raises(BadBatch, match=f"a batch of {length} bytes is shorter than its header"):
        parse_header(sample()[:length])


def test_a_header_may_lie_anywhere_in_a_buffer() -> None:
    data = sample()

    for before in (1, 8, 100):
        assert parse_header(bytes(before) + data, before) == parse_header(data)


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(buffer: type) -> None:
    assert parse_header(buffer(sample())) == parse_header(sample())


@quick
@given(st.binary(max_size=300))
def test_garbage_raises_only_refusals(tail: bytes) -> None:
    for data in (tail, sample()[:8] + tail, sample()[:76] + tail + bytes(200)):
        try:
            parse_header(data)
        except Refused:
            pass


def test_stamping_replaces_the_first_72_bytes_only() -> None:
    data = batch.encode("orders", 9, FULL, by=MARK)

    done = stamped(data)

    assert done[72:] == data[72:]
    assert layout.Stamp(*parse_header(done)[5:14]) == STAMP
    assert parse_header(done).header_crc == layout.header_crc(done, 0, 136)
    assert layout.header_crc(bytes(8) + done, 8, 136) == layout.header_crc(done, 0, 136)


@pytest.mark.parametrize(
    ("stamp", "why"),
    [
        (STAMP._replace(physical_offset=4), "no batch lies at the physical offset 4"),
        (STAMP._replace(physical_offset=layout.MAX_POSITION), "no batch lies at"),
        (STAMP._replace(base_offset=1 << 62), "no message lies at the queue offset"),
        (STAMP._replace(stored_at=-1), "the time -1 of stored_at is not between"),
        (STAMP._replace(stored_at=layout.MAX_TIME), "of stored_at is not between"),
    ],
)
def test_a_stamp_that_readers_could_not_show_is_refused(stamp: layout.Stamp, why: str) -> None:
    data = stamped(batch.encode("orders", 2, FULL), stamp)

    with pytest.raises(BadBatch, match=why):
        batch.check(data, stamped=True)


@pytest.mark.parametrize(
    "stamp",
    [
        STAMP._replace(physical_offset=0, base_offset=0, stored_at=0),
        STAMP._replace(physical_offset=layout.MAX_POSITION - 8, base_offset=(1 << 62) - 1),
        STAMP._replace(stored_at=layout.MAX_TIME - 1),
    ],
)
def test_a_stamp_at_its_limits_is_read(stamp: layout.Stamp) -> None:
    last = batch.read(stamped(batch.encode("orders", 2, FULL), stamp), stores=StoreIds((1 << 64) - 1)).messages()[-1]

    assert batch.split_message_id(last.message_id) == ((1 << 64) - 1, stamp.physical_offset, 2)
    assert last.stored_at.year >= 1970


@pytest.mark.parametrize(("length", "rest"), [(0, 0), (1, 7), (7, 1), (8, 0), (9, 7)])
def test_padding_brings_to_a_multiple_of_eight(length: int, rest: int) -> None:
    assert layout.padding(length) == rest
