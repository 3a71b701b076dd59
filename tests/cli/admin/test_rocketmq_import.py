"""``rmq-admin import-rocketmq``: reports, exit codes, and a run of the real process that is killed and repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rmq.cli.admin.rocketmq_import import report_object, report_text, summary
from rmq.cli.output.render import to_json
from rmq.cli.shell import exit_codes
from rmq.client.importer.plan import Plan, Wishes, make_plan
from rmq.client.importer.survey import RocketMQStore
from rmq.client.importer.take_over import ImportResult

from ..commands import admin
from rigs.processes import Running
from rigs.rocketmq_store import StoreBuilder


def do(*arguments: str | Path) -> Result:
    return admin("import-rocketmq", *map(str, arguments))


def report(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def build(root: Path, topic: str, count: int = 10) -> Path:
    with StoreBuilder(root) as store:
        for n in range(count):
            store.put(topic, n % 2, b"body %d" % n, tags="a")
        store.delay(topic, 0, b"late", 1)
        store.offsets({f"{topic}@g-{topic}": {0: 1, 1: 2}})
    return root


def damaged(root: Path, topic: str) -> Path:
    path = build(root, topic) / "commitlog" / f"{0:020}"
    path.write_bytes(path.read_bytes().replace(b"body 3", b"bodY 3"))
    return root


def described(broker: str, topic: str) -> dict[str, Any]:
    result = admin("topic", "describe", topic, "--json", "--broker", broker)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_store_is_taken_over_and_a_second_run_finds_nothing_to_do(tmp_path: Path, broker: str, topic: str) -> None:
    root = build(tmp_path / "store", topic)

    first, second = do(root, "--broker", broker, "--json"), do(root, "--broker", broker)

    assert first.exit_code == 0, first.output
    assert report(first)["result"] == {"sent": 10, "sent_before": 0, "waiting_sent": 1, "waiting_sent_before": 0}
    assert [row["new_offset"] for row in report(first)["groups"]] == [1, 2]
    assert second.exit_code == 0, second.output
    assert second.stdout.endswith("10 messages of 1 topic, 1 delayed: all are stored; 11 of them by an earlier run\n")
    found = described(broker, topic)
    assert [queue["max_offset"] for queue in found["queues"]] == [6, 5]
    assert found["groups"][0]["group"] == f"g-{topic}"


def test_a_dry_run_asks_no_broker(tmp_path: Path, nowhere: str) -> None:
    result = do(build(tmp_path / "store", "t"), "--dry-run", "--broker", nowhere)

    assert result.exit_code == 0
    assert result.stdout.endswith("10 messages of 1 topic, 1 delayed: nothing was sent\n")


def test_without_a_broker_nothing_is_done(tmp_path: Path, nowhere: str) -> None:
    result = do(build(tmp_path / "store", "t"), "--broker", nowhere)

    assert result.exit_code == exit_codes.UNAVAILABLE
    assert result.stderr.count("\n") == 1


def test_a_damaged_store_is_reported_and_not_imported(tmp_path: Path, broker: str, topic: str) -> None:
    root = damaged(tmp_path / "store", topic)

    result = do(root, "--broker", broker)

    assert result.exit_code == exit_codes.DATA_ERROR
    (line,) = result.stderr.splitlines()
    assert "rmq-admin: the store is damaged in 1 place, the first: 00000000000000000000 at " in line
    assert line.endswith(f"checksum (lost: {topic}/1 @1); --skip-damaged imports the rest")
    assert "damaged\n- 00000000000000000000 at " in result.stdout
    missing = admin("topic", "describe", topic, "--broker", broker)
    assert missing.exit_code == exit_codes.NO_INPUT


def test_the_rest_of_a_damaged_store_is_imported_when_asked_for(tmp_path: Path, broker: str, topic: str) -> None:
    result = do(damaged(tmp_path / "store", topic), "--broker", broker, "--skip-damaged", "--json")

    assert result.exit_code == exit_codes.PARTIAL
    assert result.stderr == "rmq-admin: 1 damaged place was left out: see the report\n"
    told = report(result)
    assert told["queues"][1] == {
        "topic": topic, "queue_id": 1, "messages": 4, "old_first": 0, "old_last": 4, "new_first": 0, "new_last": 3,
        "holes": 1, "old_topic": topic,
    }  # fmt: skip
    assert [row["new_offset"] for row in told["groups"]] == [1, 1], (
        "offset 2 is the message behind the one that is lost"
    )
    assert told["damage"][0]["lost"] == [f"{topic}/1 @1"]


def test_a_topic_in_use_is_refused(tmp_path: Path, broker: str, topic: str) -> None:
    assert do(build(tmp_path / "a", topic, 4), "--broker", broker).exit_code == 0

    result = do(build(tmp_path / "b", topic, 2), "--broker", broker)

    assert result.exit_code == exit_codes.REFUSED
    assert "that this import did not send: import into topics that are empty" in result.stderr


def test_names_and_topics_are_chosen(tmp_path: Path, broker: str, topic: str) -> None:
    with StoreBuilder(tmp_path / "store") as store:
        store.put("a|b", 0, b"x")
        store.put("other", 0, b"y")
        store.offsets({"a|b@g|h": {0: 1}})
    names = ["--map", f"a|b={topic}", "--map-group", f"g|h=g-{topic}"]

    result = do(tmp_path / "store", "--topic", "a|b", *names, "--broker", broker, "--json")

    assert result.exit_code == 0, result.output
    told = report(result)
    assert told["topics"] == [{"old": "a|b", "new": topic, "queues": 1}]
    assert told["groups"][0]["group"] == f"g-{topic}"
    assert told["left_out"] == {"other topics": 1}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--map", "x"], exit_codes.USAGE, "'x' is not OLD=NEW"),
        (["--map", "a=b", "--map", "a=c"], exit_codes.USAGE, "'a' is given two names"),
        (["--topic", "nope"], exit_codes.NO_INPUT, "the store has no topic 'nope'"),
        (["--map", "t=a b"], exit_codes.DATA_ERROR, "may hold only letters"),
    ],
)
def test_a_wrong_wish_is_one_line(tmp_path: Path, arguments: list[str], code: int, text: str) -> None:
    result = do(build(tmp_path / "store", "t"), *arguments, "--dry-run")

    assert result.exit_code == code
    assert text in result.stderr


def test_a_folder_that_is_not_a_store_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "notes.txt").touch()

    for path, code, text in (
        (tmp_path / "nothing", exit_codes.NO_INPUT, "is not a folder: give the root folder of a store"),
        (tmp_path, exit_codes.DATA_ERROR, "notes.txt does not belong there"),
    ):
        result = do(path, "--dry-run")
        assert result.exit_code == code
        assert text in result.stderr
        assert result.stderr.count("\n") == 1


NAME = f"{0:020}"


@pytest.mark.parametrize(
    "place", [f"commitlog/{NAME}", f"consumequeue/t/0/{NAME}", "config/topics.json", "config/consumerOffset.json"]
)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_a_pipe_or_folder_in_place_of_a_file_is_refused_in_one_line(
    tmp_path: Path, place: str, make: Callable[[Path], None]
) -> None:
    root = build(tmp_path / "store", "t")
    path = root / place
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)

    with Running("rmq.cli.rmq_admin", "import-rocketmq", str(root), "--dry-run") as process:
        assert process.wait() == exit_codes.DATA_ERROR
    (line,) = process.errors
    assert f"{path} is not a file but a folder, a pipe or a device: no store has one there; take it away" in line


def test_a_pipe_in_place_of_the_lock_keeps_no_import_waiting(tmp_path: Path) -> None:
    root = build(tmp_path / "store", "t")
    (root / "lock").unlink(missing_ok=True)
    os.mkfifo(root / "lock")

    with Running("rmq.cli.rmq_admin", "import-rocketmq", str(root), "--dry-run") as process:
        process.wait()


def test_a_store_whose_broker_runs_is_refused(tmp_path: Path) -> None:
    root = build(tmp_path / "store", "t")
    code = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 0, 0); print(flush=True)"
    holding = [sys.executable, "-S", "-c", f"{code}; sys.stdin.read()", os.fspath(root / "lock")]
    with subprocess.Popen(holding, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        result = do(root, "--dry-run")
        process.communicate()

    assert result.exit_code == exit_codes.TEMPORARY
    assert f"is running (process {process.pid}): stop it first, or import a copy" in result.stderr


@pytest.mark.slow
def test_a_real_import_that_is_killed_is_completed_by_the_next(tmp_path: Path, broker: str, topic: str) -> None:
    with StoreBuilder(tmp_path / "store", file_size=1 << 20) as store:
        for n in range(6000):
            store.put(topic, n % 4, b"%d" % n)
    arguments = ("import-rocketmq", str(tmp_path / "store"), "--broker", broker, "--json")

    with Running("rmq.cli.rmq_admin", *arguments) as killed:
        stored = 0
        while not stored and killed.process.poll() is None:
            result = admin("topic", "describe", topic, "--json", "--broker", broker)
            stored = sum(q["max_offset"] for q in json.loads(result.stdout)["queues"]) if not result.exit_code else 0
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
    with Running("rmq.cli.rmq_admin", *arguments) as process:
        assert process.wait() == 0, process.errors
        told = json.loads(process.lines[0])

    assert 0 < stored <= told["result"]["sent_before"]
    assert told["result"]["sent_before"] + told["result"]["sent"] == 6000
    assert [queue["max_offset"] for queue in described(broker, topic)["queues"]] == [1500] * 4


def plan_of(root: Path) -> Plan:
    with StoreBuilder(root, start=4096, first_offsets={("orders", 1): 70}) as store:
        store.topics(**{"orders": 2, "%RETRY%billing": 1})
        for n in range(6):
            store.put("orders", n % 2, b"%d" % n)
        store.put("%RETRY%billing", 0, b"again")
        store.put("orders", 0, sysflag=4)
        store.put("SELF_TEST_TOPIC")
        store.delay("orders", 1, b"later", 3)
        store.offsets({"orders@billing": {0: 2, 1: 72}})
        store.delays({3: 0})
        store.config["subscriptionGroup.json"] = "{}"
    return make_plan(RocketMQStore(root), Wishes())


REPORT = """\
messages
TOPIC          QUEUE  MESSAGES  OLD_OFFSETS  NEW_OFFSETS  OLD_TOPIC
RETRY-billing      0         1          0-0          0-0  %RETRY%billing
orders             0         3          0-2          0-2
orders             1         3        70-72          0-2

