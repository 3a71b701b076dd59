"""How commands end: one line and one code, or a traceback for a defect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rmq.cli.output.output import OutputClosed
from rmq.cli.shell import exit_codes
from rmq.cli.shell.command import Command, Failure, Group, run, version_option
from rmq.wire.errors import ConnectionLost, TopicNotFound


def ended(error: BaseException) -> Result:
    @click.command(cls=Command)
    def command() -> None:
        raise error

    return CliRunner().invoke(command, prog_name="rmq-try")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (Failure("no such thing", 66), 66, "rmq-try: no such thing\n"),
        (ConnectionLost("no broker"), exit_codes.UNAVAILABLE, "rmq-try: no broker\n"),
        (TopicNotFound("two\nlines"), exit_codes.NO_INPUT, "rmq-try: two lines\n"),
        (ExceptionGroup("g", [ConnectionLost("first"), ValueError()]), exit_codes.UNAVAILABLE, "rmq-try: first\n"),
        (Failure("no file a\nb\x1b[2J", 66), 66, "rmq-try: no file a\\nb\\x1b[2J\n"),
        (Failure("no file " + "x" * 5000, 66), 66, f"rmq-try: no file {'x' * 100}...{'x' * 50}\n"),
        (OutputClosed(), exit_codes.OK, ""),
        (
            UnicodeEncodeError("utf-8", "\udcc3", 0, 1, "surrogates not allowed"),
            exit_codes.USAGE,
            "rmq-try: what was typed is not UTF-8: set a locale such as LC_ALL=C.UTF-8\n",
        ),
        (BrokenPipeError(), exit_codes.OK, ""),
        (KeyboardInterrupt(), exit_codes.INTERRUPTED, ""),
    ],
)
def test_what_a_user_can_cause_is_one_line_and_a_code(error: BaseException, code: int, text: str) -> None:
    result = ended(error)

    assert (result.exit_code, result.stderr, result.stdout) == (code, text, "")


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), ExceptionGroup("g", [ZeroDivisionError()])])
def test_a_defect_keeps_its_traceback(error: Exception) -> None:
    assert ended(error).exception is error


def test_a_wrong_option_is_a_usage_error() -> None:
    @click.command(cls=Command)
    def command() -> None: ...

    result = CliRunner().invoke(command, ["--nope"])

    assert result.exit_code == exit_codes.USAGE
    assert "there is no option --nope" in result.stderr


def test_the_failure_of_a_sub_command_is_prefixed_with_the_program() -> None:
    @click.group(cls=Group)
    def command() -> None: ...

    @command.command()
    def sub() -> None:
        raise ConnectionLost("gone")

    result = CliRunner().invoke(command, ["sub"], prog_name="rmq-try")

    assert (result.exit_code, result.stderr) == (exit_codes.UNAVAILABLE, "rmq-try: gone\n")


def test_help_ends_with_the_examples_as_they_are_typed() -> None:
    @click.command(cls=Command, examples="\n    rmq-try a \\\n    rmq-try b\n")
    def command() -> None: ...

    assert CliRunner().invoke(command, ["--help"]).stdout.endswith("Examples:\n  rmq-try a \\\n  rmq-try b\n")


def test_version_names_the_program() -> None:
    @click.command(cls=Command)
    @version_option
    def command() -> None: ...

    result = CliRunner().invoke(command, ["--version"], prog_name="rmq-try")

    assert result.exit_code == 0
    assert result.stdout.startswith("rmq-try ")


def test_a_coroutine_is_run_to_its_result() -> None:
    async def answer() -> int:
        return 42

    assert run(answer()) == 42


@pytest.mark.slow
def test_output_that_does_not_fit_on_its_disk_is_one_line_and_a_code() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rmq.cli.rmq_broker", "start", "--show-config"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert done.returncode == exit_codes.OS_ERROR
    assert done.stderr == b"rmq-broker: the output cannot be written: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_of_a_command_gets_the_number_of_a_closed_standard_stream(tmp_path: Path, closed: str) -> None:
    """``rmq-broker start 2>&-`` would else log into its own commit log."""
    program = """
import os, sys, click
from rmq.cli.shell.command import Command

@click.command(cls=Command)
def command():
    assert sys.stdin.isatty() + sys.stdout.isatty() + sys.stderr.isatty() == 0  # none of them is None
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    os.write(fd, str(fd).encode())

command(args=[])
"""
    script = f'"$0" -c "$1" "$2" {closed}'
    subprocess.run(["/bin/sh", "-c", script, sys.executable, program, str(tmp_path / "file")], check=True)

    assert int((tmp_path / "file").read_text()) > 2
