"""What is offered for a value: by its placeholder, and silently nothing where nobody answers."""

from __future__ import annotations

import time

import click
import pytest
from click.shell_completion import ShellComplete

from rmq.cli.shell.command import Command
from rmq.cli.shell.completion import PATIENCE_S, Completed, names, words_of

from rigs.other_peers import black_hole, silent
from rigs.other_peers import listening as listening_to


@pytest.mark.parametrize(
    ("metavar", "words"),
    [
        ("sync|async", ["sync", "async"]),
        ("first|last|TIME", ["first", "last"]),
        ("N|N-M", []),
        ("TOPIC", []),
        ("", []),
    ],
)
def test_the_words_of_a_placeholder(metavar: str, words: list[str]) -> None:
    assert words_of(metavar) == words


@click.command(cls=Command)
@click.argument("file", metavar="FILE")
@click.option("--flush", metavar="sync|async")
@click.option("--number", metavar="N", type=int)
@click.option("--topic", metavar="TOPIC")
@click.option("--data-dir", metavar="FOLDER")
def try_it(**_given: object) -> None: ...


def offered(*typed: str) -> list[tuple[str, str]]:
    items = ShellComplete(try_it, {}, "try", "_TRY_COMPLETE").get_completions(list(typed[:-1]), typed[-1])
    return [(item.type, item.value) for item in items]


def test_a_value_is_completed_by_its_placeholder() -> None:
    assert offered("--flush", "a") == [("plain", "async")]
    assert offered("--data-dir", "/t") == [("dir", "/t")]
    assert offered("x") == [("file", "x")]
    assert offered("--number", "") == []
    assert {parameter.name for parameter in try_it.params if isinstance(parameter.type, Completed)} == {
        "file", "flush", "topic", "data_dir",
    }  # fmt: skip


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1"])
def test_a_broker_that_is_not_there_offers_nothing_at_once(address: str, capfd: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()

    assert names("TOPIC", address) == []
    assert capfd.readouterr() == ("", "")
    assert time.perf_counter() - began < PATIENCE_S


@pytest.mark.slow
def test_one_that_does_not_answer_is_waited_for_half_a_second(capfd: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    with listening_to(silent) as address:
        assert names("GROUP", address) == []
    with black_hole() as address:
        assert names("TOPIC", address) == []

    assert time.perf_counter() - began < 4
    assert capfd.readouterr() == ("", "")
