"""
A pytest plugin for CI: a run in which anything was left out has failed.

Skipped, expected to fail, deselected: each is named, and the exit code becomes 1. On with ``--fail-on-skip`` or with
``CI=true`` in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

__all__ = ["NoSkips", "wanted"]


def wanted(config: pytest.Config) -> bool:
    return bool(config.getoption("--fail-on-skip")) or os.environ.get("CI", "").lower() in ("1", "true", "yes")


class NoSkips:
    """Collects what did not run as a real test, and fails the session for it."""

    def __init__(self) -> None:
        self.left_out: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "wasxfail"):
            self.left_out.append(f"expected to fail: {report.nodeid} ({report.wasxfail or 'no reason'})")
        elif report.skipped:
            self.left_out.append(f"skipped: {report.nodeid} ({_reason(report.longrepr)})")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.left_out.append(f"skipped: {report.nodeid} ({_reason(report.longrepr)})")

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.left_out.extend(f"deselected: {item.nodeid}" for item in items)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.left_out and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left_out:
            terminalreporter.section("left out, which fails this run", red=True)
            for line in self.left_out:
                terminalreporter.line(line)


def _reason(longrepr: object) -> str:
    # A skip is reported as (file, line, "Skipped: reason").
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
