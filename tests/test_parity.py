"""``docs/rocketmq-parity.md`` tells the truth: every row is there, and what shows it is collected by pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "rocketmq-parity.md"
FEATURES = range(1, 150)
SCENARIOS = (*range(1, 81), *range(92, 101))
DONE = ("done", "done, differently")
LATER = ("concurrent mode", "broadcasting", "delays", "retries of the concurrent mode", "name server")


class Row(NamedTuple):
    """A line of one of the tables."""

    number: int
    words: str
    state: str
    shown_by: tuple[str, ...]


def rows_under(heading: str) -> list[Row]:
    """The rows of the table behind a heading."""
    _, found, rest = DOCUMENT.read_text().partition(f"## {heading}\n")
    assert found, f"there is no heading {heading!r}"
    rows = []
    for line in rest.partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].isdigit():
            number, words, state, tests = cells
            rows.append(Row(int(number), words, state, tuple(re.findall(r"`([^`]+)`", tests))))
    return rows


TABLES = {"Features": FEATURES, "Scenarios": SCENARIOS}


@pytest.mark.parametrize(("heading", "numbers"), TABLES.items())
def test_every_row_is_there_once_and_in_order(heading: str, numbers: range | tuple[int, ...]) -> None:
    assert [row.number for row in rows_under(heading)] == list(numbers)


@pytest.mark.parametrize("heading", TABLES)
def test_what_is_done_is_shown_by_a_test_and_what_is_not_says_what_it_waits_for(heading: str) -> None:
    for row in rows_under(heading):
        if row.state in DONE:
            assert row.shown_by, f"row {row.number} names no test"
        else:
            assert row.state.removeprefix("not yet: ") in LATER, f"row {row.number}: {row.state!r}"
            assert not row.shown_by, f"row {row.number} is not done, and yet shown"


def test_every_test_that_is_named_is_collected() -> None:
    named = {test for heading in TABLES for row in rows_under(heading) for test in row.shown_by}
    files = sorted({test.partition("::")[0] for test in named})

    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    collected = {line.partition("[")[0] for line in listed.stdout.splitlines()}
    assert named <= collected, f"not collected: {sorted(named - collected)}\n{listed.stdout[-2000:]}{listed.stderr}"
