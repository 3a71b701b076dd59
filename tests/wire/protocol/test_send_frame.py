"""Long SEND frames are taken apart as msgpack would do it, without a copy of what is large."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch.layout import Buffer
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.frames import LONG, REQUEST, array_header, bin_header, pack_parts, split, unpack
from rmq.wire.protocol.ops.core import MAX_BATCHES, Op, Send

SHARED = memoryview(bytearray(2 * LONG))
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

    found = split(frame, SHARED)

    assert found is not None
    kind, known_id, op, payload = unpack(frame)
    assert found == (kind, known_id, op, decode(Send, payload))


def test_batches_are_views_of_their_frame_which_nobody_can_write_to() -> None:
    frame = bytearray(frame_of(1, [LARGE, (1, b"small", 1)]))

    found = split(frame, SHARED)

    assert found is not None
    for one in found[3].batches:
        assert isinstance(one.batch, memoryview)
        assert (one.batch.obj, one.batch.readonly) == (frame, True)


@given(st.binary(max_size=60), st.data())
def test_whatever_is_cut_off_or_changed_is_left_to_msgpack_or_means_the_same(noise: bytes, data: st.DataObject) -> None:
    frame = frame_of(7, [(3, b"one", 1), (4, b"another", 2), LARGE])
    at = data.draw(st.one_of(st.integers(0, 60), st.integers(len(frame) - 10, len(frame))))
    changed = frame[:at] + noise + frame[at + data.draw(st.integers(0, len(noise))) :]

    found = split(changed, SHARED)

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
    assert split(frame, SHARED) is None


def test_what_is_short_or_lies_in_the_shared_buffer_is_left_to_msgpack() -> None:
    frame = frame_of(1, [LARGE])
    shared = memoryview(bytearray(frame))

    assert split(frame_of(1, [(0, b"x", 1)]), SHARED) is None
    assert split(shared[:], shared) is None
    assert split(shared[:], SHARED) is not None
