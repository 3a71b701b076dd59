"""Plots show what they are given: by length, by colour, and in numbers."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from plots import (
    BLUE,
    GREY,
    OCHRE,
    ORANGE,
    Aim,
    Axis,
    Bar,
    Drawing,
    Series,
    bars,
    decades,
    fitting,
    lines,
    targets,
    text_width,
)

SVG = "{http://www.w3.org/2000/svg}"


def rects(svg: str, colour: str, height: str = "12") -> list[tuple[float, float]]:
    """Where bars of a colour begin and how wide they are, without the legend."""
    found = ElementTree.fromstring(svg).findall(f"{SVG}rect")
    return [
        (float(one.attrib["x"]), float(one.attrib["width"]))
        for one in found
        if one.attrib["fill"] == colour and one.attrib["height"] == height
    ]


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).findall(f"{SVG}text")]


def test_better_than_wanted_goes_right_and_worse_goes_left() -> None:
    svg = targets("Targets", [Aim("P1: good", "2, wanted at least 1", 2.0), Aim("P2: bad", "2 ms", 0.5)])

    ((good, good_wide),) = rects(svg, BLUE)
    ((bad, bad_wide),) = rects(svg, ORANGE)
    assert bad + bad_wide == pytest.approx(good, abs=0.2)
    assert good_wide == pytest.approx(bad_wide, abs=0.2)  # twice as good is as far as half as good
    assert {"P1: good", "2, wanted at least 1", "wanted", "2 x", "1/2"} <= set(texts(svg))


def test_a_target_that_is_not_shown_has_words_and_no_bar() -> None:
    svg = targets("Targets", [Aim("P1: peer", "not shown: redis-server is not installed")])

    assert rects(svg, BLUE) == rects(svg, ORANGE) == []
    assert "not shown: redis-server is not installed" in texts(svg)


def test_a_bar_far_from_its_target_ends_at_the_edge() -> None:
    svg = targets("Targets", [Aim("P1", "a thousandfold", 1000.0), Aim("P2", "nothing", 0.0)])

    assert "16 x" in texts(svg)
    assert all(begin >= 24 and begin + wide <= 796.2 for begin, wide in rects(svg, BLUE) + rects(svg, ORANGE))


def test_bars_are_as_long_as_their_values_and_coloured_by_whose_they_are() -> None:
    svg = bars(
        "Sending", "messages a second",
        [Bar("ours", 50.0, "50"), Bar("floor", 100.0, "100", "machine"), Bar("redis", 25.0, "25", "peer", 20.0, 30.0)],
    )  # fmt: skip

    ((_, ours),), ((_, floor),), ((_, peer),) = rects(svg, BLUE), rects(svg, GREY), rects(svg, OCHRE)
    assert (ours / floor, peer / floor) == pytest.approx((0.5, 0.25), abs=0.01)
    assert {"Sending", "messages a second", "50", "another broker", "what the machine can do"} <= set(texts(svg))


def test_the_legend_names_only_what_is_there() -> None:
    assert "another broker" not in texts(bars("Sending", "messages a second", [Bar("ours", 50.0, "50")]))


def test_lines_have_a_dot_and_a_number_for_each_point() -> None:
    across, up = Axis("percentile", (0, 1), [(0, "p50"), (1, "p99")]), Axis("ms", (1, 100), [(10, "10")], True)

    svg = lines("Latency", across, up, [Series("wake", [(0, 1), (1, 100)], ["1.0", "100"])], (10, "at most 10"))

    dots = [
        (float(dot.attrib["cx"]), float(dot.attrib["cy"]))
        for dot in ElementTree.fromstring(svg).findall(f"{SVG}circle")
    ]
    assert len(dots) == 2
    assert dots[0][0] < dots[1][0]
    assert dots[0][1] > dots[1][1]
    assert {"wake", "1.0", "100", "ms", "percentile", "p99", "at most 10"} <= set(texts(svg))


def test_numbers_of_points_at_one_place_do_not_cover_each_other() -> None:
    axis = Axis("-", (0, 1), [])
    series = [Series(name, [(0.5, 0.5)], [name]) for name in ("a", "b")]

    found = ElementTree.fromstring(lines("-", axis, axis, series)).findall(f"{SVG}text")

    heights = [float(one.attrib["y"]) for one in found if one.attrib["text-anchor"] == "middle"]
    assert abs(heights[0] - heights[1]) >= 13


def test_the_same_input_gives_the_same_bytes() -> None:
    rows = [Bar("ours", 1 / 3, "0.333", low=0.1, high=0.9)]

    assert bars("Sending", "s", rows) == bars("Sending", "s", rows)


@pytest.mark.parametrize(
    ("values", "between", "ends", "marks"),
    [
        ([1, 10_000], (1,), (1, 10_000), [1, 10, 100, 1_000, 10_000]),
        ([0.3, 4], (1, 2, 5), (0.2, 5), [0.2, 0.5, 1, 2, 5]),
        ([7], (1,), (1, 10), [1, 10]),
        ([10], (1,), (10, 100), [10, 100]),
    ],
)
def test_an_axis_by_factors_of_ten_holds_all_values(
    values: list[float], between: tuple[int, ...], ends: tuple[float, float], marks: list[float]
) -> None:
    found_ends, found_marks = decades(values, between=between)

    assert found_ends == pytest.approx(ends)
    assert found_marks == pytest.approx(marks)


def test_a_drawing_is_a_white_card_with_its_title_and_what_was_drawn() -> None:
    drawing = Drawing("Sending & <receiving>")
    drawing.bar(10, 20, 0.0, 12, "#2b6cb0")
    drawing.line([(0, 0), (10.04, 5.26)], dashed=True)
    drawing.dot(1, 2, "#000000")

    root = ElementTree.fromstring(drawing.svg(100))

    assert root.attrib["viewBox"] == "0 0 820 100"
    assert root.findtext(f"{SVG}title") == "Sending & <receiving>"
    card, bar = root.findall(f"{SVG}rect")
    assert card.attrib["fill"] == "#ffffff"
    assert bar.attrib["width"] == "1"  # a hair, so that it is seen
    (line,) = root.findall(f"{SVG}polyline")
    assert line.attrib["points"] == "0,0 10,5.3"


def test_a_legend_that_is_too_wide_goes_on_in_the_next_row() -> None:
    drawing = Drawing("x", width=300)

    assert drawing.legend(56, [("#000000", "short")]) == 56
    assert drawing.legend(56, [("#000000", "many words")] * 4) > 56


def test_words_are_cut_where_there_is_no_room() -> None:
    assert fitting("bodies, by send_bodies", 12, 400) == "bodies, by send_bodies"
    assert fitting("bodies, by send_bodies", 12, 60) == "bodies…"
    assert text_width("bodies", 12) < 60
