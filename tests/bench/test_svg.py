"""Drawings are valid SVG, readable, and the same bytes each time."""

from __future__ import annotations

from xml.etree import ElementTree

from rmq.bench.svg import Drawing, fitting, text_width

SVG = "{http://www.w3.org/2000/svg}"


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
