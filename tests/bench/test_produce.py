"""What a run of ``produce`` says about its targets, and one run with real processes."""

from __future__ import annotations

import asyncio

import pytest

from rmq.bench.figures import Figure
from rmq.bench.loads import Load
from rmq.bench.options import Options
from rmq.bench.processes import BenchError
from rmq.bench.produce import OWN_BROKERS, allowed, measure, verdict
from rmq.bench.produce_plan import FLOOR, KEYS, SYNC_BATCHES
from rmq.bench.yardsticks import native_rate, reason
from rmq.broker.testing import BrokerThread
from rmq.client import Admin

from support.bench_stand_ins import FixedFloor, FixedPeer, Noted


def figure(*samples: float) -> Figure:
    return Figure("any", "", "msg/s", samples=list(samples))


def test_a_target_is_the_ratio_of_its_two_figures_round_by_round() -> None:
    found = verdict(FLOOR[0], {"bodies": figure(3, 4, 5), "floor": figure(6, 6, 5)}, {}, "async")

    assert (found.key, found.flush, found.samples) == ("P1.floor", "async", [0.5, 4 / 6, 1.0])
    assert found.met is True


def test_a_target_without_another_side_is_what_was_measured() -> None:
    found = verdict(KEYS[1], {"caught_up": figure(0.1, 3.0, 2.5)}, {}, "async")

    assert (found.samples, found.unit, found.met) == ([0.1, 3.0, 2.5], "s", False)


def test_a_target_whose_other_side_is_missing_is_not_shown_and_says_why() -> None:
    found = verdict(SYNC_BATCHES[0], {"bodies": figure(1.0)}, {"bodies_async": OWN_BROKERS}, "sync")

    assert (found.met, found.samples, found.why_not) == (None, [], OWN_BROKERS)


def test_single_sends_with_sync_may_not_be_faster_than_async_nor_than_one_a_sync_and_connection() -> None:
    assert allowed(figure(9000, 50000), figure(5.0, 2.0), 64) == [9000, 32000]


def test_a_peer_that_is_not_there_says_why() -> None:
    assert reason(FixedPeer(why_not="not installed"), "redis") == "not installed"
    assert reason(None, "redis") == "redis is not among the peers"


def test_a_benchmark_that_a_peer_lacks_has_no_rate() -> None:
    assert native_rate(FixedPeer(), Load()) == 16.0
    with pytest.raises(BenchError, match="redis brings no benchmark along"):
        native_rate(FixedPeer(native=None), Load())


@pytest.mark.slow
def test_a_run_measures_every_way_and_leaves_nothing_in_a_broker_that_goes_on() -> None:
    steps, floor = Noted(), FixedFloor()
    with BrokerThread() as broker:
        options = Options(broker=broker.address, rounds=1)
        found = measure(Load(2000, keys=True, producers=2), options, steps, floor=floor)
        left = asyncio.run(_topics(broker.address))

    keys = ["produce.sync.plain", "produce.sync.keys"]
    assert (steps.expected, steps.taken) == (2, keys)
    assert [figure.key for figure in found.figures] == [*keys, "produce.sync.caught_up"]
    assert all(figure.middle > 0 and figure.flush == "sync" for figure in found.figures)
    assert [(one.key, len(one.samples)) for one in found.verdicts] == [("P10.keys", 1), ("P10.caught-up", 1)]
    assert left == []


async def _topics(address: str) -> list[str]:
    async with Admin(address) as admin:
        return [topic.topic for topic in await admin.list_topics() if topic.topic.startswith("bench-")]
