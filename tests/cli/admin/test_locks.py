"""The lock table, from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.cli.admin.locks import LOCK_COLUMNS, NARROW_COLUMNS, Layout, LockFilter, LockWatch, lock_object, lock_text
from rmq.cli.shell import exit_codes
from rmq.wire.protocol.ops.core import LockRow

from ..commands import admin
from rigs.processes import BrokerProcess, ConsumerProcess, Running

ROW = LockRow("billing", "orders", 2, "host@7#ab12cd34", "ab12cd34" + "0" * 24, 5 << 32, 61.25, 3.0, 57.0, "held")
RETRYING = ROW._replace(queue_id=3, state="held, retrying offset 17 (attempt 4)")
NOON = datetime(2026, 1, 31, 12, 0, 5, tzinfo=UTC)
TERMINAL = Layout(as_json=False, columns=80, lines=24)
PIPE = Layout(as_json=False)


# ---- tables


def test_a_lock_is_printed_with_all_its_fields() -> None:
    assert tuple(lock_object(ROW)) == LockRow._fields
    assert len(LOCK_COLUMNS) == len(LockRow._fields)


def test_the_session_is_shown_short() -> None:
    assert lock_object(ROW)["session"] == "ab12cd34"


def test_the_lock_table_for_people() -> None:
    heading, line = lock_text([ROW]).splitlines()

    assert heading.split() == [name.upper() for name in LOCK_COLUMNS]
    assert line.split() == [
        "billing", "orders", "2", "host@7#ab12cd34", "ab12cd34", str(5 << 32), "61.2s", "3.0s", "57.0s", "held",
    ]  # fmt: skip


def test_a_narrow_terminal_has_the_end_of_the_owner_and_the_troubles_below() -> None:
    heading, first, second, _, trouble = lock_text([ROW, RETRYING], 80).splitlines()

    assert heading.split() == [name.upper() for name in NARROW_COLUMNS]
    assert first.split() == ["billing", "orders/2", "ab12cd34", str(5 << 32), "61.2s", "3.0s", "57.0s", "held"]
    assert second.split()[-1] == "held"
    assert trouble == "billing, orders/3: retrying offset 17 (attempt 4)"


def test_a_wide_terminal_has_everything() -> None:
    assert lock_text([ROW], 200) == lock_text([ROW])


@given(st.text("abcdefgh-", min_size=1, max_size=127), st.text("abcdefgh_", min_size=1, max_size=127))
def test_however_long_names_are_80_columns_are_enough(group: str, topic: str) -> None:
    row = ROW._replace(group=group, topic=topic, owner="h" * 60 + "@7#ab12cd34", queue_id=1023)

    for line in lock_text([row], 80).splitlines():
        assert len(line) <= 80


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    row = ROW._replace(group="team-payments-" + "x" * 60 + "-billing", owner="h" * 60 + "@7#ab12cd34")
    cell = lock_text([row], 80).splitlines()[1].split()[0]

    assert cell.startswith("team-p")
    assert ".." in cell
    assert cell.endswith("illing")


# ---- watching


def test_a_look_of_a_watcher_begins_with_the_time() -> None:
    watch = LockWatch(LockFilter(topic="orders"), PIPE)

    assert watch.seen([ROW], NOON).splitlines()[0] == "12:00:05  1 lock of the topic 'orders'"
    assert watch.seen([], NOON) == "12:00:05  0 locks of the topic 'orders'\n\n"


def test_a_lost_broker_leaves_the_last_locks_in_the_terminal() -> None:
    watch = LockWatch(LockFilter(), TERMINAL)
    watch.seen([ROW], NOON)

    shown, said = watch.failed("no answer")

    assert "as it was at 12:00:05: no answer\nGROUP" in shown
    assert said == ""


def test_into_a_pipe_a_lost_broker_is_reported_once() -> None:
    watch = LockWatch(LockFilter(), PIPE)

    assert [watch.failed("gone"), watch.failed("gone")] == [("", "gone"), ("", "")]
    watch.seen([ROW], NOON)
    assert watch.failed("gone") == ("", "gone")


def test_more_locks_than_lines_end_in_a_count_of_the_rest() -> None:
    watch = LockWatch(LockFilter(), Layout(as_json=False, columns=80, lines=10))
    lines = watch.seen([ROW._replace(queue_id=i) for i in range(100)], NOON).splitlines()

    assert len(lines) < 10
    assert lines[-1] == "and 94 more lines: --group and --topic show fewer"


# ---- with a broker


@pytest.mark.slow
def test_a_group_without_locks_is_explained_on_standard_error(broker: str) -> None:
    table = admin("lock-status", "--group", "nobody", "--broker", broker)
    rows = admin("lock-status", "--group", "nobody", "--broker", broker, "--json")

    assert (table.exit_code, rows.exit_code) == (0, 0)
    assert table.stdout == ""
    assert table.stderr == "no locks: there is no group 'nobody': `rmq-admin group list` shows those that exist\n"
    assert json.loads(rows.stdout) == []


@pytest.mark.slow
def test_only_a_missing_topic_is_an_error_not_one_without_locks(broker: str, topic: str) -> None:
    admin("topic", "create", topic, "--broker", broker)
    known = admin("lock-status", "--topic", topic, "--broker", broker)
    unknown = admin("lock-status", "--topic", "nowhere", "--broker", broker)
    watched = admin("lock-status", "--topic", "nowhere", "--watch", "--broker", broker)

    assert (known.exit_code, known.stdout, known.stderr) == (0, "", f"the topic {topic!r} has no locks\n")
    assert (unknown.exit_code, unknown.stdout) == (exit_codes.NO_INPUT, "")
    assert "there is no topic 'nowhere'" in unknown.stderr
    assert watched.exit_code == exit_codes.NO_INPUT


@pytest.mark.slow
def test_the_lock_table_shows_the_owner_of_each_queue(broker: str, topic: str) -> None:
    admin("topic", "create", topic, "--queues", "2", "--broker", broker)
    admin("topic", "create", f"{topic}-2", "--queues", "1", "--broker", broker)

    def locks(*more: str) -> list[dict[str, object]]:
        found = admin("lock-status", "--group", "lockers", "--broker", broker, "--json", *more)
        return list(json.loads(found.stdout))

    with ConsumerProcess(broker, topic, "--topic", f"{topic}-2", "--group", "lockers") as consumer:
        rows: list[dict[str, object]] = []
        while len(rows) < 3 and consumer.process.poll() is None:
            rows = locks()
        of_one_topic = locks("--topic", topic)
        assert consumer.stop() == 0

    assert [(row["group"], row["topic"], row["queue_id"]) for row in of_one_topic] == [
        ("lockers", topic, 0),
        ("lockers", topic, 1),
    ]
    assert len({row["owner"] for row in rows}) == 1
    assert all(isinstance(row["epoch"], str) and int(row["epoch"]) > 0 for row in rows)
    assert locks() == []


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
        assert b"lock" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
