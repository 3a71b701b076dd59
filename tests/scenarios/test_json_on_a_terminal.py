"""The content of a message does nothing to the terminal of an operator who looks at it with --json."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rmq.client import Message
from rmq.client.sync import Producer
from rmq.testing.broker import BrokerThread

pytestmark = pytest.mark.slow

BODY = "pay \x9b31m\x85 \u202e001\u202c \u2066x\u2069 \x7f\x1b[2J Zürich"
ACTED_ON = {character for character in BODY if not character.isprintable()}


def shown(*command: str) -> list[str]:
    """Return the lines that a command writes to a terminal."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE
    )
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 4096):
            written += piece
    except OSError:  # EIO: the command has ended
        pass
    finally:
        os.close(ours)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors.decode()
    return written.decode().replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize(
    "command",
    [
        ("rmq.cli.rmq_consume", "--orderly", "--topic", "orders", "--count", "1", "--json"),
        ("rmq.cli.rmq_admin", "message", "tail", "orders", "--json"),
    ],
    ids=["consume", "tail"],
)
def test_a_message_shown_as_json_in_a_terminal_cannot_act_on_it(command: tuple[str, ...]) -> None:
    with BrokerThread() as broker:
        broker.create_topic("orders", 1)
        with Producer(broker.address) as producer:
            producer.send(Message("orders", BODY.encode()))

        (line,) = shown(*command, "--broker", broker.address)

    assert len(ACTED_ON) == 8
    assert not ACTED_ON & set(line)
    assert "Zürich" in line
    assert json.loads(line)["body"] == BODY
