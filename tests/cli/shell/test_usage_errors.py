"""A wrong command line is one sentence that says what would be right."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from rmq.cli.rmq_admin import command as admin
from rmq.cli.rmq_bench import command as bench
from rmq.cli.rmq_broker import command as broker
from rmq.cli.rmq_consume import command as consume
from rmq.cli.rmq_produce import command as produce
from rmq.cli.shell import exit_codes
from rmq.cli.shell.command import Command, Group


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
        ("--queues 3 make x", "--queues goes behind the command, as in `rmq-try COMMAND --queues ...`"),
        ("make x --queus 3", f"there is no option --queus (did you mean --queues?){ALL}"),
        ("make --to x", f"NAME is missing{ALL}"),
        ("make x", f"--to is missing{ALL}"),
        ("make x y z --to q", f"there is more on the command line than it takes: y z{ALL}"),
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
