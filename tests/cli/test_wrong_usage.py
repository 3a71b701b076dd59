"""The ten wrong usages, each through the real command: one line that says what is wrong and what to do, and a code."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from rmq.cli.rmq_admin import command as admin
from rmq.cli.shell import exit_codes
from rmq.engine.native.connection import Connection
from rmq.wire.errors import ConnectionLost

from rigs.other_peers import (
    OTHER_PROTOCOL,
    Answer,
    black_hole,
    hanging_up,
    later_broker,
    listening,
    refusing_broker,
    silent,
    web_server,
)
from rigs.processes import BrokerProcess, Running


class World(NamedTuple):
    """What stands in the way of the commands."""

    broker: str
    nowhere: str
    web: str
    tomorrow: str
    taken: Path
    empty: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with (
        BrokerProcess(folder / "taken") as broker,
        socket.socket() as unheard,
        listening(web_server) as web,
        listening(refusing_broker) as tomorrow,
    ):
        unheard.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{unheard.getsockname()[1]}"
        yield World(broker.address, nowhere, web, tomorrow, folder / "taken", folder / "empty")


HERE = "--listen 127.0.0.1:0"
NAME = "rmq.invalid:10911"  # a name that can never be known
WRONG = {
    "wrong address: no such host": (
        f"rmq-admin topic list --broker {NAME}",
        f"no broker at {NAME}: no host has this name; check the address",
        exit_codes.UNAVAILABLE,
    ),
    "wrong address: no port": (
        "rmq-produce --topic orders --broker localhost",
        "--broker: the address 'localhost' is not host:port: write for example 127.0.0.1:10911",
        exit_codes.CONFIG,
    ),
    "wrong address: no broker there": (
        "rmq-produce --topic orders --broker {web}",
        "what listens at {web} is not an rmq broker: check the address and its port",
        exit_codes.UNAVAILABLE,
    ),
    "broker down": (
        "rmq-bench produce --broker {nowhere}",
        "no broker at {nowhere}: start one with `rmq-broker start`",
        exit_codes.UNAVAILABLE,
    ),
    "unknown topic": (
        "rmq-consume --orderly --no-wait --topic ordres --broker {broker}",
        "there is no topic 'ordres': create it with `rmq-admin topic create ordres`",
        exit_codes.NO_INPUT,
    ),
    "unknown group": (
        "rmq-admin group describe biling --broker {broker}",
        "there is no group 'biling': `rmq-admin group list` shows those that exist",
        exit_codes.NO_INPUT,
    ),
    "bad option": (
        "rmq-consume --ordrly --topic orders",
        "there is no option --ordrly (did you mean --orderly?): `rmq-consume --help` shows all",
        exit_codes.USAGE,
    ),
    "bad config key": (
        "rmq-broker start -o flus=async",
        "-o flus=async: there is no setting 'flus'; did you mean 'flush'?",
        exit_codes.CONFIG,
    ),
    "port taken": (
        "rmq-broker start --listen {broker} --data-dir {empty}",
        "{broker} is in use: is a broker running there? Choose another address with --listen",
        exit_codes.OS_ERROR,
    ),
    "directory in use": (
        f"rmq-broker start {HERE} --data-dir {{taken}}",
        "another broker uses the data directory {taken}: stop it or choose another --data-dir",
        exit_codes.OS_ERROR,
    ),
    "directory not writable": (
        f"rmq-broker start {HERE} --data-dir /proc/rmq",
        "the data directory /proc/rmq cannot be used: No such file or directory; choose another folder with --data-dir",
        exit_codes.OS_ERROR,
    ),
    "wrong protocol version": (
        "rmq-consume --orderly --topic orders --broker {tomorrow}",
        OTHER_PROTOCOL,
        exit_codes.REFUSED,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("usage", WRONG)
def test_a_wrong_usage_is_one_line_and_a_code(world: World, usage: str) -> None:
    typed, said, code = WRONG[usage]
    program, *arguments = typed.format(**world._asdict()).split()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RMQ_")}

    with Running(f"rmq.cli.{program.replace('-', '_')}", *arguments, env=environ) as process:
        ended = process.wait()

    assert (process.lines, process.errors) == ([], [f"{program}: {said.format(**world._asdict())}"])
    assert ended == code


# ---- in this process: the same, of all commands and in other forms


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (hanging_up, "accepts the connection and does not greet: it is not an rmq broker, or it hangs; check"),
        (silent, "accepts the connection and does not greet: it is not an rmq broker, or it hangs; check"),
        (web_server, "is not an rmq broker: check the address and its port"),
    ],
)
async def test_a_server_that_is_not_a_broker_is_named_as_such(answer: Answer, text: str) -> None:
    with listening(answer) as address, pytest.raises(ConnectionLost, match=f"what listens at {address} {text}"):
        await Connection(address).open(timeout_s=0.2)


async def test_a_network_that_swallows_everything_is_called_so() -> None:
    with black_hole() as address:
        text = f"no broker at {address}: nothing answers there; check the address and the network"
        with pytest.raises(ConnectionLost, match=text):
            await Connection(address).open(timeout_s=0.2)


LOOKS_ELSEWHERE_FIRST = ("import-rocketmq",)  # at the folder it is to take over
VALUES = {"--to": "first", "--topic": "orders", "--key": "k", "MESSAGE_ID": "0" * 32}


def _leaves(group: click.Group, *path: str) -> Iterator[tuple[list[str], click.Command]]:
    """Each command that asks a broker, but for the import, which looks into its folder first."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _leaves(command, *path, name)
        elif name in LOOKS_ELSEWHERE_FIRST:
            continue
        elif any("--broker" in parameter.opts for parameter in command.params):
            yield [*path, name], command


