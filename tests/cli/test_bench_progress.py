"""A bar where somebody looks, nothing elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from rmq.cli.rmq_bench import Bar


class Screen(io.StringIO):
    """A terminal, as far as anybody asks."""

    def isatty(self) -> bool:
        return True


def test_nothing_is_drawn_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar() as bar:
        bar(0.5, "produce.bodies")
        with bar.aside():
            pass

    assert capsys.readouterr() == ("", "")


def test_the_bar_makes_room_for_text_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)

    with Bar() as bar:
        bar(0.5, "produce.bodies")
        with bar.aside():
            screen.write("a table\n")
        lines = screen.getvalue().split("\r\x1b[2K")[1].split("\n")

    assert lines[0] == "a table"
    assert lines[1].startswith("produce.bodies")
    assert "50%" in lines[1]


def test_the_bar_says_how_far_it_is_and_what_is_measured_now(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)

    with Bar() as bar:
        bar(0.5, "produce.bodies")
        drawn = screen.getvalue()

    assert "produce.bodies" in drawn
    assert "50%" in drawn
    assert screen.getvalue().endswith("\x1b[?25h")  # the cursor is shown again, and no line is left


def test_a_long_label_does_not_make_the_line_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)

    with Bar() as bar:
        bar(0.9, "x" * 200)
        drawn = screen.getvalue()

    assert max(len(line) for line in drawn.split("\r")) < 80
