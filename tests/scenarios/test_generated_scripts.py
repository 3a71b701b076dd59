"""
Generated scripts: whatever befalls a group, its queues are processed in order, and everything is processed in the end.

Replay a seed that failed with ``--seed N``; the failure prints its script, which can be played as it is. Some things of
equal time happen in another order the next time: exactly what happened is judged again by the ``--replay FILE`` that
the failure names. ``make test`` plays 300 seeds, ``make chaos`` 5,000. The number of fenced overlaps, which the
contract allows, is printed at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.scripts import ordered_script
from simulation.seeds import parametrize, play_seeds

SEEDS = 300

pytestmark = pytest.mark.slow


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, SEEDS)


def test_whatever_befalls_a_group_its_queues_are_processed_in_order_to_the_end(
    seeds: range, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    verdicts = play_seeds(seeds, ordered_script, "scripts", request.config.getoption("--replay"))

    record_property("scripts", len(seeds))
    record_property("calls", sum(verdict.calls for verdict in verdicts))
    record_property("fenced overlaps", sum(verdict.fenced_overlaps for verdict in verdicts))
