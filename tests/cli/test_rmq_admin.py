"""The lock table, from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rmq.cli import exit_codes
from rmq.cli.rmq_admin import LOCK_COLUMNS, command, lock_object, lock_table
from rmq.wire.ops import LockRow

from support.processes import BrokerProcess, ConsumerProcess, Running

ROW = LockRow("billing", "orders", 2, "host@7#ab12cd34", "ab12cd34" + "0" * 24, 5 << 32, 61.25, 3.0, 57.0, "held")


def admin(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, prog_name="rmq-admin")


@pytest.mark.parametrize("path", [[], ["lock-status"]])
def test_help_has_examples(path: list[str]) -> None:
    result = admin(*path, "--help")

    assert result.exit_code == 0
    assert "Examples:\n  rmq-admin " in result.stdout


def test_the_columns_are_the_fields_of_a_lock() -> None:
    assert LockRow._fields == LOCK_COLUMNS
    assert tuple(lock_object(ROW)) == LOCK_COLUMNS


def test_the_session_is_shown_short() -> None:
    assert lock_object(ROW)["session"] == "ab12cd34"


def test_the_lock_table_for_people() -> None:
    heading, line = lock_table([ROW]).splitlines()

    assert heading.split() == [name.upper() for name in LOCK_COLUMNS]
    assert line.split() == [
        "billing", "orders", "2", "host@7#ab12cd34", "ab12cd34", str(5 << 32), "61.2s", "3.0s", "57.0s", "held",
    ]  # fmt: skip


@pytest.mark.slow
def test_without_a_broker_one_line_says_how_to_start_one(nowhere: str) -> None:
    result = admin("lock-status", "--broker", nowhere)

    assert result.exit_code == exit_codes.UNAVAILABLE
    assert result.stderr == f"rmq-admin: no broker at {nowhere}: start one with `rmq-broker start`\n"
    assert result.stdout == ""


@pytest.mark.slow
def test_without_locks_the_table_is_empty_and_the_code_0(broker: str) -> None:
    table = admin("lock-status", "--group", "nobody", "--broker", broker)
    rows = admin("lock-status", "--group", "nobody", "--broker", broker, "--json")

    assert (table.exit_code, rows.exit_code) == (0, 0)
    assert table.stdout.split() == [name.upper() for name in LOCK_COLUMNS]
    assert json.loads(rows.stdout) == []


@pytest.mark.slow
def test_the_lock_table_shows_the_owner_of_each_queue(broker: str, topic: str) -> None:
    admin("topic", "create", topic, "--queues", "2", "--broker", broker)
    with ConsumerProcess(broker, topic, "--group", "lockers") as consumer:
        rows: list[dict[str, object]] = []
        while len(rows) < 2 and consumer.process.poll() is None:
            rows = json.loads(admin("lock-status", "--group", "lockers", "--broker", broker, "--json").stdout)
        assert consumer.stop() == 0

    assert [(row["group"], row["topic"], row["queue_id"]) for row in rows] == [("lockers", topic, q) for q in range(2)]
    assert len({row["owner"] for row in rows}) == 1
    assert all(isinstance(row["epoch"], int) and row["epoch"] > 0 for row in rows)
    assert json.loads(admin("lock-status", "--group", "lockers", "--broker", broker, "--json").stdout) == []


@pytest.mark.slow
def test_watching_goes_on_until_ctrl_c_also_without_a_broker(tmp_path: Path) -> None:
    watch = ("lock-status", "--watch", "--interval", "0.1", "--json")
    with ExitStack() as stack:
        process = stack.enter_context(BrokerProcess(tmp_path))
        watcher = stack.enter_context(Running("rmq.cli.rmq_admin", *watch, "--broker", process.address))
        watcher.wait_for(lambda lines: len(lines) > 1, "a second look")
        process.kill()
        watcher.wait_for(lambda _: bool(watcher.errors), "a word about the lost broker")
        assert watcher.stop(signal.SIGINT) == 0

    assert set(watcher.lines) == {"[]"}


@pytest.mark.slow
def test_watching_ends_quietly_when_the_reader_leaves(broker: str) -> None:
    watch = ["lock-status", "--watch", "--interval", "0.1", "--broker", broker]
    process = subprocess.Popen(
        [sys.executable, "-m", "rmq.cli.rmq_admin", *watch], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"GROUP")
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
