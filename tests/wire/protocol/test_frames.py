"""
Framing: the same frames come out however the stream is cut.

Long SEND frames are taken apart as msgpack would do it, without a copy of what is large.
"""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import BadFrame, FrameTooLarge
from rmq.wire.protocol import frames
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.frames import LONG, REQUEST, FrameReader, array_header, bin_header, pack_parts, split, unpack
from rmq.wire.protocol.ops.core import MAX_BATCHES, Op, Send

from rigs.batches import quick

SHARED = 64  # small, so that frames are longer and shorter than it


def feed(reader: FrameReader, data: bytes) -> list[bytes]:
    """Hand over ``data`` as a socket would: no more at once than there is room for."""
    out = []
    while data:
        room = reader.buffer()
        n = min(len(room), len(data))
        room[:n] = data[:n]
        out += [bytes(frame) for frame in reader.received(n)]
        data = data[n:]
    return out


def framed(payloads: list[bytes]) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in pairwise(bounds)]


# Some are so long that the bytes of their length differ: a reader that mixed them up would be seen.
payload_lists = st.lists(st.binary(max_size=150) | st.sampled_from([b"x" * 0x0102, b"y" * 0x010203]), max_size=6)
cut_lists = st.lists(st.integers(0, 1 << 16), max_size=12)


@quick
@given(payload_lists, cut_lists)
def test_any_cut_of_any_stream_gives_the_same_frames(payloads: list[bytes], cuts: list[int]) -> None:
    reader = FrameReader(memoryview(bytearray(SHARED)))

    out = [frame for piece in pieces(framed(payloads), cuts) for frame in feed(reader, piece)]

    assert out == payloads
    assert not reader.unfinished
    assert reader.pending == 0


def test_every_single_cut_of_two_frames_gives_both() -> None:
    payloads = [b"first", b"x" * 0x0102]
    stream = framed(payloads)

    for cut in range(len(stream) + 1):
        reader = FrameReader(memoryview(bytearray(SHARED)))
        assert feed(reader, stream[:cut]) + feed(reader, stream[cut:]) == payloads


