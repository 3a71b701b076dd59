"""Which offsets are read, and by how many tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.client.scan_plan import QueueRange
from rmq.spark.options import ReadOptions
from rmq.spark.partitions import MIN_SPLIT_ROWS, resolve, split
from rmq.wire.errors import ConfigError, OffsetOutOfRange
from rmq.wire.ops import Range

HELD = Range(0, 100, 500)
BIG = 100 * MIN_SPLIT_ROWS


def asked(**options: str) -> tuple[int, int]:
    parsed = ReadOptions.parse({"broker": "h:1", "topic": "t", **options})
    return resolve(parsed.start, parsed.end, 0, HELD)


def queue(rows: int, queue_id: int = 0, start: int = 0) -> QueueRange:
    return QueueRange("h:1", 1, "t", 1, queue_id, start, start + rows)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, (100, 500)),
        ({"startOffset": "latest"}, (500, 500)),
        ({"endOffset": "earliest"}, (100, 100)),
        ({"startOffset": "200", "endOffset": "300"}, (200, 300)),
        ({"startOffset": "100", "endOffset": "500"}, (100, 500)),
        ({"startOffset": "900"}, (500, 500)),
        ({"endOffset": "900"}, (100, 500)),
        ({"endOffset": "50"}, (100, 100)),
        ({"startOffset": "latest", "endOffset": "300"}, (500, 500)),
        ({"startOffset": '{"0": 200}', "endOffset": '{"0": 500}'}, (200, 500)),
        ({"startOffset": '{"1": 900}', "endOffset": '{"1": 950}'}, (100, 500)),
    ],
)
def test_a_range_is_what_lies_between_the_asked_offsets(options: dict[str, str], found: tuple[int, int]) -> None:
    assert asked(**options) == found


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        (
            {"startOffset": "99"},
            OffsetOutOfRange,
            "queue 0: the messages from 99 to 100 are deleted; startOffset earliest",
        ),
        ({"startOffset": '{"0": 99}'}, OffsetOutOfRange, "are deleted"),
        ({"startOffset": '{"0": 501}'}, OffsetOutOfRange, "queue 0 holds 100 to 500: startOffset 501 lies outside"),
        ({"endOffset": '{"0": 501}'}, OffsetOutOfRange, "queue 0 holds 100 to 500: endOffset 501 lies outside"),
        ({"endOffset": '{"0": 99}'}, OffsetOutOfRange, "queue 0 holds 100 to 500: endOffset 99 lies outside"),
        ({"startOffset": "300", "endOffset": "200"}, ConfigError, "startOffset 300 lies behind endOffset 200"),
    ],
)
def test_what_cannot_be_read_as_asked_is_an_error(
    options: dict[str, str], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        asked(**options)


@pytest.mark.parametrize(
    ("lengths", "max_rows", "cores", "pieces"),
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
        ([BIG, 10], BIG, 2, [BIG // 2] * 2 + [10]),
    ],
)
def test_long_queues_are_cut_where_a_core_would_be_idle(
    lengths: list[int], max_rows: int, cores: int, pieces: list[int]
) -> None:
    ranges = [queue(rows, queue_id) for queue_id, rows in enumerate(lengths)]

    assert [part.rows for part in split(ranges, max_rows=max_rows, cores=cores)] == pieces


@given(
    st.lists(st.integers(0, 1 << 20), max_size=6),
    st.integers(0, 1 << 50),
    st.integers(5_000, 1 << 20),
    st.integers(1, 64),
)
def test_pieces_cover_every_offset_once_and_in_order(lengths: list[int], start: int, max_rows: int, cores: int) -> None:
    ranges = [queue(rows, queue_id, start) for queue_id, rows in enumerate(lengths)]

    pieces = split(ranges, max_rows=max_rows, cores=cores)

    assert all(0 < part.rows <= max_rows for part in pieces)
    for queue_id, part in enumerate(ranges):
        mine = [piece for piece in pieces if piece.queue_id == queue_id]
        joints = [piece.end for piece in mine]
        assert [piece.start for piece in mine] == ([part.start, *joints[:-1]] if mine else [])
        assert (joints[-1] if mine else part.start) == part.end
