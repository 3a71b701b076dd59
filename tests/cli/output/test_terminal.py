"""Progress bars and the width of the terminal."""

from __future__ import annotations

import asyncio
import io
import sys

import pytest

from rmq.cli.output.terminal import columns, fits, progress


class Screen(io.StringIO):
    """A terminal, as far as anybody asks."""

    def isatty(self) -> bool:
        return True


async def test_nothing_is_drawn_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    async with progress("sending", 10, lambda: 5):
        await asyncio.sleep(0)

    assert capsys.readouterr() == ("", "")


async def test_the_bar_follows_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)

    async with progress("sending", 10, lambda: 5):
        await asyncio.sleep(0)

    assert "sending" in screen.getvalue()
    assert "50%" in screen.getvalue()


def test_there_is_room_for_everything_where_there_is_no_terminal() -> None:
    assert columns() == 0


@pytest.mark.parametrize(
    ("text", "room", "is_so"),
    [("", 1, True), ("abc\nde\n", 3, True), ("abc\nde\n", 2, False), ("a" * 500, 0, True)],
)
def test_a_text_fits_if_each_of_its_lines_does(text: str, room: int, is_so: bool) -> None:
    assert fits(text, room) is is_so
