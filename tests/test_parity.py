"""Every row of ``docs/rocketmq-parity.md`` is complete, and pytest collects the tests that it names."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "rocketmq-parity.md").read_text()
TABLES: dict[str, Sequence[int]] = {
    "Features": range(1, 150),
    "Scenarios": (*range(1, 81), *range(92, 101)),
    "RocketMQ's integration tests": range(1, 17),
    "Timers": range(1, 13),
    "Holes closed": range(1, 27),
}
ALL_DONE = ("Timers", "Holes closed")  # nothing of these may wait
DONE, DIFFERENTLY = "done", "done, differently"
LATER = ("name server", "replication")
HEADER = ["number", "what", "state", "shown by"]


class Row(NamedTuple):
    """One row of a table."""

    number: int
    words: str
    state: str
    shown_by: str

    @property
    def tests(self) -> list[str]:
        """Return the tests that the row names."""
        return re.findall(r"`([^`]+)`", self.shown_by)


def rows_under(heading: str, document: str) -> list[Row]:
    """Return the rows of the table under a heading; fail at a line that cannot be read as a row."""
    _, found, rest = document.partition(f"\n## {heading}\n")
    assert found, f"there is no heading {heading!r}"
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.lstrip().startswith("|")]
    header, rule, *body = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    assert header == HEADER, f"{heading}: the columns are {header}"
    assert set(rule) == {"---"}
    assert all(len(cells) == len(HEADER) and cells[0].isdigit() for cells in body), f"{heading}: a line is no row"
    return [Row(int(number), *rest) for number, *rest in body]


def faults(document: str) -> list[str]:
    """Return every fault of the page, except named tests that do not exist."""
    found = []
    for heading, numbers in TABLES.items():
        rows = rows_under(heading, document)
        if [row.number for row in rows] != list(numbers):
            found.append(f"{heading}: the rows are not {numbers}, each once and in order")
        for row in rows:
            found += [f"{heading} {row.number}: {fault}" for fault in faults_of(row, may_wait=heading not in ALL_DONE)]
    return found


def faults_of(row: Row, *, may_wait: bool) -> list[str]:
    """Return the faults of a row."""
    found = []
    if len(row.words) < 10:
        found.append("it does not say what")
    if row.shown_by != ", ".join(f"`{test}`" for test in row.tests):
        found.append("it is shown by something that is no test")
    if row.state in (DONE, DIFFERENTLY):
        if not row.tests:
            found.append("it names no test")
        if row.state == DIFFERENTLY and "RocketMQ" not in row.words:
            found.append("it does not say what RocketMQ does")
    elif not (may_wait and row.state.startswith("not yet: ") and row.state.removeprefix("not yet: ") in LATER):
        found.append(f"{row.state!r} is no state of it")
    elif row.tests:
        found.append("it is not done, and yet shown")
    return found


def not_collected(tests: set[str]) -> set[str]:
    """Return those of the tests that pytest does not collect."""
    files = sorted({test.partition("::")[0] for test in tests} & {str(path) for path in _test_files()})
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert listed.returncode == 0, listed.stdout[-2000:] + listed.stderr[-2000:]
    return tests - {line.partition("[")[0] for line in listed.stdout.splitlines()}


def _test_files() -> list[Path]:
    return [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]


def test_every_row_is_complete() -> None:
    assert faults(DOCUMENT) == []


def test_every_named_test_is_collected_and_a_missing_one_is_reported() -> None:
    named = {test for heading in TABLES for row in rows_under(heading, DOCUMENT) for test in row.tests}
    assert len(named) > 200
    here = f"tests/{Path(__file__).name}::"
    missing = {f"{here}test_that_nobody_wrote", "tests/test_nowhere.py::test_x"}

    assert not_collected({f"{here}test_a_wrong_page_is_reported", *named, *missing}) == missing


def changed(pattern: str, by: str) -> Callable[[str], str]:
    """Return a function that replaces the first match in the page."""

    def change(document: str) -> str:
        after, count = re.subn(pattern, by, document, count=1, flags=re.MULTILINE)
        assert count == 1, f"nothing matches {pattern!r}"
        return after

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (changed(r"^\| 77 .*\n", ""), "Features: the rows are not"),
        (changed(r"^(\| 100 \| Joins.*\n)", r"\1\1"), "Scenarios: the rows are not"),
        (changed(r"^(\| 5 \| .* \| done \|).*\|$", r"\1  |"), "Features 5: it names no test"),
        (changed(r"^(\| 5 \| .* \| done \|).*\|$", r"\1 by and by |"), "Features 5: it is shown by something"),
        (changed(r"^(\| 5 \| .* \|) done (\|)", r"\1 not yet: time \2"), "Features 5: 'not yet: time' is no state"),
        (changed(r"^(\| 5 \| .* \|) done (\|)", r"\1 almost \2"), "Features 5: 'almost' is no state"),
        (changed(r"^(\| 5 \| .* \|) done (\|)", r"\1 not yet: name server \2"), "Features 5: it is not done, and"),
        (changed(r"^(\| 5 \| .* \|) done (\|)", r"\1 done, differently \2"), "Features 5: it does not say"),
        (changed(r"^(\| 26 \| A neg.* \|) done \|.*\|$", r"\1 not yet: delays | |"), "Holes closed 26: 'not"),
    ],
)  # fmt: skip
def test_a_wrong_page_is_reported(change: Callable[[str], str], fault: str) -> None:
    assert [line for line in faults(change(DOCUMENT)) if line.startswith(fault)]
