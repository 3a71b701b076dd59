"""Numbers that tests record are added up over their parameters and shown at the end."""

from __future__ import annotations

import pytest

from rigs.recorded_numbers import RecordedNumbers


def report(nodeid: str, **numbers: object) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid, (nodeid, 1, nodeid), {}, "passed", None, "call", user_properties=list(numbers.items())
    )


def test_numbers_of_one_test_are_added_up_and_other_values_left_out() -> None:
    plugin = RecordedNumbers()

    for made in (
        report("t.py::test_a[1]", seeds=3, name="x"),
        report("t.py::test_a[2]", seeds=4),
        report("t.py::test_b"),
    ):
        plugin.pytest_runtest_logreport(made)

    assert plugin.totals == {"t.py::test_a": {"seeds": 7}}
