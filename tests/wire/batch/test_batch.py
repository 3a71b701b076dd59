"""
The record batch: golden bytes, any rows round trip, any damage is refused, limits are exact.

A raw batch is judged as a whole as any other, and holds the same columns.

A batch of one plain message is the one that the general way makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq.wire.batch import batch, layout
from rmq.wire.batch.batch import OLDEST, SMALL, ProducerMark, Rows, encode, encode_single, read, read_raw
from rmq.wire.batch.compression import CODECS
from rmq.wire.errors import BadBatch, BatchTooLarge, MessageTooLarge, Refused, RmqError, UnsupportedFormat, WireError
from rmq.wire.model import from_us
from rmq.wire.stores import StoreIds

from rigs.batches import (
    BORN_AT,
    FULL,
    MARK,
    MINIMAL,
    STAMP,
    STORE_ID,
    any_rows,
    assemble,
    every_codec,
    golden,
    little,
    quick,
    sample,
    stamped,
    times,
)

GOLDEN = Path(__file__).parents[1] / "golden"


def test_the_messages_of_a_batch_tell_the_topic_that_its_reader_shows() -> None:
    read = batch.read(stamped(sample(MINIMAL)), stores=StoreIds(STORE_ID))
    before = read.messages()[0]

    read.show_topic("plain")

    assert {message.topic for message in [before, *read.messages()]} == {"plain"}
    assert read.header.topic != "plain"


def test_a_retried_message_tells_the_topic_of_its_original_without_the_namespace_of_its_reader() -> None:
    rows = Rows([b"x", b"y"], BORN_AT, properties=[{"RMQ_ORIGIN_TOPIC": "team%orders"}, {}])
    read = batch.read(stamped(batch.encode("%RETRY%team%g", 0, rows)), stores=StoreIds(STORE_ID))

    before = [message.topic for message in read.messages()]
    read.show_topic("%RETRY%g", "team")

    assert before == ["team%orders", "%RETRY%team%g"]
    assert [message.topic for message in read.messages()] == ["orders", "%RETRY%g"]


@pytest.mark.parametrize(("name", "rows"), [("batch_full", FULL), ("batch_minimal", MINIMAL)])
def test_the_bytes_of_a_batch_never_change(name: str, rows: Rows) -> None:
    """What is in the log of a user must stay readable: other bytes need another format number."""
    assert sample(rows) == golden(GOLDEN / f"{name}.hex")


def test_the_bytes_of_a_parked_batch_never_change() -> None:
    """The same message, due at a time that stands in the place of its offset."""
    due = STAMP._replace(kind=layout.KIND_PARKED, base_offset=STAMP.stored_at + 10_000_000)
    data = stamped(batch.encode("orders", 2, MINIMAL, by=MARK, delay_level=3), due)

    assert data == golden(GOLDEN / "batch_parked.hex")
    assert batch.check(data, stamped=True).header.base_offset == 1_700_000_010_123_456


def test_the_minimal_golden_batch_reads_as_one_empty_message() -> None:
    (message,) = batch.read(golden(GOLDEN / "batch_minimal.hex"), stores=StoreIds(STORE_ID)).messages()

    assert (message.body, message.tag, message.index_keys, message.properties) == (b"", None, (), {})
    assert (message.key, message.born_at) == (None, from_us(BORN_AT))


any_delay = st.tuples(st.integers(0, 65_535), st.just(0)) | st.tuples(st.just(0), times)


@quick
@given(any_rows(), any_delay)
def test_any_rows_come_back(rows: Rows, delay: tuple[int, int]) -> None:
    data = batch.encode("orders", 2, rows, by=MARK, delay_level=delay[0], deliver_at=delay[1])
    batch.check(data, stamped=False)

    read = batch.read(stamped(data), stores=StoreIds(STORE_ID))
    assert (read.header.delay_level, read.header.deliver_at) == delay
    messages = read.messages()
    count = len(rows.bodies)

    def column(values: Any, default: Any) -> Any:
        return [default] * count if values is None else list(values)

    assert read.bodies == b"".join(rows.bodies)
    assert [message.body for message in messages] == list(rows.bodies)
    assert [message.tag for message in messages] == column(rows.tags, None)
    assert [message.index_keys for message in messages] == column(rows.index_keys, ())
    assert [message.key for message in messages] == column(rows.keys, None)
    assert [message.properties for message in messages] == column(rows.properties, {})
    assert [read.columns.attempts_of(i) for i in range(count)] == column(rows.attempts, 0)
    born = [rows.born_at] * count if isinstance(rows.born_at, int) else rows.born_at
    assert [message.born_at for message in messages] == [from_us(us) for us in born]
    assert [message.queue_offset for message in messages] == [STAMP.base_offset + i for i in range(count)]


@pytest.mark.parametrize("rows", [FULL, MINIMAL])
def test_every_flipped_bit_is_refused(rows: Rows) -> None:
    data = sample(rows)

    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            batch.check(flipped, stamped=True)


@pytest.mark.parametrize("rows", [FULL, MINIMAL])
def test_every_truncation_is_refused(rows: Rows) -> None:
    data = sample(rows)

    for length in range(len(data)):
        with pytest.raises(WireError):
            batch.check(data[:length], stamped=True)
        if length:
            with pytest.raises(WireError):
                batch.read_all(data + data[:length], stores=StoreIds(STORE_ID))


@quick
@given(st.binary(max_size=400), st.integers(0, 600), st.booleans())
def test_garbage_raises_only_refusals(garbage: bytes, at: int, is_stamped: bool) -> None:
    data = sample()
    for wrong in (garbage, data[:at] + garbage, data[:at] + garbage + data[at + len(garbage) :]):
        try:
            batch.check(wrong, stamped=is_stamped)
        except Refused as error:
            assert error.text


@quick
@given(st.binary(max_size=400))
def test_garbage_behind_a_sound_batch_raises_only_refusals(garbage: bytes) -> None:
    try:
        batch.read_all(sample() + garbage, stores=StoreIds(STORE_ID))
    except Refused:
        assert garbage
    else:
        assert not garbage


def test_an_unstamped_batch_fills_its_buffer() -> None:
    """The broker stores the whole buffer: what follows the batch would end up in the log."""
    data = bytes(batch.encode("orders", 2, FULL))

    batch.check(data, stamped=False)
    with pytest.raises(BadBatch, match="8 bytes follow the batch"):
        batch.check(data + bytes(8), stamped=False)
    with pytest.raises(BadBatch, match="1 bytes follow the batch"):
        batch.check(data + b"x", stamped=False)


def test_a_header_that_was_parsed_before_need_not_be_parsed_again() -> None:
    data = batch.encode("orders", 2, FULL)
    header = layout.parse_header(data)

    assert batch.check(data, stamped=False, header=header).header is header
    data[-20] ^= 1
    with pytest.raises(BadBatch, match="the checksum does not match the content"):
        batch.check(data, stamped=False, header=header)


def test_the_brokers_part_of_an_unstamped_batch_is_not_judged() -> None:
    data = batch.encode("orders", 2, FULL)
    data[8:60] = b"\xff" * 52

    batch.check(data, stamped=False)


def test_a_stamped_batch_may_lie_anywhere_and_be_followed_by_others() -> None:
    one, two = sample(), sample(MINIMAL)

    assert batch.check(one + two, stamped=True).header.count == 3
    assert batch.check(one + two, len(one), stamped=True).header.count == 1
    assert batch.check(b"xxx" + one + two, 3, stamped=True).header.count == 3
    assert [found.header.count for found in batch.read_all(one + two + one, stores=StoreIds(STORE_ID))] == [3, 1, 3]
    assert batch.read_all(b"", stores=StoreIds(STORE_ID)) == []


@pytest.mark.parametrize(
    ("at", "why"),
    [(12, "the header's checksum"), (72, "the header's checksum"), (136, "the checksum does not match the content")],
)
def test_damage_is_told_by_place(at: int, why: str) -> None:
    data = bytearray(sample())
    data[at] ^= 0x80

    with pytest.raises(BadBatch, match=why):
        batch.check(data, stamped=True)


def test_a_damaged_producers_part_is_seen_without_a_stamp() -> None:
    data = batch.encode("orders", 2, FULL)
    data[90] ^= 1

    with pytest.raises(BadBatch, match="the checksum does not match the content"):
        batch.check(data, stamped=False)


def test_padding_that_is_not_zero_is_refused() -> None:
    data = bytearray(sample(MINIMAL))
    header = layout.parse_header(data)
    assert header.size > header.header_size + header.meta_size + header.body_size
    data[-1] = 1

    with pytest.raises(BadBatch, match="the padding is not zero"):
        batch.check(data, stamped=True)


def test_messages_may_begin_anywhere() -> None:
    read = batch.read(sample(), stores=StoreIds(STORE_ID))

    assert [m.queue_offset for m in read.messages()] == [1000, 1001, 1002]
    assert [m.queue_offset for m in read.messages(999)] == [1000, 1001, 1002]
    assert [m.queue_offset for m in read.messages(1001)] == [1001, 1002]
    assert [m.body for m in read.messages(1002)] == [b"paid \x00\xff"]
    assert read.messages(1003) == []
    assert read.messages(5000) == []


@pytest.mark.parametrize(
    "places",
    [
        [range(3)],
        [range(1), range(1, 3)],  # the next where the last ended
        [range(2, 3), range(2), range(1, 3)],  # anywhere else
        [range(0, 3, 2), [2, 0], range(1, 2)],  # not one behind the other
        [range(0), [], range(2, 1), range(1, 3)],
        [range(2, -1, -1), range(3)],
    ],
)
def test_messages_are_picked_at_any_places_and_in_any_order(places: list[Sequence[int]]) -> None:
    read = batch.read(sample(), stores=StoreIds(STORE_ID))
    expected = [(m.body, m.queue_offset, m.attempt) for m in batch.read(sample(), stores=StoreIds(STORE_ID)).messages()]

    for indexes in places:
        picked = read.pick(indexes)
        assert [(m.body, m.queue_offset, m.attempt) for m in picked] == [expected[i] for i in indexes]


def test_reading_on_after_another_has_read_elsewhere_finds_the_right_bodies() -> None:
    read = batch.read(sample(), stores=StoreIds(STORE_ID))
    expected = [m.body for m in batch.read(sample(), stores=StoreIds(STORE_ID)).messages()]

    for start, end in ((0, 2), (2, 3), (1, 3), (0, 1), (1, 2), (2, 3)):
        assert [m.body for m in read.pick(range(start, end))] == expected[start:end]


def test_a_message_keeps_neither_the_reply_nor_its_neighbours_alive() -> None:
    data = bytearray(sample())

    messages = batch.read(data, stores=StoreIds(STORE_ID)).messages()
    data.extend(b"x")  # raises BufferError while a view exists

    assert all(type(message.body) is bytes for message in messages)


@pytest.mark.parametrize("size", [layout.MAX_BODY - 1, layout.MAX_BODY])
def test_a_body_up_to_the_limit_passes(size: int) -> None:
    batch.check(batch.encode("orders", 2, Rows([bytes(size)], BORN_AT)), stamped=False)


def test_a_body_over_the_limit_is_refused_on_both_sides() -> None:
    size = layout.MAX_BODY + 1

    with pytest.raises(MessageTooLarge, match=f"a body of {size} bytes is over the limit of {layout.MAX_BODY}"):
        batch.encode("orders", 2, Rows([bytes(size)], BORN_AT))
    meta = msgpack.packb([little("I", [size]), None, None, None, None, None, BORN_AT, None])
    with pytest.raises(MessageTooLarge, match=f"a body of {size} bytes is over the limit of {layout.MAX_BODY}"):
        batch.check(assemble(meta, bytes(size), count=1), stamped=True)


def room_for_bodies() -> int:
    """Bytes that the largest batch of two messages has for its bodies."""
    head = layout.parse_header(batch.encode("orders", 2, Rows([b"", b""], BORN_AT)))
    return layout.MAX_BATCH - head.header_size - head.meta_size


@pytest.mark.parametrize("over", [-1, 0])
def test_a_batch_up_to_the_limit_passes(over: int) -> None:
    room = room_for_bodies()

    data = batch.encode("orders", 2, Rows([bytes(1 << 20), bytes(room - (1 << 20) + over)], BORN_AT))

    assert len(data) == layout.MAX_BATCH
    batch.check(data, stamped=False)


def test_a_batch_over_the_limit_is_refused_on_both_sides() -> None:
    room = room_for_bodies()
    bodies = [bytes(1 << 20), bytes(room - (1 << 20) + 1)]

    with pytest.raises(BatchTooLarge, match=f"a batch of {layout.MAX_BATCH + 1} bytes is over the limit"):
        batch.encode("orders", 2, Rows(bodies, BORN_AT))
    meta = msgpack.packb([little("I", list(map(len, bodies))), None, None, None, None, None, BORN_AT, None])
    with pytest.raises(BatchTooLarge, match=f"over the limit of {layout.MAX_BATCH}"):
        batch.check(assemble(meta, b"".join(bodies), count=2), stamped=True)


@pytest.mark.parametrize("count", [1, 4095, 4096])
def test_up_to_4096_messages_fit(count: int) -> None:
    data = batch.encode("orders", 2, Rows([b"x"] * count, BORN_AT))

    assert batch.check(data, stamped=False).header.count == count


@pytest.mark.parametrize("count", [0, 4097])
def test_no_message_or_too_many_are_refused(count: int) -> None:
    with pytest.raises(BadBatch, match=f"1 to 4096 messages, not {count}"):
        batch.encode("orders", 2, Rows([b"x"] * count, BORN_AT))


ONE = Rows([b"x"], BORN_AT)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (ONE._replace(tags=["\ud800"]), "cannot be stored"),
        (ONE._replace(index_keys=[("\ud800",)]), "cannot be stored"),
        (ONE._replace(keys=["\ud800"]), "cannot be stored"),
        (ONE._replace(properties=[{"\ud800": ""}]), "cannot be stored"),
        (ONE._replace(properties=[{"a": "\ud800"}]), "cannot be stored"),
        (ONE._replace(properties=[{"": "x"}]), "a name of the column properties is empty"),
        (ONE._replace(properties=[dict.fromkeys(map(str, range(65537)), "")]), "cannot be stored"),
        (ONE._replace(tags=["x" * 256]), "a name of the column tags is over the limit of 255 bytes"),
        (ONE._replace(tags=["€" * 86]), "a name of the column tags is over the limit of 255 bytes"),
        (ONE._replace(index_keys=[("",)]), "an index key is empty or holds a space"),
        (ONE._replace(index_keys=[("a b",)]), "an index key is empty or holds a space"),
        (ONE._replace(index_keys=[("a", "")]), "an index key is empty or holds a space"),
        (ONE._replace(index_keys=[("", "a")]), "an index key is empty or holds a space"),
        (ONE._replace(index_keys=[("a", "", "b")]), "an index key is empty or holds a space"),
        (ONE._replace(attempts=[-1]), "cannot be stored"),
        (ONE._replace(attempts=[65536]), "cannot be stored"),
        (ONE._replace(born_at=-1), "the time -1 of born_at is not between 1970 and 9999"),
        (ONE._replace(born_at=layout.MAX_TIME), "of born_at is not between"),
        (ONE._replace(born_at=1 << 70), "of born_at is not between"),
        (ONE._replace(born_at=[-1]), "of born_at is not between"),
        (ONE._replace(born_at=[]), "the column born_at has 0 entries for 1 messages"),
        (ONE._replace(tags=["a", "b"]), "the column tags has 2 entries for 1 messages"),
        (ONE._replace(index_keys=[]), "the column index_keys has 0 entries"),
        (ONE._replace(keys=[]), "the column keys has 0 entries"),
        (ONE._replace(properties=[{}, {}]), "the column properties has 2 entries"),
        (ONE._replace(attempts=[]), "the column attempts has 0 entries"),
    ],
)
def test_rows_that_cannot_be_stored_are_refused(rows: Rows, why: str) -> None:
    with pytest.raises(BadBatch, match=why):
        batch.encode("orders", 2, rows)


@pytest.mark.parametrize(
    ("topic", "queue_id", "mark"),
    [
        ("\ud800", 0, ProducerMark()),
        ("orders", -1, ProducerMark()),
        ("orders", 1 << 32, ProducerMark()),
        ("orders", 0, ProducerMark(producer_id=-1)),
        ("orders", 0, ProducerMark(producer_id=1 << 64)),
        ("orders", 0, ProducerMark(sequence=1 << 64)),
        ("orders", 0, ProducerMark(producer_epoch=65536)),
    ],
)
def test_numbers_and_names_that_do_not_fit_are_refused(topic: str, queue_id: int, mark: ProducerMark) -> None:
    with pytest.raises(BadBatch, match="cannot be stored"):
        batch.encode(topic, queue_id, ONE, by=mark)


@pytest.mark.parametrize("kind", [3, 256, -1])
def test_a_batch_of_an_unknown_kind_is_not_made(kind: int) -> None:
    with pytest.raises(UnsupportedFormat, match=f"batch kind {kind} is unknown"):
        batch.encode("orders", 2, ONE, kind=kind)


@pytest.mark.parametrize(
    "rows",
    [
        ONE._replace(tags=[None]),
        ONE._replace(tags=[""]),
        ONE._replace(index_keys=[()]),
        ONE._replace(keys=[None]),
        ONE._replace(keys=[""]),
        ONE._replace(properties=[{}]),
    ],
)
def test_a_column_that_no_message_uses_is_left_out(rows: Rows) -> None:
    assert batch.encode("orders", 2, rows) == batch.encode("orders", 2, ONE)


def test_a_tag_of_255_bytes_fits() -> None:
    data = batch.encode("orders", 2, ONE._replace(tags=["€" * 85]))

    assert batch.check(data, stamped=False).columns.tag(0) == "€" * 85


@quick
@given(st.integers(0, (1 << 64) - 1), st.integers(0, layout.MAX_POSITION // 8 - 1), st.integers(0, 4095))
def test_message_ids_can_be_taken_apart(store_id: int, word: int, index: int) -> None:
    text = batch.message_id(store_id, batch.handle(word * 8, index))

    assert len(text) == 32
    assert batch.handle(word * 8, index) < 1 << 63
    assert batch.place_of(batch.handle(word * 8, index)) == (word * 8, index)
    assert batch.split_message_id(text) == (store_id, word * 8, index)
    assert batch.split_message_id(text.upper()) == (store_id, word * 8, index)


@pytest.mark.parametrize(
    "text",
    ["", "0" * 31, "0" * 33, "g" * 32, "0x" + "0" * 30, "+" + "0" * 31, "0_" * 16, " " * 32, "٣" * 32, "0" * 32 + "\n"],
)
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a message id has 32 hex digits"):
        batch.split_message_id(text)


ROWS = Rows([b"first" * 30, b"second" * 30], [1, 2], tags=["a", None])


def stored(codec: str | None = None) -> bytearray:
    data = encode("orders", 0, ROWS, codec=None if codec is None else CODECS.by_name(codec))
    by = layout.Stamp(1, 4096, 5, 1_700_000_000_000_000, 0, 0, 1, 0, layout.KIND_DATA)
    data[: layout.BROKER_PART] = layout.stamp(data, layout.parse_header(data).header_size, by)
    return data


def test_it_holds_what_lies_in_the_batch() -> None:
    data = stored()
    whole = read(data, stores=StoreIds(1))

    raw = read_raw(memoryview(data))

    assert raw.header == whole.header
    assert bytes(raw.bodies) == b"".join(ROWS.bodies) == whole.bodies
    assert raw.columns[0] == whole.columns.lengths.tobytes()
    assert raw.columns[1] == [["a"], b"\1\0\0\0"]


@every_codec
def test_compressed_bodies_are_unpacked_unless_nobody_wants_them(name: str) -> None:
    data = memoryview(stored(name))

    assert read_raw(data).bodies == b"".join(ROWS.bodies)
    assert read_raw(data, bodies=False).bodies == b""


def test_a_batch_is_found_behind_another() -> None:
    data = stored()

    assert read_raw(memoryview(data + data), len(data)) == read_raw(memoryview(data))


def test_every_changed_byte_is_noticed() -> None:
    data = stored()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises(RmqError):
            read_raw(memoryview(changed))


def test_without_verify_only_the_content_goes_unjudged() -> None:
    data = stored()
    header = layout.parse_header(data)
    for at in (0, 5, 30, header.header_size - 1, len(data) - 1):
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises(RmqError):
            read_raw(memoryview(changed), verify=False)
    data[header.content_size - 1] ^= 1

    assert bytes(read_raw(memoryview(data), verify=False).bodies) != b"".join(ROWS.bodies)


@pytest.mark.parametrize("meta", [b"\xc1", b"\x01", b"\x91\x01"])
def test_a_meta_that_is_no_array_of_columns_is_refused(meta: bytes) -> None:
    data = stored()
    header = layout.parse_header(data)
    data[header.header_size : header.header_size + header.meta_size] = meta.ljust(header.meta_size, b"\0")

    with pytest.raises(BadBatch, match="the meta is not"):
        read_raw(memoryview(data), verify=False)


MARKS = st.builds(
    ProducerMark, st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 16) - 1)
)


@given(
    st.text(max_size=30).filter(lambda text: len(text.encode(errors="ignore")) == len(text.encode(errors="replace"))),
    st.integers(0, (1 << 32) - 1),
    st.binary(max_size=60),
    st.integers(OLDEST, layout.MAX_TIME - 1),
    MARKS,
)
@example("orders", 3, bytes(SMALL), OLDEST, ProducerMark(1, 2, 3))
@example("orders", 3, bytes(SMALL + 1), OLDEST, ProducerMark(1, 2, 3))
def test_it_has_the_same_bytes(topic: str, queue_id: int, body: bytes, born_at: int, by: ProducerMark) -> None:
    parts = encode_single(topic, queue_id, body, born_at, by)

    assert b"".join(parts) == encode(topic, queue_id, Rows([body], born_at), by=by)


def test_a_long_body_is_not_copied() -> None:
    body = bytes(SMALL + 1)

    assert encode_single("orders", 0, body, OLDEST, ProducerMark())[1] is body
