"""The page of the benchmarks is what its JSON gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rmq.bench.findings import NotAReport
from rmq.bench.report import BEGINS, ENDS, placed, report, stale_plots

from rigs.made_up_findings import everything

DOCS = Path(__file__).parents[2] / "docs"


def run(docs: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rmq.bench.report", str(docs)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_page_and_its_plots_are_made_from_the_json_that_is_kept() -> None:
    made = report(DOCS)

    assert [path.name for path, content in made.items() if not path.exists() or path.read_text() != content] == [], (
        "make bench-report"
    )
    assert stale_plots(DOCS, made) == []


def test_what_is_written_around_the_part_stays() -> None:
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
