"""The shapes of delays: fields that never move, drawn in the document, and back from the wire."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.errors import BadRequest
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops import deferrals
from rmq.wire.protocol.ops.deferrals import DelayPage, DelayRow, ListDelays

from rigs.batches import quick
from rigs.shapes import check_documented, described, shapes_of

# Fields may be added at the end, with a default; never moved, renamed or taken away.
FIELDS = {
    "DelayPage": "batches messages rows next_due_at=0 next_position=0 is_last=True",
    "DelayRow": "due_at position topic queue_id delay_level messages parked_at message_id",
    "ListDelays": "due_at=0 position=0 limit=100 topic=None",
}
SHAPES = shapes_of(deferrals)


def test_fields_keep_their_places_and_defaults() -> None:
    assert {name: described(kind) for name, kind in SHAPES.items()} == FIELDS


@pytest.mark.parametrize("name", FIELDS)
def test_every_shape_is_documented_field_by_field(name: str) -> None:
    check_documented(SHAPES[name])


numbers = st.integers(-1, (1 << 63) - 1)
texts = st.text(max_size=5)
rows = st.builds(DelayRow, numbers, numbers, texts, numbers, numbers, numbers, numbers, texts)
payloads: st.SearchStrategy[Any] = st.one_of(
    st.builds(ListDelays, numbers, numbers, numbers, st.none() | texts),
    st.builds(DelayPage, numbers, numbers, st.lists(rows, max_size=2), numbers, numbers, st.booleans()),
    rows,
)


@quick
@given(payloads)
def test_every_payload_comes_back(payload: Any) -> None:
    assert decode(type(payload), msgpack.unpackb(msgpack.packb(payload))) == payload


@pytest.mark.parametrize("shape", [DelayPage, DelayRow])
def test_an_empty_payload_is_refused_where_something_is_needed(shape: Any) -> None:
    with pytest.raises(BadRequest, match=f"{shape.__name__}: {shape._fields[0]} is missing"):
        decode(shape, [])


def test_an_empty_payload_lists_from_the_first_delay_on() -> None:
    assert decode(ListDelays, []) == ListDelays(0, 0, 100, None)
