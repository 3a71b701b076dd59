"""What is said while a broker or a topic is missing, and that --no-wait ends instead."""

from __future__ import annotations

import signal

import pytest
from click.testing import CliRunner

from rmq.cli.consume.prerequisites import no_topic
from rmq.cli.rmq_consume import command
from rmq.cli.shell import exit_codes
from rmq.client import Admin

from rigs.processes import Running

RETRIES = " (retrying; Ctrl-C to quit)"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "there is no topic 't': create it with `rmq-admin topic create t`"),
        (["a", "b"], "there is no topic 't': create it with `rmq-admin topic create t`; existing topics: a, b"),
    ],
)
def test_a_missing_topic_is_named_with_those_that_exist(names: list[str], text: str) -> None:
    assert no_topic("t", names) == text


@pytest.mark.slow
def test_without_waiting_a_missing_broker_and_a_missing_topic_have_their_codes(
    broker: str, nowhere: str, topic: str
) -> None:
    for address, code, text in (
        (nowhere, exit_codes.UNAVAILABLE, f"no broker at {nowhere}: start one with `rmq-broker start`"),
        (broker, exit_codes.NO_INPUT, f"there is no topic {topic!r}: create it with"),
    ):
        arguments = ["--orderly", "--topic", topic, "--no-wait", "--broker", address]
        result = CliRunner().invoke(command, arguments, prog_name="rmq-consume")

        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
        assert result.stderr.startswith(f"rmq-consume: {text}")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["--orderly", "--pull"])
async def test_a_missing_topic_is_reported_once_and_a_signal_ends_the_wait(broker: str, topic: str, mode: str) -> None:
    with Running("rmq.cli.rmq_consume", mode, "--topic", topic, "--broker", broker) as process:
        process.wait_for_error(lambda lines: bool(lines), "the line on the topic")
        async with Admin(broker) as admin:
            await admin.create_topic(topic)
        assert process.stop(signal.SIGINT) == exit_codes.OK

    (line,) = process.errors
    assert line.startswith(f"rmq-consume: topic {topic!r} does not exist yet; consumption starts when it is created (")


@pytest.mark.slow
def test_a_missing_broker_is_reported_once_and_a_signal_ends_the_wait(nowhere: str) -> None:
    with Running("rmq.cli.rmq_consume", "--orderly", "--topic", "t", "--broker", nowhere) as process:
        process.wait_for_error(lambda lines: bool(lines), "the line on the broker")
        assert process.stop() == exit_codes.OK

    assert process.errors == [f"rmq-consume: no broker at {nowhere}: start one with `rmq-broker start`{RETRIES}"]
