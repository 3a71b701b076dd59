"""How much room there is."""

from __future__ import annotations

import pytest

from rmq.cli.output.progress import columns, fits


def test_there_is_room_for_everything_where_there_is_no_terminal() -> None:
    assert columns() == 0


@pytest.mark.parametrize(
    ("text", "room", "is_so"),
    [("", 1, True), ("abc\nde\n", 3, True), ("abc\nde\n", 2, False), ("a" * 500, 0, True)],
)
def test_a_text_fits_if_each_of_its_lines_does(text: str, room: int, is_so: bool) -> None:
    assert fits(text, room) is is_so
