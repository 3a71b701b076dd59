"""Rules for all commands: help with examples, and one line with one code if no broker answers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from rmq.cli.shell import exit_codes

from .commands import admin

ID = "8f1c0a5f6f2e4b90000000000012c003"
ASKING = [
    "broker accept-history", "broker backup /tmp/rmq-there-is-none", "broker config", "broker stats", "delay list",
    "dlq drop g --yes", "dlq export g --output -", "dlq list", "dlq replay g --yes", "dlq show g", "explain g",
    "group describe g", "group list", "group members g", "group members g --verbose",
    "group reset-offset g --topic t --to first", "lock-status", f"message get {ID}", "message query --key k",
    "message tail t", f"message trace {ID}", "top --once", "topic create t", "topic delete t --yes",
    "topic describe t", "topic grow t --queues 9", "topic list",
]  # fmt: skip


def commands(name: str) -> Iterator[tuple[str, click.Command]]:
    """A program and its sub-commands, with the words that call them."""
    waiting = [(name, importlib.import_module(f"rmq.cli.{name.replace('-', '_')}").command)]
    for path, command in waiting:
        yield path, command
        if isinstance(command, click.Group):
            waiting += [(f"{path} {word}", child) for word, child in command.commands.items()]


ALL = dict(pair for program in ("rmq-admin", "rmq-broker", "rmq-consume", "rmq-produce") for pair in commands(program))


@pytest.mark.parametrize("path", ALL)
def test_help_has_examples(path: str) -> None:
    program, *words = path.split()

    result = CliRunner().invoke(ALL[program], [*words, "--help"], prog_name=program)

    assert result.exit_code == 0
    examples = result.stdout.partition("\nExamples:\n")[2].splitlines()
    assert examples
    assert any(path in example for example in examples)


@pytest.mark.parametrize("name", ["topic", "group", "message", "dlq", "delay", "broker", "lock-status"])
def test_every_part_of_a_broker_has_a_command(name: str) -> None:
    assert f"rmq-admin {name}" in ALL


def test_an_unknown_command_is_a_mistake_of_usage() -> None:
    result = admin("lock-state")

    assert result.exit_code == exit_codes.USAGE
    assert "'lock-state'" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ASKING)
def test_without_a_broker_one_line_says_how_to_start_one(nowhere: str, arguments: str) -> None:
    result = admin(*arguments.split(), "--broker", nowhere)

    assert (result.exit_code, result.stdout) == (exit_codes.UNAVAILABLE, "")
    assert result.stderr == f"rmq-admin: no broker at {nowhere}: start one with `rmq-broker start`\n"


def test_every_command_that_asks_a_broker_is_tried_without_one() -> None:
    asking = {path for path, command in ALL.items() if any("--broker" in option.opts for option in command.params)}
    tried = {path for path in asking for arguments in ASKING if f"rmq-admin {arguments} ".startswith(f"{path} ")}

    assert asking - tried == {"rmq-admin import-rocketmq", "rmq-consume", "rmq-produce"}  # tried in their own files
