"""
Recovery from every place of a workload, whatever the machine made of what was not synced.

Replay a seed that failed with ``--seed N``, or exactly what happened with the ``--replay FILE`` that the failure
names. ``make test`` runs few seeds, ``make chaos`` many.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from rigs.disk.crash import TORN, crash
from rigs.disk.recording import AllSynced, Created, Recording, Renamed, Unlinked, Wrote
from rigs.recovery.promises import History
from rigs.recovery.prover import Prover, Report, load, record_in_memory, save
from rigs.recovery.workload import Acknowledged, Asked, Batch, Plan, Values

pytestmark = [pytest.mark.slow, pytest.mark.virtual_time]

RETENTION = (("segment_bytes", 4096), ("retention_bytes", 9000), ("checkpoint_bytes", 4096))
ROUNDS = 6
AGAIN = 12  # crashes whose recovery crashes as well
EVERY = 5  # the steps of such a recovery at which it does


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of starts have much to say."""
    with capture_logs():
        yield


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How long a workload is in each life of the broker: longer where there is time."""
    return 14 if request.config.getoption("--chaos-seeds") else ROUNDS


@pytest.fixture
def replay(request: pytest.FixtureRequest) -> Recording | None:
    """The recording that was asked for on the command line."""
    path: Path | None = request.config.getoption("--replay")
    return None if path is None else load(path)


def assert_sound(report: Report, recording: Recording, plan: Plan) -> None:
    print(f"{plan}: {report}")
    if report.failures:
        path = save(recording, f"{plan.flush}-{plan.seed}")
        pytest.fail(f"{plan}\n{report}\nreplay with --seed {plan.seed}, or exactly with --replay {path}", pytrace=False)


@pytest.mark.seeds(1)
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("settings", [(), RETENTION], ids=["kept", "retention"])
async def test_recovery_from_every_place_keeps_what_was_promised(
    flush: str, seed: int, rounds: int, settings: tuple[tuple[str, int], ...], replay: Recording | None
) -> None:
    plan = Plan(seed, flush=flush, rounds=rounds, settings=settings)
    recording = replay or await record_in_memory(plan)

    report = await Prover(recording, plan).run(torn_seeds=[seed])

    assert_sound(report, recording, plan)
    assert report.different > 100


@pytest.mark.seeds(3)
@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_a_crash_during_the_recovery_from_a_crash_loses_no_more(flush: str, seed: int, rounds: int) -> None:
    plan = Plan(seed, flush=flush, rounds=rounds)
    recording = await record_in_memory(plan)
    prover = Prover(recording, plan)
    chance = Random(seed)

    for prefix in sorted(chance.sample(range(len(recording.steps)), AGAIN)):
        found = crash(recording, prefix, TORN, chance.randrange(1 << 30))
        report = await prover.crash_again(found, torn_seed=prefix, every=EVERY)

        assert_sound(report, recording, plan)


async def test_the_workload_does_what_the_proof_needs() -> None:
    """A proof over a workload that never rolls a segment would show nothing about rolling."""
    recording = await record_in_memory(Plan(1, rounds=ROUNDS, settings=RETENTION))

    operations = [step.operation for step in recording.steps]
    made = [operation.path for operation in operations if isinstance(operation, Created)]
    renamed = [operation.to for operation in operations if isinstance(operation, Renamed)]
    removed = [operation.path for operation in operations if isinstance(operation, Unlinked)]
    assert sum(path.startswith("commitlog/") for path in made) >= 4
    assert sum(path.startswith("consumequeue/") for path in made) >= 4
    assert sum(path.startswith("index/") for path in made) >= 2
    assert renamed.count("checkpoint") >= 3
    assert any(path.startswith("commitlog/") for path in removed)
    assert any(isinstance(operation, AllSynced) for operation in operations)
    assert any(isinstance(operation, Wrote) and len(operation.data) > 1024 for operation in operations)
    marks = {type(mark).__name__ for _, mark in recording.marks()}
    assert marks == {"Asked", "Acknowledged", "Learned"}
    done = {mark.number for _, mark in recording.marks() if isinstance(mark, Acknowledged)}
    facts = [mark.fact for _, mark in recording.marks() if isinstance(mark, Asked) and mark.number in done]
    kinds = {key[0] for fact in facts if isinstance(fact, Values) for key, _ in fact.pairs}  # type: ignore[index]
    assert kinds == {"topic", "lease", "committed", "attempts", "announced", "letter"}
    delayed = [fact for fact in facts if isinstance(fact, Batch) and fact.is_delayed]
    history = History(recording, "sync")
    delivered = [one for sent in history.delayed.values() for one in sent if history.copies_of(one)]
    assert 3 <= len(delivered) < len(delayed) + 1