@quick
@given(st.lists(st.tuples(payload_lists, cut_lists), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_readers_that_share_a_buffer_do_not_disturb_each_other(
    streams: list[tuple[list[bytes], list[int]]], random: Any
) -> None:
    shared = memoryview(bytearray(SHARED))
    readers = [FrameReader(shared) for _ in streams]
    waiting = [pieces(framed(payloads), cuts) for payloads, cuts in streams]
    out: list[list[bytes]] = [[] for _ in streams]

    while any(waiting):
        turn = random.choice([i for i, left in enumerate(waiting) if left])
        out[turn] += feed(readers[turn], waiting[turn].pop(0))

    assert out == [payloads for payloads, _ in streams]


def test_frames_of_one_read_are_views_of_the_shared_buffer() -> None:
    shared = memoryview(bytearray(SHARED))
    reader = FrameReader(shared)
    stream = framed([b"one", b"two"])
    reader.buffer()[: len(stream)] = stream

    first, second = reader.received(len(stream))

    assert first.obj is shared.obj
    assert (bytes(first), bytes(second)) == (b"one", b"two")


def test_an_unfinished_frame_has_a_buffer_of_its_exact_size() -> None:
    reader = FrameReader(memoryview(bytearray(SHARED)))
    assert not reader.unfinished

    feed(reader, b"\x00\x00")
    assert (reader.unfinished, reader.pending) == (True, 0)

    feed(reader, b"\x00\x0aab")
    assert (reader.unfinished, reader.pending) == (True, 10)
    assert len(reader.buffer()) == 8

    assert feed(reader, b"cdefghij") == [b"abcdefghij"]
    assert (reader.unfinished, reader.pending) == (False, 0)


def test_an_announced_length_costs_nothing_until_its_rest_is_asked_for() -> None:
    reader = FrameReader(memoryview(bytearray(SHARED)))
    head = frames.MAX_FRAME.to_bytes(4, "big") + b"begun"
    reader.buffer()[: len(head)] = head
    tracemalloc.start()
    try:
        assert reader.received(len(head)) == []
        assert reader.pending == frames.MAX_FRAME
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()

    assert len(reader.buffer()) == frames.MAX_FRAME - len(b"begun")


def test_a_frame_at_the_limit_passes_and_one_over_it_is_refused_before_its_payload() -> None:
    reader = FrameReader(memoryview(bytearray(SHARED)), max_frame=10)
    assert feed(reader, framed([b"x" * 10])) == [b"x" * 10]

    with pytest.raises(FrameTooLarge, match="a frame of 11 bytes is over the limit of 10"):
        feed(reader, b"\x00\x00\x00\x0b")


def test_the_limit_may_grow_after_the_hello() -> None:
    reader = FrameReader(memoryview(bytearray(SHARED)), max_frame=10)

    reader.max_frame = 20

    assert feed(reader, framed([b"x" * 20])) == [b"x" * 20]


@pytest.mark.parametrize("length", [frames.MAX_FRAME + 1, 0xFFFFFFFF, int.from_bytes(b"GET ", "big")])
def test_a_length_over_the_limit_reserves_no_memory(length: int) -> None:
    reader = FrameReader(memoryview(bytearray(SHARED)))

    with pytest.raises(FrameTooLarge):
        feed(reader, length.to_bytes(4, "big"))
    assert reader.pending == 0


@quick
@given(st.binary(max_size=100))
def test_garbage_raises_only_bad_frame(data: bytes) -> None:
    try:
        parts = frames.unpack(data)
    except BadFrame as error:
        assert error.text
    else:
        assert [type(part) for part in parts[:3]] == [int, int, int]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([0, 1, 2], "not an array of four"),
        ([], "not an array of four"),
        ({"a": 1}, "not an array of four"),
        (7, "not an array of four"),
        (None, "not an array of four"),
        (["0", 1, 2, []], "are not numbers"),
        ([0, None, 2, []], "are not numbers"),
        ([0, 1, 2.0, []], "are not numbers"),
        ([True, 1, 2, []], "are not numbers"),
    ],
)
def test_an_array_that_is_no_frame_is_refused(value: object, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        frames.unpack(msgpack.packb(value))


@pytest.mark.parametrize(
    "value",
    [
        msgpack.Timestamp(1),
        msgpack.Timestamp(1, 5),
        msgpack.Timestamp(1 << 40, 5),
        msgpack.ExtType(5, b"x"),
        msgpack.ExtType(5, b""),
    ],
)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [[value]], lambda value: {"auth": value}])
def test_extension_types_and_timestamps_are_refused_wherever_they_are(value: object, wrap: Any) -> None:
    with pytest.raises(BadFrame, match="not msgpack"):
        frames.unpack(msgpack.packb([0, 1, 2, wrap(value)]))


def test_a_frame_of_the_largest_size_full_of_empty_arrays_is_refused() -> None:
    run = b"\xdc\xff\xff" + b"\x90" * 65535
    frame = b"\x94\x00\x01\x03\xdc\x00\xff" + run * 255

    with pytest.raises(BadFrame, match="values"):
        frames.unpack(frame)


def test_longer_frames_are_accepted_so_that_they_can_grow() -> None:
    assert frames.unpack(msgpack.packb([1, 2, 0, [], {"throttle_ms": 5}, "later"]))[4:] == [{"throttle_ms": 5}, "later"]


@quick
@given(st.integers(0, 2), st.integers(0, (1 << 64) - 1), st.integers(-1, 200), st.lists(st.binary() | st.text()))
def test_parts_are_the_frame(kind: int, request_id: int, code: int, payload: list[Any]) -> None:
    whole = frames.pack(kind, request_id, code, payload)

    assert b"".join(frames.pack_parts(kind, request_id, code, [msgpack.packb(payload)])) == whole
    assert frames.unpack(whole[4:]) == [kind, request_id, code, payload]
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4


def test_hints_come_fifth() -> None:
    assert frames.unpack(frames.pack(1, 2, 0, [], {"retry_after_ms": 10})[4:]) == [1, 2, 0, [], {"retry_after_ms": 10}]
    assert len(frames.unpack(frames.pack(1, 2, 0, [])[4:])) == 4


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65535, 65536])
def test_an_array_may_be_written_in_parts(count: int) -> None:
    assert msgpack.unpackb(frames.array_header(count) + b"\xc0" * count) == [None] * count


