"""Runs commands in the process of the test."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from click.testing import CliRunner, Result

from rmq.cli.rmq_admin import command

from rigs.terminal import Terminal


def admin(*arguments: str, typed: str | None = None) -> Result:
    """Run rmq-admin; ``typed`` is entered at a terminal."""
    terminal = None if typed is None else Terminal(typed.encode())
    return CliRunner().invoke(command, arguments, prog_name="rmq-admin", input=terminal)


def piped(module: str, *arguments: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end in a process of its own, with the given standard input and output."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, timeout=60, check=False, **streams)
