"""``rmq-admin`` itself: the commands it has."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from rmq.cli.rmq_admin import command
from rmq.cli.shell import exit_codes


def test_help_has_examples() -> None:
    result = CliRunner().invoke(command, ["--help"], prog_name="rmq-admin")

    assert result.exit_code == 0
    assert "Examples:\n  rmq-admin " in result.stdout


@pytest.mark.parametrize("name", ["topic", "group", "message", "dlq", "delay", "broker", "lock-status"])
def test_every_part_of_a_broker_has_a_command(name: str) -> None:
    assert name in command.commands


def test_a_command_that_is_not_there_is_a_mistake_of_usage() -> None:
    result = CliRunner().invoke(command, ["lock-state"], prog_name="rmq-admin")

    assert result.exit_code == exit_codes.USAGE
    assert "'lock-state'" in result.stderr
