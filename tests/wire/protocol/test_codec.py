"""Payloads: strict on types, open to growth, and clear about what is wrong."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.errors import BadRequest
from rmq.wire.protocol.codec import decode, decode_list

from rigs.batches import quick


class Point(NamedTuple):
    x: int
    y: int = 0
    name: str | None = None


class Line(NamedTuple):
    points: list[Point]
    width: float
    labels: dict[str, int]
    start: Point
    end: Point | None = None
    flag: bool = False
    data: bytes = b""
    extra: Any = None
    grid: list[list[int]] = []  # noqa: RUF012
    sides: list[int] | None = None


LINE: list[Any] = [[[1, 2, "a"], [3]], 1.5, {"a": 1}, [0, 0, None]]


def test_arrays_become_named_tuples_all_the_way_down() -> None:
    line = decode(Line, [*LINE, [9, 9, None], True, b"x", {"any": [1]}, [[1], []], [4]])

    assert line == Line(
        [Point(1, 2, "a"), Point(3)], 1.5, {"a": 1}, Point(0), Point(9, 9), True, b"x", {"any": [1]}, [[1], []], [4]
    )
    assert type(line.points[0]) is Point
    assert type(line.start) is type(line.end) is Point


def test_a_missing_tail_has_its_defaults() -> None:
    assert decode(Line, LINE) == Line([Point(1, 2, "a"), Point(3)], 1.5, {"a": 1}, Point(0))
    assert decode(Point, [1]) == Point(1, 0, None)
    assert decode(Point, [1, 2]) == Point(1, 2, None)


def test_what_is_behind_the_known_fields_is_ignored() -> None:
    assert decode(Point, [1, 2, None, "later", {"much": "later"}]) == Point(1, 2, None)
    assert decode_list(Point, [[1, 2, None, "later"]]) == [Point(1, 2)]


def test_nil_is_accepted_where_none_is() -> None:
    assert decode(Line, [*LINE, None, False, b"", None, [], None]).end is None


def test_an_int_does_for_a_float_and_becomes_one() -> None:
    line = decode(Line, [[], 5, {}, [0]])

    assert line.width == 5.0
    assert type(line.width) is float


def with_field(index: int, value: object) -> list[Any]:
    line = [*LINE, [9, 9, None], True, b"x", None, [[1]], [4]]
    line[index] = value
    return line


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([True], "Point: x must be int, not bool"),
        (["1"], "Point: x must be int, not str"),
        ([1.0], "Point: x must be int, not float"),
        ([None], "Point: x must be int, not NoneType"),
        ([b"1"], "Point: x must be int, not bytes"),
        ([1, None], "Point: y must be int, not NoneType"),
        ([1, 2, b"a"], "Point: name must be str, not bytes"),
        ([1, 2, 3], "Point: name must be str, not int"),
        ([1, True, None, "later"], "Point: y must be int, not bool"),
        ([], "Point: x is missing"),
        ({"x": 1}, "Point: payload must be array, not dict"),
        (None, "Point: payload must be array, not NoneType"),
        (1, "Point: payload must be array, not int"),
        ((1, 2, None), "Point: payload must be array, not tuple"),
    ],
)
def test_a_wrong_field_is_named(value: object, why: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(Point, value)

    assert caught.value.text == why


@pytest.mark.parametrize(
    ("index", "value", "why"),
    [
        (0, None, "points must be list, not NoneType"),
        (0, [[1], 2], "points.[] must be array, not int"),
        (0, [[1], ["2"]], "points.[].x must be int, not str"),
        (0, [[]], "points.[].x is missing"),
        (1, True, "width must be float, not bool"),
        (1, "1", "width must be float, not str"),
        (2, [["a", 1]], "labels must be map, not list"),
        (2, {"a": "1"}, "labels.{} must be int, not str"),
        (2, {b"a": 1}, "labels.{} must be str, not bytes"),
        (3, [0, "0"], "start.y must be int, not str"),
        (3, None, "start must be array, not NoneType"),
        (4, ["9", 9, None], "end.x must be int, not str"),
        (4, 0, "end must be array, not int"),
        (5, 1, "flag must be bool, not int"),
        (5, None, "flag must be bool, not NoneType"),
        (6, "x", "data must be bytes, not str"),
        (8, [1], "grid.[] must be list, not int"),
        (8, [[1, True]], "grid.[].[] must be int, not bool"),
        (9, [None], "sides.[] must be int, not NoneType"),
    ],
)
def test_a_wrong_field_inside_is_named_with_its_path(index: int, value: object, why: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(Line, with_field(index, value))

    assert caught.value.text == f"Line: {why}"


class Pair(NamedTuple):
    first: Point
    second: list[Point]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([[1, "2", None], []], "Pair: first.y must be int, not str"),
        ([[1], [[1, 2, 3]]], "Pair: second.[].name must be str, not int"),
    ],
)
def test_the_path_is_the_same_when_all_outer_types_fit(value: object, why: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(Pair, value)

    assert caught.value.text == why


def test_the_value_is_not_changed() -> None:
    value: list[Any] = [[1, 2, None], [[3, 4, "a"]]]

    pair = decode(Pair, value)

    assert type(pair.first) is Point
    assert [type(part) for part in (value, value[0], value[1][0])] == [list] * 3


@pytest.mark.parametrize("value", [None, {}, "x", 3, (1,)])
def test_a_list_is_expected_where_there_are_several(value: object) -> None:
    with pytest.raises(BadRequest, match=f"a list of Point is expected, not {type(value).__name__}"):
        decode_list(Point, value)


def test_a_wrong_entry_of_several_is_named() -> None:
    with pytest.raises(BadRequest, match="Point: x must be int, not str"):
        decode_list(Point, [[1], ["1"]])


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=2) | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@quick
@given(anything)
def test_any_payload_is_decoded_or_refused(value: object) -> None:
    for shape in (Point, Line, Pair):
        try:
            assert isinstance(decode(shape, value), shape)
        except BadRequest as error:
            assert error.text.startswith(shape.__name__)


@quick
@given(st.integers(), st.integers(), st.none() | st.text())
def test_what_was_packed_comes_back(x: int, y: int, name: str | None) -> None:
    point = Point(x % (1 << 63), y % (1 << 63), name)

    assert decode(Point, msgpack.unpackb(msgpack.packb(point))) == point
