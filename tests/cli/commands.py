"""Runs commands in the process of the test."""

from __future__ import annotations

from click.testing import CliRunner, Result
from rigs.terminal import Terminal

from rmq.cli.rmq_admin import command


def admin(*arguments: str, typed: str | None = None) -> Result:
    """Run rmq-admin; ``typed`` is entered at a terminal."""
    terminal = None if typed is None else Terminal(typed.encode())
    return CliRunner().invoke(command, arguments, prog_name="rmq-admin", input=terminal)