def _needed(command: click.Command, *, but: click.Parameter | None = None) -> list[str]:
    """What the command cannot do without, arguments last."""
    context = click.Context(command)
    options = ["--yes"] if any("--yes" in parameter.opts for parameter in command.params) else []
    options += ["--key", "k"] if command.name == "query" else []  # either kind of key will do, so none is required
    arguments = []
    for parameter in command.params:
        if not parameter.required or parameter is but:
            continue
        if isinstance(parameter, click.Argument):
            arguments.append(VALUES.get(parameter.make_metavar(context), "0" * 32))
        else:
            options += [parameter.opts[0], VALUES.get(parameter.opts[0], "1")]
    return options + arguments


LEAVES = [pytest.param(path, command, id=" ".join(path)) for path, command in _leaves(admin)]


@pytest.mark.parametrize(("path", "command"), LEAVES)
def test_every_command_refuses_a_broker_of_another_protocol(path: list[str], command: click.Command) -> None:
    with listening(later_broker) as address:
        result = CliRunner().invoke(admin, [*path, *_needed(command), "--broker", address], prog_name="rmq-admin")

    text = "this client speaks protocol 1, the broker 2: run the same version of rmq on both sides"
    assert (result.stderr, result.stdout) == (f"rmq-admin: {text}\n", "")
    assert result.exit_code == exit_codes.REFUSED


SHARED = {"--broker", "--log-level", "--log-format"}  # which are the same everywhere
STRANGE = ("", "a\nb\x1b[2J", "-1", "9" * 20, "x" * 5000, "50%")


@pytest.mark.parametrize(("path", "command"), LEAVES)
def test_whatever_value_is_typed_one_line_and_a_code_are_the_end(
    path: list[str], command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with listening(later_broker) as address:
        for parameter in command.params:
            if isinstance(parameter, click.Option) and (parameter.is_flag or SHARED.intersection(parameter.opts)):
                continue
            name = [] if isinstance(parameter, click.Argument) else [parameter.opts[0]]
            for value in STRANGE:
                typed = [*path, "--broker", address, *_needed(command, but=parameter)]
                typed += [*name, value] if name else ["--", value]
                result = CliRunner().invoke(admin, typed, prog_name="rmq-admin")

                assert isinstance(result.exception, SystemExit), (typed, result.exception)
                assert (result.stderr.count("\n"), result.stdout) == (1, ""), typed
                assert "\x1b" not in result.stderr
                assert len(result.stderr) < 700, typed
