"""``python examples/pipeline``, as a user runs it: exact numbers at the end, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.orders import STATES, fails_at_first, two_days, with_faults

from rigs.processes import BrokerProcess

pytestmark = pytest.mark.slow

PIPELINE = Path(__file__).parents[3] / "examples" / "pipeline"
ORDERS, SEED = 150, 11


def start(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, str(PIPELINE), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.spark
def test_the_report_has_exactly_the_numbers_of_the_seeded_orders(tmp_path: Path) -> None:
    events = two_days(ORDERS, SEED)
    sent, planted = with_faults(events)
    wanted_by_mailing = sum(event.state in ("shipped", "delivered") for event in sent)
    failing = {event.event_id for event in sent if fails_at_first(event.event_id)} - {planted.poisoned}
    retried = sum(event.event_id in failing for event in sent) + 1

    with start(
        "--dir", str(tmp_path / "out"), "--orders", str(ORDERS), "--seed", str(SEED), "--queues", "4"
    ) as process:
        printed, errors = process.communicate(timeout=400)

    assert process.returncode == 0, errors
    report: dict[str, Any] = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["messages"], report["orders"], report["unreadable"]) == (len(sent), ORDERS, 0)
    totals = [sum(row[at] for _, row in report["hours"]) for at in range(len(STATES))]
    assert dict(zip(STATES, totals, strict=True)) == Counter(event.state for event in events)
    assert report["paid"]["orders"] == sum(event.state == "paid" for event in events)

    repeat, swap = sorted(report["faults"], key=lambda fault: fault["kind"], reverse=True)
    assert (repeat["kind"], repeat["order_id"]) == ("repeat", planted.repeated.split("/")[0])
    assert (swap["kind"], swap["order_id"]) == ("out of order", planted.swapped[0].split("/")[0])
    assert repeat["text"].startswith("paid came again: first at queue ")
    assert swap["text"].startswith("shipped (queue ")
    assert [queue["gaps"] + queue["repeats"] for queue in report["queues"]] == [[]] * 4
    assert sum(queue["messages"] for queue in report["queues"]) == len(sent)
    assert sum(queue["event_repeats"] for queue in report["queues"]) == 1

    (letter,) = report["dead_letters"]
    assert (letter["group"], letter["event_id"]) == ("billing", planted.poisoned)
    assert report["groups"] == [
        {
            "group": "billing", "passed": len(sent), "lag": 0, "wanted": len(sent), "consumed": len(sent) - 1,
            "repeated": 0, "retried": retried, "dead_lettered": 1, "disordered": 0,
        },
        {
            "group": "mailing", "passed": len(sent), "lag": 0, "wanted": wanted_by_mailing,
            "consumed": wanted_by_mailing, "repeated": 0, "retried": 0, "dead_lettered": 0, "disordered": 0,
        },
    ]  # fmt: skip
    # Written out, so that a change of the seeded orders, or of a count that both sides share, is seen.
    assert (report["messages"], retried, wanted_by_mailing) == (612, 12, 184)
    assert totals == [150, 136, 127, 116, 68, 14]
    paid = report["paid"]
    assert (paid["median_s"], paid["p95_s"], paid["longest_s"]) == pytest.approx(
        (226.6975, 1417.575, 15002.398), abs=1e-6
    )
    assert (repeat["order_id"], swap["order_id"], letter["event_id"]) == ("o-00050", "o-00013", "o-00093/paid")

    assert (tmp_path / "out" / "report.txt").read_text() in printed
    assert printed.splitlines()[-1].startswith(f"pipeline: the report is in {tmp_path / 'out' / 'report.html'}")
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()
    assert {folder.name for folder in (tmp_path / "out" / "parquet").glob("day=*/state=*")} == {
        f"state={state}" for state in STATES
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_that_was_started_and_leaves_no_folder(tmp_path: Path, number: int) -> None:
    with start("--orders", "20000", env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        assert process.stdout is not None
        while "events sent" not in (line := process.stdout.readline()):
            assert line, process.stderr and process.stderr.read()
        started = children(process.pid)
        assert len(started) == 5  # a broker, three members, the producer
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 1
    assert errors.splitlines()[-1] in ("pipeline: interrupted", "pipeline: ended by SIGTERM")
    assert [pid for pid in started if running(pid)] == []
    assert list(tmp_path.glob("rmq-pipeline-*")) == []


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    with start("--dir", str(tmp_path)) as process:
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 1
    assert errors == (
        f"pipeline: {tmp_path} is not empty: name a new folder, so that nothing of yours is mixed up or lost\n"
    )


def test_a_step_against_a_broker_that_runs_says_what_it_did(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, start("produce", "--broker", broker.address, "--orders", "60") as process:
        printed, errors = process.communicate(timeout=60)

    assert process.returncode == 0, errors
    sent, planted = with_faults(two_days(60, 1))
    assert printed.splitlines()[0] == f"pipeline: {len(sent)} of {len(sent)} events sent"
    assert f"planted: {planted.repeated} sent twice, " in printed


def test_without_a_broker_a_step_says_so_in_one_line() -> None:
    with start("produce", "--broker", "127.0.0.1:1", "--orders", "60") as process:
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 1
    assert errors.startswith("pipeline: ")
    assert errors.count("\n") == 1


def test_without_spark_it_says_so_before_it_does_anything(tmp_path: Path) -> None:
    hidden = f"import runpy, sys; sys.modules['pyspark'] = None; runpy.run_path({str(PIPELINE)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", hidden],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pipeline: the report needs Spark: pip install")
    assert list(tmp_path.iterdir()) == []
