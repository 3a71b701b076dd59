"""Runs commands in the process of the test."""

from __future__ import annotations

from click.testing import CliRunner, Result

from rmq.cli.rmq_admin import command

from rigs.terminal import Terminal


def admin(*arguments: str, typed: str | None = None) -> Result:
    """Run rmq-admin; ``typed`` is entered at a terminal."""
    terminal = None if typed is None else Terminal(typed.encode())
    return CliRunner().invoke(command, arguments, prog_name="rmq-admin", input=terminal)