delayed
TOPIC   QUEUE  MESSAGES             FIRST_DUE              LAST_DUE
orders      1         1  2023-11-14T22:13:30Z  2023-11-14T22:13:30Z

progress of groups
GROUP    TOPIC   QUEUE  OLD_OFFSET  NEW_OFFSET
billing  orders      0           2           2
billing  orders      1          72           2

left out
KIND                          MESSAGES
prepared                             1
system topic SELF_TEST_TOPIC         1

7 messages of 2 topics, 1 delayed: nothing was sent
"""


def test_a_report_for_people_fits_a_terminal(tmp_path: Path) -> None:
    text = report_text(plan_of(tmp_path), None)

    assert text == REPORT
    assert max(map(len, text.splitlines())) <= 80


def test_a_report_for_programs_has_all_of_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)

    told = json.loads(to_json(report_object(plan, ImportResult(sent=4, before=3, deferred_sent=1))))

    assert (told["messages"], told["waiting"]) == (7, 1)
    assert told["result"] == {"sent": 4, "sent_before": 3, "waiting_sent": 1, "waiting_sent_before": 0}
    assert told["queues"][2] == {
        "topic": "orders", "queue_id": 1, "messages": 3, "old_first": 70, "old_last": 72, "new_first": 0,
        "new_last": 2, "holes": 0, "old_topic": "orders",
    }  # fmt: skip
    assert told["left_out"] == {"prepared": 1, "system topic SELF_TEST_TOPIC": 1}
    assert told["damage"] == told["notes"] == []
    assert told["log"]["torn_bytes"] == 0


def test_progress_that_was_not_moved_is_reported(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)

    text = report_text(plan, ImportResult(sent=7, deferred_sent=1, groups=[(plan.groups[0], 9)]))

    assert "billing  orders      0           2           9  was here before: not moved to 2" in text


def test_the_part_of_an_earlier_run_is_reported(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)

    assert summary(plan, ImportResult(sent=7, deferred_sent=1)).endswith(
        "7 messages of 2 topics, 1 delayed: all are stored"
    )
    assert summary(plan, ImportResult(sent=4, before=3, deferred_sent=1)).endswith("; 3 of them by an earlier run")


def test_damage_and_notes_are_lines_that_no_terminal_obeys(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t", 0, b"body")
        store.put("t", 0, b"body")
    path = tmp_path / "commitlog" / f"{0:020}"
    path.write_bytes(path.read_bytes().replace(b"body", b"\x1bdoy", 1))
    plan = make_plan(RocketMQStore(tmp_path), Wishes())
    plan.notes = ["a note \x1b[2J"]

    text = report_text(plan, None)

    where = "- 00000000000000000000 at 0: the record has a body that does not match its checksum (lost: t/0 @0)\n"
    assert f"damaged\n{where}\nnotes\n" in text
    assert "notes\n- a note \\x1b[2J\n" in text
