"""Which offsets are read, and by how many tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.client.scan.options import ScanOptions
from rmq.client.scan.ranges import (
    MIN_SPLIT_ROWS,
    QueueBounds,
    TopicBounds,
    check_topics,
    chosen_queues,
    ranges,
    resolve,
    split,
)
from rmq.engine.native.source import QueueRange
from rmq.wire.errors import ConfigError, OffsetOutOfRange, QueueNotFound
from rmq.wire.stores import StoreIds

HELD = QueueBounds(100, 500)
BIG = 100 * MIN_SPLIT_ROWS


def parsed(**options: str) -> ScanOptions:
    return ScanOptions.parse({"broker": "h:1", "topic": "t", **options})


def at(offset: object) -> str:
    return json.dumps({"t": {"0": offset}})


def queue(rows: int, queue_id: int = 0, start: int = 0) -> QueueRange:
    return QueueRange("h:1", StoreIds(1), "t", 1, queue_id, start, start + rows)


# ---- one queue


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, (100, 500)),
        ({"startingOffsets": at(200), "endingOffsets": at(300)}, (200, 300)),
        ({"startingOffsets": at(100), "endingOffsets": at(500)}, (100, 500)),
        ({"startingOffsets": at(500)}, (500, 500)),
        ({"startingOffsets": at("earliest"), "endingOffsets": at("latest")}, (100, 500)),
        ({"endingOffsets": at(50)}, (100, 100)),
        ({"startingOffsets": at(-2), "endingOffsets": at(50)}, (100, 100)),
        ({"startingOffsets": at(300), "endingOffsets": at(300)}, (300, 300)),
        ({"startingOffsets": at(50), "failOnDataLoss": "false"}, (50, 500)),
        ({"startingOffsets": at(50), "endingOffsets": at(60), "failOnDataLoss": "false"}, (50, 60)),
    ],
)
def test_a_range_is_what_lies_between_the_asked_offsets(options: dict[str, str], found: tuple[int, int]) -> None:
    assert resolve(parsed(**options), "t", 0, HELD) == found


@pytest.mark.parametrize(
    ("options", "held", "found"),
    [
        ({"startingTimestamp": "1"}, QueueBounds(100, 500, start_at=230), (230, 500)),
        ({"endingTimestamp": "1"}, QueueBounds(100, 500, end_at=230), (100, 230)),
        ({"startingTimestamp": "1", "endingTimestamp": "2"}, QueueBounds(100, 500, 200, 300), (200, 300)),
        ({"startingTimestamp": "1"}, QueueBounds(100, 500, start_at=520), (520, 520)),  # it grew between two answers
        ({"endingTimestamp": "1"}, QueueBounds(100, 500, end_at=520), (100, 520)),
        ({"startingOffsets": at(400), "endingTimestamp": "1"}, QueueBounds(100, 500, end_at=300), (400, 400)),
    ],
)
def test_a_time_lies_where_the_log_says(options: dict[str, str], held: QueueBounds, found: tuple[int, int]) -> None:
    assert resolve(parsed(**options), "t", 0, held) == found


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        (
            {"startingOffsets": at(99)},
            OffsetOutOfRange,
            "topic t, queue 0: the messages from offset 99 to 100 are deleted; startingOffsets earliest reads what is",
        ),
        ({"startingOffsets": at(501)}, OffsetOutOfRange, "t, queue 0 holds 100 to 500: startingOffsets is 501"),
        ({"endingOffsets": at(501)}, OffsetOutOfRange, "t, queue 0 holds 100 to 500: endingOffsets is 501"),
        ({"endingOffsets": at(501), "failOnDataLoss": "false"}, OffsetOutOfRange, "endingOffsets is 501"),
        (
            {"startingOffsets": at(300), "endingOffsets": at(200)},
            ConfigError,
            "topic t, queue 0: startingOffsets 300 is after endingOffsets 200",
        ),
    ],
)
def test_what_cannot_be_read_as_asked_is_an_error(
    options: dict[str, str], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        resolve(parsed(**options), "t", 0, HELD)


# ---- which queues and topics


def test_all_queues_are_read_unless_some_are_named() -> None:
    assert chosen_queues("t", [2, 0, 1], parsed()) == [0, 1, 2]
    assert chosen_queues("t", [0, 1, 2], parsed(queues="2,1")) == [1, 2]


def test_a_queue_that_does_not_exist_is_told_with_those_that_do() -> None:
    with pytest.raises(QueueNotFound, match="topic t has no queue 7, 9; the topic has the queues 0, 1, 2"):
        chosen_queues("t", [0, 1, 2], parsed(queues="7,0,9"))


@pytest.mark.parametrize(
    ("named", "faults"),
    [
        ({"0": 1}, "names the queues of topic t 0, but 0, 1, 2 are read: 1, 2 missing"),
        ({"0": 1, "1": 1, "2": 1, "3": 1}, "names the queues of topic t 0, 1, 2, 3, but 0, 1, 2 are read: 3 too many"),
        ({"0": 1, "7": 1, "10": 1}, "0, 7, 10, but 0, 1, 2 are read: 1, 2 missing and 7, 10 too many"),
        ({}, "names the queues of topic t none, but 0, 1, 2 are read: 0, 1, 2 missing"),
    ],
)
@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_offsets_for_other_queues_than_are_read_are_refused_with_both_sides(
    name: str, named: dict[str, int], faults: str
) -> None:
    with pytest.raises(ConfigError, match=f'the option "{name}" .*{faults}'):
        chosen_queues("t", [0, 1, 2], parsed(**{name: json.dumps({"t": named})}))


def test_offsets_are_for_the_queues_that_are_read_not_for_all() -> None:
    options = parsed(queues="1", startingOffsets='{"t": {"1": 5}}')

    assert chosen_queues("t", [0, 1, 2], options) == [1]


def test_offsets_for_other_topics_than_are_read_are_refused_with_both_sides() -> None:
    options = parsed(topic="a,b", startingOffsets='{"b": {"0": 1}, "c": {"0": 1}}')

    with pytest.raises(
        ConfigError, match='"startingOffsets" names the topics b, c, but a, b are read: a missing and c too many'
    ):
        check_topics(["a", "b"], options)
    check_topics(["c", "b"], options)


def test_the_ranges_of_a_scan_follow_topics_and_queues() -> None:
    topics = [
        TopicBounds("b", 7, {1: QueueBounds(0, 5), 0: QueueBounds(2, 2)}),
        TopicBounds("a", 3, {0: QueueBounds(4, 9)}),
    ]

    found = ranges(parsed(topic="b,a"), topics, stores=StoreIds(77))

    assert found == [
        QueueRange("h:1", StoreIds(77), "b", 7, 0, 2, 2),
        QueueRange("h:1", StoreIds(77), "b", 7, 1, 0, 5),
        QueueRange("h:1", StoreIds(77), "a", 3, 0, 4, 9),
    ]


def test_a_place_names_topic_queue_offset_and_where_it_lies() -> None:
    assert queue(5).place(3) == "topic t, queue 0, offset 3, broker h:1"
    assert QueueRange("", 1, "t", 1, 2, 0, 9, "/data").place(3) == "topic t, queue 2, offset 3, directory /data"


# ---- into pieces


@pytest.mark.parametrize(
    ("lengths", "max_records", "cores", "pieces"),
    [
        ([], 10, 4, []),
        ([0, 0], 10, 4, []),
        ([1], 10, 4, [1]),
        ([10], 10, 1, [10]),
        ([11], 10, 1, [5, 6]),
        ([MIN_SPLIT_ROWS], BIG, 4, [MIN_SPLIT_ROWS]),
        ([2 * MIN_SPLIT_ROWS], BIG, 2, [MIN_SPLIT_ROWS] * 2),
        ([BIG], BIG, 2, [BIG // 2] * 2),
        ([BIG, BIG, BIG, BIG], BIG, 2, [BIG] * 4),
        ([BIG, 10], BIG, 3, [BIG // 2] * 2 + [10]),
    ],
)
def test_long_queues_are_cut_where_a_core_would_be_idle(
    lengths: list[int], max_records: int, cores: int, pieces: list[int]
) -> None:
    parts = [queue(rows, queue_id) for queue_id, rows in enumerate(lengths)]

    assert [part.rows for part in split(parts, max_records=max_records, min_partitions=None, cores=cores)] == pieces


@pytest.mark.parametrize(
    ("lengths", "max_records", "wanted", "pieces"),
    [
        ([100], 1000, 1, [100]),
        ([100], 1000, 4, [25] * 4),
        ([100, 100], 1000, 2, [100, 100]),
        ([100, 100, 100], 1000, 2, [100, 100, 100]),
        ([100, 100], 1000, 4, [50] * 4),
        ([300, 100], 1000, 4, [100, 100, 100, 100]),  # in proportion
        ([1000, 1, 1], 1000, 4, [500, 500, 1, 1]),  # short ones stay whole and leave the rest to the long one
        ([10, 10, 10], 1000, 4, [5, 5, 10, 10]),  # where rounding would give too few
        ([100], 10, 4, [10] * 10),  # the cap counts too
        ([3], 1000, 10, [1, 1, 1]),  # no more pieces than messages
        ([0, 4], 1000, 2, [2, 2]),
        ([], 1000, 5, []),
    ],
)
def test_at_least_so_many_pieces_as_asked_for_are_cut_in_proportion(
    lengths: list[int], max_records: int, wanted: int, pieces: list[int]
) -> None:
    parts = [queue(rows, queue_id) for queue_id, rows in enumerate(lengths)]

    assert [part.rows for part in split(parts, max_records=max_records, min_partitions=wanted)] == pieces


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 1 << 50)), max_size=6),
    st.integers(1, 5000),
    st.none() | st.integers(1, 200),
    st.integers(1, 64),
)
def test_pieces_are_disjoint_cover_every_offset_and_are_in_order(
    lengths: list[tuple[int, int]], max_records: int, wanted: int | None, cores: int
) -> None:
    parts = [queue(rows, queue_id, start) for queue_id, (rows, start) in enumerate(lengths)]

    pieces = split(parts, max_records=max_records, min_partitions=wanted, cores=cores)

    assert all(0 < part.rows <= max_records for part in pieces)
    assert [(part.queue_id, part.start) for part in pieces] == sorted((part.queue_id, part.start) for part in pieces)
    for queue_id, part in enumerate(parts):
        mine = [piece for piece in pieces if piece.queue_id == queue_id]
        joints = [piece.end for piece in mine]
        assert [piece.start for piece in mine] == ([part.start, *joints[:-1]] if mine else [])
        assert (joints[-1] if mine else part.start) == part.end
    assert len(pieces) >= min(wanted or 1, sum(part.rows for part in parts))
