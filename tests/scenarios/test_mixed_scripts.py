"""
Generated scripts of the other modes: concurrent, broadcasting and pull members, delays, retries and dead letters.

As in test_generated_scripts.py, ``--seed N`` plays one seed and ``--replay FILE`` judges exactly what a failure has
saved. ``make test`` plays 100 seeds, ``make chaos`` 2,000.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.scripts import mixed_script
from simulation.seeds import parametrize, play_seeds

SEEDS = 100

pytestmark = pytest.mark.slow


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, SEEDS)


def test_whatever_befalls_groups_of_any_mode_each_message_is_processed_or_given_up_and_nothing_is_early_or_lost(
    seeds: range, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    verdicts = play_seeds(seeds, mixed_script, "mixed-scripts", request.config.getoption("--replay"))

    record_property("mixed scripts", len(seeds))
    for what in ("calls", "fenced_overlaps", "strict", "again", "dead", "retried", "local"):
        record_property(f"mixed {what.replace('_', ' ')}", sum(getattr(verdict, what) for verdict in verdicts))
