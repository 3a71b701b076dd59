"""Runs the scripts of many seeds, each judged; a failure prints its script and both ways to repeat it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.scripts import Script
from simulation.verdict import Verdict
from simulation.world import play

TOGETHER = 25  # seeds of one test, so that the report stays readable
SAVED = Path(__file__).parents[2] / ".cache"


def parametrize(metafunc: pytest.Metafunc, count: int) -> None:
    """Give a test its ``seeds``, in parts: one, as many as the options ask for, or ``count``."""
    if "seeds" not in metafunc.fixturenames:
        return
    one, many = metafunc.config.getoption("--seed"), metafunc.config.getoption("--chaos-seeds") or count
    seeds = range(1, many + 1) if one is None else range(one, one + 1)
    parts = [seeds[at : at + TOGETHER] for at in range(0, len(seeds), TOGETHER)]
    metafunc.parametrize("seeds", parts, ids=[f"seeds{part[0]}-{part[-1]}" for part in parts])


def play_seeds(seeds: range, script: Callable[[int], Script], folder: str, replay: Path | None) -> list[Verdict]:
    """Play the script of each seed, or take what a run recorded; return the verdicts. Fails at the first violation."""
    verdicts = []
    for seed in seeds:
        one = script(seed)
        one, played = (one, play(one)) if replay is None else pickle.loads(replay.read_bytes())
        verdict: Verdict = played.judged()
        if verdict.violations:
            path = replay or SAVED / folder / f"{one.seed}.pickle"
            if replay is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(pickle.dumps((one, played)))
            again = f"replay with --seed {one.seed}, or exactly with --replay {path}"
            pytest.fail(f"{one}\n{verdict}\n{again}", pytrace=False)
        verdicts.append(verdict)
    return verdicts
