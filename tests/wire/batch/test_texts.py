"""Bodies as a column of lengths and their bytes."""

from __future__ import annotations

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch.texts import Bodies, pack_bodies, put_together

SOME = st.lists(st.binary(max_size=20), min_size=1, max_size=30)


def split(bodies: Bodies) -> list[bytes]:
    joined, at, found = b"".join(bodies.pieces), 0, []
    for length in struct.unpack(f"<{bodies.count}I", bodies.lengths):
        found.append(joined[at : at + length])
        at += length
    assert at == len(joined) == bodies.size
    return found


@given(SOME, SOME)
def test_what_is_packed_and_put_together_is_all_there_in_order(some: list[bytes], more: list[bytes]) -> None:
    assert split(put_together([pack_bodies(some), pack_bodies(more)])) == some + more


@given(SOME, st.data())
def test_a_run_is_the_part_that_was_asked_for(some: list[bytes], data: st.DataObject) -> None:
    bodies = pack_bodies(some)
    start = data.draw(st.integers(0, len(some)))
    count = data.draw(st.integers(0, len(some) - start))

    at, size = bodies.size_of(0, start), bodies.size_of(start, count)

    assert split(bodies.run(start, count, at, size)) == some[start : start + count]


@given(SOME, st.integers(0, 300))
def test_as_many_fit_as_have_no_more_bytes(some: list[bytes], size: int) -> None:
    bodies = pack_bodies(some)

    fits = bodies.fit(0, len(some), size)

    assert bodies.size_of(0, fits) <= size
    assert fits == len(some) or bodies.size_of(0, fits + 1) > size
    assert bodies.longest == max(map(len, some))


def test_a_single_body_is_not_copied() -> None:
    body = bytes(1000)

    assert pack_bodies([body]).pieces[0] is body


@pytest.mark.parametrize("body", ["text", 5, None, array("I", [1, 2]), memoryview(array("I", [1, 2]))])
@pytest.mark.parametrize("others", [[], [b"x"]])
def test_what_is_not_bytes_is_refused(body: object, others: list[bytes]) -> None:
    with pytest.raises(TypeError, match="a body must be bytes, not "):
        pack_bodies([*others, body])  # type: ignore[list-item]


@pytest.mark.parametrize("others", [[], [b"x"]])
def test_bytes_that_could_change_are_copied(others: list[bytes]) -> None:
    changing = bytearray(b"abc")

    bodies = pack_bodies([*others, changing])
    changing[:] = b"xyz"

    assert split(bodies)[-1] == b"abc"
