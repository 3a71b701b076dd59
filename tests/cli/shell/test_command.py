"""Commands end with one line and one code, or with a traceback for a defect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rmq.cli.output.stdout import OutputClosed
from rmq.cli.rmq_admin import command as admin
from rmq.cli.rmq_bench import command as bench
from rmq.cli.rmq_broker import command as broker
from rmq.cli.rmq_consume import command as consume
from rmq.cli.rmq_produce import command as produce
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
            "rmq-try: the command line is not UTF-8: set a locale such as LC_ALL=C.UTF-8\n",
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


@click.group(cls=Group)
def command() -> None: ...


@command.command(cls=Command)
@click.argument("name", metavar="NAME")
@click.option("--queues", type=click.IntRange(1))
@click.option("--level", type=click.IntRange(0, 18))
@click.option("--share", type=click.FloatRange(max=1.0))
@click.option("--flush", type=click.Choice(["sync", "async", "never"]))
@click.option("--only", type=click.Choice(["this"]))
@click.option("--file", type=click.File("rb"))
@click.option("--yes", is_flag=True)
@click.option("--to", required=True)
def make(**_given: object) -> None:
    raise click.UsageError("--yes and --to exclude each other.")


ALL = ": `rmq-try make --help` shows all"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("mke x", "there is no command 'mke' (did you mean make?): `rmq-try --help` shows all"),
        ("zzz", "there is no command 'zzz': `rmq-try --help` shows all"),
        ("--zzz make", "there is no option --zzz: `rmq-try --help` shows all"),
        ("--queues 3 make x", "--queues goes after the command, as in `rmq-try COMMAND --queues ...`"),
        ("make x --queus 3", f"there is no option --queus (did you mean --queues?){ALL}"),
        ("make --to x", f"NAME is missing{ALL}"),
        ("make x", f"--to is missing{ALL}"),
        ("make x y z --to q", f"unexpected arguments: y z{ALL}"),
        ("make x --to", "--to needs a value"),
        ("make x --yes=3", "--yes takes no value"),
        ("make x --to y --queues zero", "--queues must be a whole number, 1 or more, not zero"),
        ("make x --to y --queues 0", "--queues must be a whole number, 1 or more, not 0"),
        ("make x --to y --queues ", "--queues must be a whole number, 1 or more, not ''"),
        ("make x --to y --flush ", "--flush must be sync, async or never, not ''"),
        ("make x --to y --level 19", "--level must be a whole number from 0 to 18, not 19"),
        ("make x --to y --share 1.5", "--share must be a number, 1 or less, not 1.5"),
        ("make x --to y --flush asnc", "--flush must be sync, async or never, not asnc (did you mean async?)"),
        ("make x --to y --only that", "--only must be this, not that"),
        ("make x --to y", "--yes and --to exclude each other"),
        ("make x --to \x1b[2J --queues \x1b[2J", r"--queues must be a whole number, 1 or more, not \x1b[2J"),
    ],
)
def test_what_is_wrong_and_what_would_be_right(line: str, sentence: str) -> None:
    result = CliRunner().invoke(command, line.split(" "), prog_name="rmq-try")

    assert (result.exit_code, result.stdout) == (exit_codes.USAGE, "")
    assert result.stderr == f"rmq-try: {sentence}\n"


def test_a_file_that_cannot_be_opened_has_the_code_of_what_does_not_exist() -> None:
    result = CliRunner().invoke(command, ["make", "x", "--to", "y", "--file", "/no/such"], prog_name="rmq-try")

    assert (result.exit_code, result.stderr) == (
        exit_codes.NO_INPUT,
        "rmq-try: '/no/such': No such file or directory\n",
    )


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (admin, "rmq-admin"),
        (bench, "rmq-bench"),
        (broker, "rmq-broker"),
        (consume, "rmq-consume"),
        (produce, "rmq-produce"),
    ],
)
def test_every_program_says_it_in_one_line(program: click.Command, name: str) -> None:
    result = CliRunner().invoke(program, ["--nonsense"], prog_name=name)

    assert result.exit_code == exit_codes.USAGE
    assert result.stderr == f"{name}: there is no option --nonsense: `{name} --help` shows all\n"


def test_a_group_without_a_command_shows_its_help() -> None:
    result = CliRunner().invoke(command, [], prog_name="rmq-try")

    assert result.exit_code == exit_codes.USAGE
    assert result.stderr.startswith("Usage: rmq-try")
