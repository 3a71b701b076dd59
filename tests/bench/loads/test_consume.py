"""What a run of ``consume`` is judged by, and one run with real processes."""

from __future__ import annotations

import pytest

from rmq.bench.loads.consume import measure, prefix, targets
from rmq.bench.options import Load, Options
from rmq.testing.broker import BrokerThread

from rigs.bench import FixedFloor, Steps


@pytest.fixture
def fixed_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.bench.loads.consume.floor", FixedFloor())


@pytest.mark.parametrize(
    ("load", "wanted"),
    [
        (Load(), ["P4.floor"]),
        (Load(messages=9), ["P4.floor"]),
        (Load(size=1024), []),
        (Load(consumers=2), []),
        (Load(queues=1), []),
        (Load(batch=1), []),
    ],
)
def test_a_backlog_is_judged_where_the_target_names_it(load: Load, wanted: list[str]) -> None:
    assert [target.key for target in targets(load)] == wanted


def test_other_sizes_have_keys_of_their_own() -> None:
    assert [prefix(Load(size=size)) for size in (100, 1024)] == ["consume", "consume.1024B"]


def test_a_disk_without_room_shows_no_target_and_says_why() -> None:
    (verdict,) = measure(Load(1 << 40), Options(), Steps()).verdicts

    assert verdict.met is None
    assert verdict.why_not.startswith("the disk has ")


@pytest.mark.slow
@pytest.mark.usefixtures("fixed_floor")
def test_a_run_reads_the_whole_backlog_in_every_way() -> None:
    steps = Steps()
    with BrokerThread() as broker:
        found = measure(Load(3000, producers=2), Options(broker=broker.address, rounds=1), steps)

    keys = [f"consume.{way}" for way in ("batches", "messages", "concurrent", "pull", "floor")]
    assert (steps.expected, steps.taken) == (5, keys)
    assert [figure.key for figure in found.figures] == keys
    assert all(figure.middle > 0 for figure in found.figures)
    (verdict,) = found.verdicts
    assert verdict.samples == [found.figures[0].middle / 2.0]
    assert found.about["load"]["messages"] == 3000
