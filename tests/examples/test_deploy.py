"""``examples/deploy``: units and container file fit the commands, their exit codes and their settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from rmq.broker.config import BrokerConfig
from rmq.cli import rmq_admin, rmq_broker, rmq_consume
from rmq.cli.shell import exit_codes
from rmq.consumer import ConsumerConfig
from rmq.testing.broker import BrokerThread

from .running import EXAMPLES

DEPLOY = EXAMPLES / "deploy"
COMMANDS = {"rmq-broker": rmq_broker.command, "rmq-consume": rmq_consume.command, "rmq-admin": rmq_admin.command}

pytestmark = pytest.mark.usefixtures("logging_as_before")


def settings(unit: str) -> dict[str, str]:
    lines = (DEPLOY / unit).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def instructions() -> dict[str, str]:
    """The last of each instruction of the container file, with lines that go on joined."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    return dict(re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE))


def check_command(words: list[str]) -> None:
    """It is one of ours, and takes these options: it would show its settings with them."""
    name = words[0].rpartition("/")[2]
    result = CliRunner().invoke(COMMANDS[name], [*words[1:], "--show-config"])
    assert result.exit_code == 0, result.output


def test_the_broker_unit_starts_a_broker_where_it_may_write() -> None:
    unit = settings("rmq-broker.service")

    check_command(unit["ExecStart"].split())
    assert f"--data-dir /var/lib/{unit['StateDirectory']}/" in unit["ExecStart"]
    assert unit["ProtectSystem"] == "strict"


def test_the_consumer_unit_starts_a_consumer() -> None:
    unit = settings("rmq-consumer@.service")

    check_command(unit["ExecStart"].replace("${TOPIC}", "orders").replace("${LISTENER}", "json:loads").split())


@pytest.mark.parametrize(
    ("unit", "never"),
    [
        ("rmq-broker.service", [exit_codes.USAGE, exit_codes.CONFIG]),
        ("rmq-consumer@.service", [exit_codes.USAGE, exit_codes.NO_INPUT, exit_codes.CONFIG]),
    ],
)
def test_what_cannot_get_better_is_not_tried_again(unit: str, never: list[int]) -> None:
    assert settings(unit)["Restart"] == "on-failure"
    assert settings(unit)["RestartPreventExitStatus"].split() == [str(code) for code in never]


def test_a_stop_has_more_time_than_the_commands_take() -> None:
    assert float(settings("rmq-broker.service")["TimeoutStopSec"]) > 2 * BrokerConfig().drain_timeout_s
    assert float(settings("rmq-consumer@.service")["TimeoutStopSec"]) > ConsumerConfig().drain_s


def test_the_container_starts_a_broker_that_can_be_reached_and_keeps_its_data() -> None:
    said = instructions()
    command = [*json.loads(said["ENTRYPOINT"]), *json.loads(said["CMD"])]

    check_command(command)
    assert f"0.0.0.0:{said['EXPOSE']}" in command
    assert f"{said['VOLUME']}/data" in command
    assert said["USER"] == "rmq"


def test_the_container_is_built_of_all_that_is_installed() -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE))

    assert copied == set((EXAMPLES.parent / "scripts" / "packages").read_text().split())


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as broker:
        yield broker


def test_the_health_check_fails_without_a_broker(broker: BrokerThread) -> None:
    command = json.loads(instructions()["HEALTHCHECK"].partition(" CMD ")[2])
    assert COMMANDS[command[0]] is rmq_admin.command

    def health() -> int:
        return CliRunner(env={"RMQ_BROKER": broker.address}).invoke(rmq_admin.command, command[1:]).exit_code

    assert health() == exit_codes.OK
    broker.stop()
    assert health() == exit_codes.UNAVAILABLE
    broker.start()
