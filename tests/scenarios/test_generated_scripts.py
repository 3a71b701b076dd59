"""
Generated scripts: whatever befalls a group, its queues are processed in order, and everything is processed in the end.

Replay a seed that failed with ``--seed N``; the failure prints its script, which can be played as it is. Some things of
equal time happen in another order the next time: exactly what happened is judged again by the ``--replay FILE`` that
the failure names. ``make test`` plays 300 seeds, ``make chaos`` 5,000. The number of fenced overlaps, which the
contract allows, is printed at the end.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.fleet import Played, play, wants
from simulation.ordered import Verdict, judge
from simulation.scripts import Script, script

SEEDS = 300
TOGETHER = 25  # seeds of one test, so that the report stays readable
SAVED = Path(__file__).parent.parent.parent / ".cache" / "scripts"

pytestmark = pytest.mark.slow


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The seeds, in parts: one, as many as were asked for, or 300."""
    if "seeds" not in metafunc.fixturenames:
        return
    one, many = metafunc.config.getoption("--seed"), metafunc.config.getoption("--chaos-seeds") or SEEDS
    seeds = range(1, many + 1) if one is None else range(one, one + 1)
    parts = [seeds[at : at + TOGETHER] for at in range(0, len(seeds), TOGETHER)]
    metafunc.parametrize("seeds", parts, ids=[f"seeds{part[0]}-{part[-1]}" for part in parts])


def judged(one: Script, played: Played) -> Verdict:
    verdict = judge(played.history, grace_s=played.grace_s, wants=wants(one))
    verdict.violations.extend(played.troubles)
    return verdict


def save(one: Script, played: Played) -> Path:
    path = SAVED / f"{one.seed}.pickle"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps((one, played)))
    return path


def test_whatever_befalls_a_group_its_queues_are_processed_in_order_to_the_end(
    seeds: range, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    replay: Path | None = request.config.getoption("--replay")
    verdicts = []
    for seed in seeds:
        one = script(seed)
        one, played = (one, play(one)) if replay is None else pickle.loads(replay.read_bytes())
        verdict = judged(one, played)
        if verdict.violations:
            again = f"replay with --seed {one.seed}, or exactly with --replay {replay or save(one, played)}"
            pytest.fail(f"{one}\n{verdict}\n{again}", pytrace=False)
        verdicts.append(verdict)

    record_property("scripts", len(seeds))
    record_property("calls", sum(verdict.calls for verdict in verdicts))
    record_property("fenced overlaps", sum(verdict.fenced_overlaps for verdict in verdicts))
