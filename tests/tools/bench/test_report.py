"""The page of the benchmarks follows from its JSON: ratios first, nothing unfavourable left out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from charts import plots
from findings import NotAReport, read
from report import BEGINS, ENDS, NOTHING, placed, report, stale_plots, text

from rigs.bench_results import everything

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def run(docs: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "bench" / "report.py"), str(docs)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_page_and_its_plots_are_made_from_the_json_that_is_kept() -> None:
    made = report(DOCS)

    assert [path.name for path, content in made.items() if not path.exists() or path.read_text() != content] == [], (
        "make bench-report"
    )
    assert stale_plots(DOCS, made) == []


def test_text_around_the_part_stays() -> None:
    page = f"# Benchmarks\n\n{BEGINS}\nold\n{ENDS}\n\n## Method\n"

    assert placed(page, "new\n") == f"# Benchmarks\n\n{BEGINS}\n\nnew\n\n{ENDS}\n\n## Method\n"
    assert placed(placed(page, "new"), "new") == placed(page, "new")


def test_a_page_without_a_place_for_it_is_refused() -> None:
    with pytest.raises(NotAReport, match="no place for the report"):
        placed(f"# Benchmarks\n{ENDS}\n", "new")


def test_files_are_written_and_plots_of_a_former_report_removed(tmp_path: Path) -> None:
    (tmp_path / "benchmarks.json").write_text(json.dumps(everything()))
    (tmp_path / "benchmarks.md").write_text(f"{BEGINS}\n{ENDS}\n")
    (tmp_path / "images").mkdir()
    for name in ("bench-old.svg", "batch.svg"):
        (tmp_path / "images" / name).write_text("<svg/>")

    assert (ended := run(tmp_path)).returncode == 0, ended.stderr

    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == [
        "batch.svg", "bench-latency.svg", "bench-produce-size-100.svg", "bench-scale.svg", "bench-targets.svg",
    ]  # fmt: skip
    assert "### Ratios" in (tmp_path / "benchmarks.md").read_text()
    assert {path: path.read_text() for path in report(tmp_path)} == report(tmp_path)


def test_a_quick_run_leaves_everything_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "benchmarks.json").write_text(json.dumps({**everything(), "quick": True}))
    (tmp_path / "benchmarks.md").write_text("as it was")

    ended = run(tmp_path)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("bench-report: this was a quick run")
    assert (tmp_path / "benchmarks.md").read_text() == "as it was"


def made() -> str:
    found = read(everything())
    return text(found, plots(found))


def section(name: str) -> str:
    return re.split(r"^### ", made(), flags=re.MULTILINE)[1:][
        ["Ratios", "What was measured, and how", "Plots", "Unfavourable cases"].index(name)
    ]


def test_ratios_come_first_then_method_plots_and_unfavourable_cases() -> None:
    assert re.findall(r"^### (.*)$", made(), re.MULTILINE) == [
        "Ratios", "What was measured, and how", "Plots", "Unfavourable cases",
    ]  # fmt: skip


def test_each_target_has_what_is_wanted_what_was_found_and_the_command_that_repeats_it() -> None:
    ratios = section("Ratios")

    assert "Targets met: 3, not met: 2, not shown: 2." in ratios
    assert (
        "| P1.floor | of the floor | >= 0.5 | **0.700** (0.600 to 0.800) | met | async "
        "| `rmq-bench produce --size 100` |" in ratios
    )
    assert "| <= 3 ms | **6.00** ms (5.00 to 7.00) | **NOT MET** | async | `rmq-bench latency` |" in ratios
    assert "| >= 4 | - | not shown: nats-server is not installed |" in ratios
    assert "![Targets, and what was found](images/bench-targets.svg)" in ratios


def test_each_figure_has_its_key_and_its_durability() -> None:
    method = section("What was measured, and how")

    assert "The machine: cores 2, fdatasync ms 0.123." in method
    assert "#### Sending: `rmq-bench produce --size 100`\n\nMessages 1,000, size 100, rounds 3." in method
    assert "| `produce.bodies` | bodies, by send_bodies | async | **100** | 90.0 to 110 | msg/s |" in method
    assert "| `produce.floor` | a bare loop | - | **160** | 150 to 170 | msg/s |" in method
    assert "| XADD \\| MAXLEN | appendonly, each second |" in method
    assert "`rmq-bench recovery`\n\nNot shown: the disk is full." in method


def test_unfavourable_cases_are_listed() -> None:
    against = section("Unfavourable cases")

    assert "- **P7.wake.p99**, send to listener, p99 (async): **6.00** ms" in against
    assert "wanted <= 3 ms: 2.0 times as much" in against
    assert "wanted >= 0.8: 25% short" in against
    assert "- **P1.peer**, of a peer (async): **4.20** (3.00 to 5.00), wanted >= 4: missed in 1 of 3" in against
    assert "XADD | MAXLEN (appendonly, each second) 30.0 msg/s, Message objects (async) 20.0: 67% of it" in against
    assert "- **P1.nats**, of another peer (async): nats-server is not installed" in against
    assert "- **P9**, by rmq-bench recovery: the disk is full" in against


def test_a_run_without_unfavourable_cases_says_so() -> None:
    printed = everything()
    printed["reports"] = [printed["reports"][2]]
    printed["verdicts"] = printed["reports"][0]["verdicts"][:1]
    found = read(printed)

    assert "every target was met, in every round" in text(found, plots(found))


def test_without_a_run_it_says_how_to_make_one() -> None:
    assert text(read({"benchmark": "all", "reports": []}), []) == NOTHING
