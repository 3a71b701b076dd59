"""The shapes of send-backs and dead letters: fields that never move, drawn in the document, and back from the wire."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.errors import BadRequest
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops import redelivery
from rmq.wire.protocol.ops.redelivery import (
    DEAD,
    DONE_BEFORE,
    DROPPED,
    REPLAYED,
    WAITING,
    DeadResult,
    DeadRow,
    DeadRun,
    DeadStates,
    DropDead,
    ListDead,
    ReplayDead,
    SendBack,
    SentBack,
)

from rigs.batches import quick
from rigs.shapes import check_documented, described, shapes_of

# Fields may be added at the end, with a default; never moved, renamed or taken away.
FIELDS = {
    "DeadResult": "status state=0 is_new=False topic='' queue_id=0 queue_offset=-1 text=None",
    "DeadRow": "group topic min_offset max_offset waiting replayed dropped",
    "DeadRun": "from_offset end_offset state",
    "DeadStates": "group queue_offset=0",
    "DropDead": "group queue_offsets dry_run=False",
    "ListDead": "after=''",
    "ReplayDead": "group queue_offsets to_topic=False dry_run=False",
    "SendBack": (
        "group topic queue_id epoch queue_offsets attempts delay_level=0 max_attempts=-1 commit_offset=-1 reason=''"
    ),
    "SentBack": "fates",
}
SHAPES = shapes_of(redelivery)


def test_fates_and_states_keep_their_numbers() -> None:
    assert (DEAD, DONE_BEFORE) == (-1, 0)
    assert (WAITING, REPLAYED, DROPPED) == (0, 1, 2)


def test_fields_keep_their_places_and_defaults() -> None:
    assert {name: described(kind) for name, kind in SHAPES.items()} == FIELDS


@pytest.mark.parametrize("name", FIELDS)
def test_every_shape_is_documented_field_by_field(name: str) -> None:
    check_documented(SHAPES[name])


numbers = st.integers(-1, (1 << 63) - 1)
texts = st.text(max_size=5)
offsets = st.lists(numbers, max_size=3)
payloads: st.SearchStrategy[Any] = st.one_of(
    st.builds(SendBack, texts, texts, numbers, numbers, offsets, offsets, numbers, numbers, numbers, texts),
    st.builds(SentBack, offsets),
    st.builds(ListDead, texts),
    st.builds(DeadRow, texts, texts, numbers, numbers, numbers, numbers, numbers),
    st.builds(DeadStates, texts, numbers),
    st.builds(DeadRun, numbers, numbers, numbers),
    st.builds(ReplayDead, texts, offsets, st.booleans(), st.booleans()),
    st.builds(DropDead, texts, offsets, st.booleans()),
    st.builds(DeadResult, numbers, numbers, st.booleans(), texts, numbers, numbers, st.none() | texts),
)


@quick
@given(payloads)
def test_every_payload_comes_back(payload: Any) -> None:
    assert decode(type(payload), msgpack.unpackb(msgpack.packb(payload))) == payload


@pytest.mark.parametrize("shape", [kind for name, kind in SHAPES.items() if name != "ListDead"])
def test_an_empty_payload_is_refused_where_something_is_needed(shape: Any) -> None:
    with pytest.raises(BadRequest, match=f"{shape.__name__}: {shape._fields[0]} is missing"):
        decode(shape, [])


def test_an_empty_payload_lists_from_the_first_group_on() -> None:
    assert decode(ListDead, []) == ListDead("")
