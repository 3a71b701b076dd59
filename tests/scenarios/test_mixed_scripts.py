"""
Generated scripts of the other modes: concurrent, broadcasting and pull members, delays, retries and dead letters.

As in test_generated_scripts.py, ``--seed N`` plays one seed and ``--replay FILE`` judges exactly what a failure has
saved. ``make test`` plays 100 seeds, ``make chaos`` 2,000.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.mixed_fleet import MixedPlayed, play_mixed
from simulation.mixed_scripts import MixedScript, mixed_script
from simulation.verdict import MixedVerdict, judge_mixed

SEEDS = 100
TOGETHER = 25  # seeds of one test, so that the report stays readable
SAVED = Path(__file__).parent.parent.parent / ".cache" / "mixed-scripts"

pytestmark = pytest.mark.slow


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The seeds, in parts: one, as many as were asked for, or 100."""
    if "seeds" not in metafunc.fixturenames:
        return
    one, many = metafunc.config.getoption("--seed"), metafunc.config.getoption("--chaos-seeds") or SEEDS
    seeds = range(1, many + 1) if one is None else range(one, one + 1)
    parts = [seeds[at : at + TOGETHER] for at in range(0, len(seeds), TOGETHER)]
    metafunc.parametrize("seeds", parts, ids=[f"seeds{part[0]}-{part[-1]}" for part in parts])


def judged(one: MixedScript, played: MixedPlayed) -> MixedVerdict:
    verdict = judge_mixed(played.history, played.rows, one.groups, played.levels, grace_s=played.grace_s)
    verdict.violations.extend(played.troubles)
    return verdict


def save(one: MixedScript, played: MixedPlayed) -> Path:
    path = SAVED / f"{one.seed}.pickle"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps((one, played)))
    return path


def test_whatever_befalls_groups_of_any_mode_each_message_is_processed_or_given_up_and_nothing_is_early_or_lost(
    seeds: range, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    replay: Path | None = request.config.getoption("--replay")
    verdicts = []
    for seed in seeds:
        one = mixed_script(seed)
        one, played = (one, play_mixed(one)) if replay is None else pickle.loads(replay.read_bytes())
        verdict = judged(one, played)
        if verdict.violations:
            again = f"replay with --seed {one.seed}, or exactly with --replay {replay or save(one, played)}"
            pytest.fail(f"{one}\n{verdict}\n{again}", pytrace=False)
        verdicts.append(verdict)

    record_property("mixed scripts", len(seeds))
    for what in ("calls", "fenced_overlaps", "strict", "again", "dead", "retried", "local"):
        record_property(f"mixed {what.replace('_', ' ')}", sum(getattr(verdict, what) for verdict in verdicts))
