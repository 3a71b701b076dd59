"""What is written to the log as a change comes back as the same change, or is refused by name."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.store.changes import (
    SHAPES,
    Attempted,
    Change,
    Committed,
    Copied,
    DeadHandled,
    LeaseEnded,
    LeaseGranted,
    ProducerEpoch,
    Started,
    Suspected,
    TopicMade,
    pack_changes,
    unpack_changes,
)
from rmq.wire.errors import BadBatch, UnsupportedFormat
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.redelivery import DeadRun
from rmq.wire.stores import FormerStore

numbers = st.integers(min_value=-1, max_value=(1 << 64) - 1)
texts = st.text(max_size=20)
any_change: st.SearchStrategy[Change] = st.one_of(
    st.builds(TopicMade, texts, numbers, numbers, numbers, numbers),
    st.builds(
        Started,
        numbers,
        numbers,
        st.floats(min_value=0),
        numbers,
        numbers,
        st.lists(st.builds(FormerStore, numbers, numbers, numbers, numbers)),
        st.booleans(),
    ),
    st.builds(
        LeaseGranted, texts, texts, numbers, st.binary(max_size=16), texts, numbers, st.booleans(), st.booleans()
    ),
    st.builds(LeaseEnded, texts, texts, numbers, numbers),
    st.builds(Committed, texts, texts, numbers, numbers),
    st.builds(
        Attempted, texts, texts, numbers, numbers, numbers, st.lists(st.builds(AttemptRun, numbers, numbers, numbers))
    ),
    st.builds(Suspected, texts, texts, numbers, numbers, numbers, numbers, st.booleans(), numbers),
    st.builds(Copied, texts, texts, numbers, st.lists(numbers), st.booleans()),
    st.builds(DeadHandled, texts, st.lists(st.builds(DeadRun, numbers, numbers, numbers)), st.booleans()),
    st.builds(ProducerEpoch, numbers, numbers, numbers),
)


@given(st.lists(any_change, max_size=20))
def test_changes_come_back_equal_of_the_same_kind_and_in_order(changes: list[Change]) -> None:
    back = unpack_changes(pack_changes(changes))

    assert back == changes
    assert [type(change) for change in back] == [type(change) for change in changes]


def test_the_tags_are_those_of_the_logs_that_exist() -> None:
    assert {tag: shape.__name__ for tag, shape in SHAPES.items()} == {
        1: "TopicMade",
        2: "Started",
        3: "LeaseGranted",
        4: "LeaseEnded",
        5: "Committed",
        6: "Attempted",
        7: "TopicDeleted",
        8: "QueueBounds",
        9: "ProducerKnown",
        10: "SnapshotEnded",
        11: "ProducerEpoch",
        12: "Suspected",
        13: "Copied",
        14: "DelaysReached",
        15: "DelaysWaiting",
        16: "DeadHandled",
    }


def test_the_bytes_of_a_change_are_those_of_the_logs_that_exist() -> None:
    packed = pack_changes([Committed("g", "t", 3, 300), LeaseGranted("g", "t", 0, b"\x01\x02", "m", 7)])

    assert packed == bytes.fromhex("9295 05 a167 a174 03 cd012c99 03 a167 a174 00 c4020102 a16d 07 c3c2")


def test_a_grant_of_a_log_from_before_there_were_modes_is_an_ordered_one() -> None:
    assert unpack_changes(bytes.fromhex("9197 03 a167 a174 00 c4020102 a16d 07")) == [
        LeaseGranted("g", "t", 0, b"\x01\x02", "m", 7, ordered=True)
    ]


def test_a_grant_of_a_log_from_before_members_announced_their_leaving_is_of_one_that_stays() -> None:
    assert unpack_changes(bytes.fromhex("9198 03 a167 a174 00 c4020102 a16d 07 c2")) == [
        LeaseGranted("g", "t", 0, b"\x01\x02", "m", 7, ordered=False, leaving=False)
    ]


def test_an_attempt_of_a_log_from_before_there_were_runs_is_read() -> None:
    assert unpack_changes(msgpack.packb([[6, "g", "t", 0, 7, 2]])) == [Attempted("g", "t", 0, 7, 2, [])]


def test_an_unknown_change_is_refused_by_its_number() -> None:
    data = msgpack.packb([[5, "g", "t", 0, 1], [99, "something", "new"]])

    with pytest.raises(UnsupportedFormat, match="state change 99 is unknown"):
        unpack_changes(data)


def test_fields_that_a_later_version_appends_are_ignored() -> None:
    assert unpack_changes(msgpack.packb([[2, 11, 12, 5.0, 13, 14, [], True, "new"]])) == [
        Started(11, 12, 5.0, 13, 14, [], True)
    ]


def test_a_start_that_does_not_tell_its_grace_had_the_default() -> None:
    assert unpack_changes(msgpack.packb([[2, 11, 12]])) == [Started(11, 12, 5.0)]


@pytest.mark.parametrize(
    "value",
    [
        {},
        7,
        [7],
        [[]],
        [["5", "g", "t", 0, 1]],
        [[True, "g"]],
        [[5, "g", "t", 0]],
        [[5, "g", "t", "0", 1]],
        [[3, "g", "t", 0, "not bytes", "m", 1]],
        [[2, msgpack.Timestamp(1), 1]],
    ],
)
def test_what_is_no_list_of_changes_is_a_bad_batch(value: object) -> None:
    with pytest.raises(BadBatch):
        unpack_changes(msgpack.packb(value))


@given(st.binary(max_size=40))
def test_bytes_that_are_no_changes_raise_nothing_else(data: bytes) -> None:
    try:
        unpack_changes(data)
    except (BadBatch, UnsupportedFormat):
        pass
