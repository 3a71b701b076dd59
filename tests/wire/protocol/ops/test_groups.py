"""The shapes of questions about groups: fields that never move, drawn in the document, and back from the wire."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.errors import BadRequest
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.frames import MAX_FRAME
from rmq.wire.protocol.ops import groups
from rmq.wire.protocol.ops.groups import (
    ASKED_AT_ONCE,
    MAX_INFO,
    DescribeGroup,
    GroupDescription,
    GroupQueue,
    GroupRow,
    ListGroups,
    MemberInfo,
    MemberReport,
    MemberState,
    RunningInfo,
)

from rigs.batches import quick
from rigs.shapes import check_documented, described, shapes_of

# Fields may be added at the end, with a default; never moved, renamed or taken away.
FIELDS = {
    "DescribeGroup": "group topic=None",
    "GroupDescription": "group ordered model strategy more_members more_queues subscriptions members queues",
    "GroupQueue": (
        "topic queue_id min_offset max_offset committed lag owner=None epoch=0 lease_left_s=0.0 state=None "
        "retry_offset=-1 attempts=0 suspect_offset=-1 abandoned=0 former=None"
    ),
    "GroupRow": "group ordered model strategy members leases topics lag more_queues=0",
    "ListGroups": "after=''",
    "MemberInfo": "group member='' after=''",
    "MemberReport": "status member text=None info={}",
    "MemberState": "member session address state heard_ago_s leases",
    "RunningInfo": "token info",
}
SHAPES = shapes_of(groups)


def test_fields_keep_their_places_and_defaults() -> None:
    assert {name: described(kind) for name, kind in SHAPES.items()} == FIELDS


@pytest.mark.parametrize("name", FIELDS)
def test_every_shape_is_documented_field_by_field(name: str) -> None:
    check_documented(SHAPES[name])


numbers = st.integers(-1, (1 << 63) - 1)
texts = st.text(max_size=5)
optional_text = st.none() | texts
seconds = st.floats(0, 1e9)
mode = (st.none() | st.booleans(), optional_text, optional_text)
infos = st.dictionaries(texts, st.none() | st.booleans() | numbers | texts | st.lists(numbers, max_size=2), max_size=3)
queues = st.builds(
    GroupQueue, texts, numbers, numbers, numbers, numbers, numbers, optional_text, numbers, seconds, optional_text,
    numbers, numbers, numbers, numbers, optional_text,
)  # fmt: skip
members = st.builds(MemberState, texts, texts, optional_text, texts, seconds, numbers)
payloads: st.SearchStrategy[Any] = st.one_of(
    st.builds(ListGroups, texts),
    st.builds(GroupRow, texts, *mode, numbers, numbers, numbers, numbers, numbers),
    st.builds(DescribeGroup, texts, optional_text),
    st.builds(
        GroupDescription, texts, *mode, numbers, numbers, st.dictionaries(texts, texts, max_size=2),
        st.lists(members, max_size=2), st.lists(queues, max_size=2),
    ),
    st.builds(MemberInfo, texts, texts, texts),
    st.builds(MemberReport, numbers, texts, optional_text, infos),
    st.builds(RunningInfo, numbers, infos),
)  # fmt: skip


@quick
@given(payloads)
def test_every_payload_comes_back(payload: Any) -> None:
    assert decode(type(payload), msgpack.unpackb(msgpack.packb(payload))) == payload


@pytest.mark.parametrize("shape", [kind for name, kind in SHAPES.items() if name != "ListGroups"])
def test_an_empty_payload_is_refused_where_something_is_needed(shape: Any) -> None:
    with pytest.raises(BadRequest, match=f"{shape.__name__}: {shape._fields[0]} is missing"):
        decode(shape, [])


def test_an_empty_payload_lists_from_the_first_group_on() -> None:
    assert decode(ListGroups, []) == ListGroups("")


def test_the_answers_of_all_who_are_asked_at_once_fit_a_frame() -> None:
    assert ASKED_AT_ONCE * (MAX_INFO + 4096) < MAX_FRAME


def test_the_lag_of_a_description_is_that_of_its_queues() -> None:
    behind = [GroupQueue("orders", i, 0, 9, 2, lag) for i, lag in enumerate((7, 0, 4))]

    assert GroupDescription("g", None, None, None, 0, 0, {}, [], behind).lag == 11
