"""Saved offsets carry the history that they belong to."""

from __future__ import annotations

import json

import pytest

from rmq.client import starting_offsets
from rmq.client.scan.bounds import Bound, SavedHistory, start_of
from rmq.wire.batch import layout
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.errors import OK, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Range
from rmq.wire.stores import FormerStore, StoreIds
from spark_incremental import next_range

STORE = 0x9C0E5F7A1B2C3D4E
QUEUES = [MessageQueue("a", 0), MessageQueue("a", 1), MessageQueue("b", 0)]


def held(end: int, log_epoch: int, store_id: int = STORE) -> Range:
    return Range(OK, 0, end, store_id=store_id, log_epoch=log_epoch)


def test_the_ends_of_queues_are_the_starting_offsets_of_the_next_scan() -> None:
    saved = starting_offsets(QUEUES, [held(17, 900), held(0, 0), held(5, 901)])

    assert saved == {
        "a": {"0": 17, "1": 0},
        "b": {"0": 5},
        "@history": {"store": "9c0e5f7a1b2c3d4e", "epochs": {"a": {"0": 900}, "b": {"0": 901}}},
    }
    assert start_of({"startingoffsets": json.dumps(saved)}) == Bound(
        "startingOffsets",
        offsets={"a": {0: 17, 1: 0}, "b": {0: 5}},
        history=SavedHistory(STORE, {"a": {0: 900}, "b": {0: 901}}),
    )


def test_no_queue_has_no_history() -> None:
    assert starting_offsets([], []) == {}


def test_offsets_of_a_broker_that_names_no_store_have_no_history() -> None:
    saved = starting_offsets(QUEUES[:2], [Range(OK, 0, 17), Range(OK, 0, 5)])

    assert saved == {"a": {"0": 17, "1": 5}}
    assert start_of({"startingoffsets": json.dumps(saved)}).history is None
    assert next_range({"offsets": saved["a"], "@history": saved.get("@history")}, "a", saved) == {
        "startingOffsets": '{"a": {"0": 17, "1": 5}, "@history": null}',
        "endingOffsets": '{"a": {"0": 17, "1": 5}}',
    }


def test_a_queue_that_was_refused_is_an_error() -> None:
    with pytest.raises(TopicNotFound, match="the topic 'b' does not exist"):
        starting_offsets(QUEUES[-1:], [Range(TopicNotFound.code, text="the topic 'b' does not exist")])


def test_ranges_of_two_stores_are_refused() -> None:
    with pytest.raises(ValueError, match="the ranges are of different stores"):
        starting_offsets(QUEUES[:2], [held(1, 5), held(1, 5, STORE + 1)])


COPIED = StoreIds(3, [FormerStore(1, 100, 50), FormerStore(2, 200, 80)])


@pytest.mark.parametrize(
    ("store_id", "saved", "stores", "log_epoch"),
    [
        (3, 90, COPIED, 90),  # the store as it is now
        (3, 0, COPIED, 0),
        (1, 40, COPIED, 40),  # a store that was copied since
        (1, 0, COPIED, 49),  # whose epoch is not known: none that is later than the copy
        (1, 60, COPIED, 49),  # which went on, and used higher epochs than its copy has
        (2, 79, COPIED, 79),
        (2, 0, COPIED, 79),
    ],
)
def test_an_offset_of_a_copied_store_is_compared_by_an_epoch_that_the_copy_has_of_it(
    store_id: int, saved: int, stores: StoreIds, log_epoch: int
) -> None:
    assert SavedHistory(store_id, {"a": {0: saved}}).log_epoch("a", 0, stores) == log_epoch


def test_a_queue_without_an_epoch_is_compared_as_one_whose_epoch_is_not_known() -> None:
    assert SavedHistory(3, {"a": {0: 90}}).log_epoch("a", 1, COPIED) == 0
    assert SavedHistory(1, {"a": {0: 40}}).log_epoch("b", 0, COPIED) == 49


@pytest.mark.parametrize(
    ("store_id", "saved", "log_epoch", "position", "is_read"),
    [
        (3, 90, 90, 500, True),
        (3, 90, 91, 500, False),
        (3, 0, 90, 500, True),  # nothing is known of it
        (1, 40, 40, 50, True),
        (1, 40, 49, 50, False),  # a message that took the place of one that a crash lost
        (1, 0, 40, 99, True),  # the copy has it from the original
        (1, 0, 50, 100, False),
    ],
)
def test_the_message_before_an_offset_shows_whether_it_was_read(
    store_id: int, saved: int, log_epoch: int, position: int, is_read: bool
) -> None:
    batch = encode("a", 0, Rows([b"x"], 0))
    header = layout.parse_header(batch)._replace(log_epoch=log_epoch, physical_offset=position)

    assert SavedHistory(store_id, {"a": {0: saved}}).has_read(header, COPIED) == is_read
