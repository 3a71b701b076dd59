"""Options and arguments are shown from the objects that parse them, without a terminal."""

from __future__ import annotations

from typing import Any

import click
import pytest

from refdocs.commands import help_text, options_of, render, walk
from refdocs.pages import programs


def option(*names: str, **more: Any) -> tuple[str, str, str, str]:
    command = click.Command("x", params=[click.Option(names, **more)])
    (shown,) = options_of(command)
    return tuple(shown)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (option("--all", is_flag=True, help="All."), ("--all", "All.", "", "")),
        (option("-q", "--queue", metavar="N", help="One."), ("-q, --queue N", "One.", "", "")),
        (option("--n", type=int, default=3, help="N."), ("--n N", "N.", "3", "")),
        (option("--n", type=click.IntRange(1), help="N."), ("--n N", "N. (at least 1)", "", "")),
        (option("--n", type=click.FloatRange(0, 2), help="N."), ("--n NUMBER", "N. (0 to 2)", "", "")),
        (option("--how", type=click.Choice(["a", "b"]), help="H."), ("--how a|b", "H.", "", "")),
        (option("--to", metavar="P", required=True, help="To."), ("--to P", "To. (needed)", "", "")),
        (option("--b", metavar="B", envvar="RMQ_B", default="x", help="B."), ("--b B", "B.", "x", "RMQ_B")),
        (option("--yes/--no", default=True, help="Y."), ("--yes, --no", "Y.", "", "")),
        (option("--g", metavar="G", help="Name.  [default: x; env var: RMQ_G]"), ("--g G", "Name.", "x", "RMQ_G")),
    ],
)
def test_an_option_is_shown_with_its_default_variable_and_limits(shown: object, expected: object) -> None:
    assert shown == expected


def test_hidden_commands_and_options_are_left_out() -> None:
    group = click.Group("g", commands=[click.Command("seen"), click.Command("unseen", hidden=True)])
    hidden = click.Command("x", params=[click.Option(["--h"], hidden=True)])

    assert [path for path, _ in walk("g", group)] == ["g", "g seen"]
    assert options_of(hidden) == []


def test_a_marked_paragraph_keeps_its_lines() -> None:
    command = click.Command("x", help="One\n    two.\n\n    \b\n    a  b\n    c  d")

    assert help_text(command) == "One\ntwo.\n\n```\na  b\nc  d\n```"


def test_every_command_has_a_section_with_its_usage_and_every_example() -> None:
    text = render(programs())

    for name, program in programs().items():
        for path, command in walk(name, program):
            assert f"# {path}\n" in text
            assert f"\n{path} [OPTIONS]" in text
            for example in getattr(command, "examples", []):
                assert f"\n{example}\n" in text


def test_a_shared_option_is_described_once_with_differing_defaults_at_each_command() -> None:
    def program(level: str) -> click.Command:
        level_option = click.Option(["--log-level"], type=click.Choice(["info", "error"]), default=level, help="Level.")
        return click.Command("x", help="X.", params=[level_option])

    text = render({"a": program("info"), "b": program("error")})

    assert text.count("Level.") == 1
    assert "Also: `--log-level` (default info)." in text
    assert "Also: `--log-level` (default error)." in text


@pytest.mark.parametrize("columns", ["40", "200"])
def test_the_width_of_the_terminal_changes_nothing(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = render(programs())

    monkeypatch.setenv("COLUMNS", columns)

    assert render(programs()) == before
