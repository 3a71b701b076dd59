"""
A pytest plugin that prints, at the end of a run, the numbers which tests recorded with ``record_property``.

Numbers of the same name that were recorded by the same test function are added up over its parameters.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

__all__ = ["RecordedNumbers"]


class RecordedNumbers:
    """Adds up and prints."""

    def __init__(self) -> None:
        self.totals: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for name, value in report.user_properties:
                if isinstance(value, int):
                    self.totals[report.nodeid.partition("[")[0]][name] += value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.totals:
            terminalreporter.section("numbers that tests recorded")
            for test, numbers in self.totals.items():
                shown = ", ".join(f"{value} {name}" for name, value in numbers.items())
                terminalreporter.line(f"{test}: {shown}")