@pytest.mark.parametrize("length", [0, 1, 255, 65536])
def test_bytes_may_be_written_in_parts(length: int) -> None:
    assert msgpack.unpackb(frames.bin_header(length) + bytes(length)) == bytes(length)


def test_a_payload_of_views_makes_the_same_frame() -> None:
    body = memoryview(b"..batch..")[2:-2]
    parts: list[Buffer] = [frames.array_header(1), frames.array_header(2), b"\x00", frames.bin_header(len(body)), body]

    frame = b"".join(frames.pack_parts(frames.REQUEST, 9, 3, parts))

    assert frames.unpack(frame[4:]) == [0, 9, 3, [[0, b"batch"]]]


SHARED_SEND_FRAME = memoryview(bytearray(2 * LONG))
LARGE = (0, bytes(LONG), 1)  # makes a frame long enough
NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1))


def frame_of(request_id: int, batches: list[tuple[int, bytes, int]], op: int = Op.SEND) -> bytes:
    parts: list[Buffer] = [array_header(1) + array_header(len(batches))]
    for queue_id, batch, generation in batches:
        parts += [b"\x93" + msgpack.packb(queue_id) + bin_header(len(batch)), batch, msgpack.packb(generation)]
    return b"".join(pack_parts(REQUEST, request_id, op, parts))[4:]


@given(NUMBERS, st.lists(st.tuples(NUMBERS, st.binary(max_size=40), NUMBERS), max_size=20))
def test_it_finds_what_msgpack_finds(request_id: int, batches: list[tuple[int, bytes, int]]) -> None:
    frame = frame_of(request_id, [*batches, LARGE])

    found = split(frame, SHARED_SEND_FRAME)

    assert found is not None
    kind, known_id, op, payload = unpack(frame)
    assert found == (kind, known_id, op, decode(Send, payload))


def test_batches_are_views_of_their_frame_which_nobody_can_write_to() -> None:
    frame = bytearray(frame_of(1, [LARGE, (1, b"small", 1)]))

    found = split(frame, SHARED_SEND_FRAME)

    assert found is not None
    for one in found[3].batches:
        assert isinstance(one.batch, memoryview)
        assert (one.batch.obj, one.batch.readonly) == (frame, True)


@given(st.binary(max_size=60), st.data())
def test_whatever_is_cut_off_or_changed_is_left_to_msgpack_or_means_the_same(noise: bytes, data: st.DataObject) -> None:
    frame = frame_of(7, [(3, b"one", 1), (4, b"another", 2), LARGE])
    at = data.draw(st.one_of(st.integers(0, 60), st.integers(len(frame) - 10, len(frame))))
    changed = frame[:at] + noise + frame[at + data.draw(st.integers(0, len(noise))) :]

    found = split(changed, SHARED_SEND_FRAME)

    if found is not None:
        assert found[:3] == tuple(unpack(changed)[:3])
        assert found[3] == decode(Send, unpack(changed)[3])


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        bytes(LONG),
        frame_of(1, [LARGE], op=Op.PULL),
        frame_of(1, [(0, bytes(300), 1)] * (MAX_BATCHES + 1)),
        msgpack.packb([REQUEST, 1, Op.SEND, [[[0, b"a short head", 1], [0, bytes(LONG), 1]]]]),
        msgpack.packb([REQUEST, 1, Op.SEND, [[]], {"hint": bytes(LONG)}]),
        msgpack.packb([REQUEST, -1, Op.SEND, [[LARGE]]]),
    ],
)
def test_other_shapes_are_left_to_msgpack(frame: Any) -> None:
    assert split(frame, SHARED_SEND_FRAME) is None


def test_what_is_short_or_lies_in_the_shared_buffer_is_left_to_msgpack() -> None:
    frame = frame_of(1, [LARGE])
    shared = memoryview(bytearray(frame))

    assert split(frame_of(1, [(0, b"x", 1)]), SHARED_SEND_FRAME) is None
    assert split(shared[:], shared) is None
    assert split(shared[:], SHARED_SEND_FRAME) is not None
