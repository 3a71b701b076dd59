"""What a run of ``produce`` compares and judges follows from its load; runs with real processes."""

from __future__ import annotations

import asyncio

import pytest

from rmq.bench.figures import Figure
from rmq.bench.loads.produce import (
    FLOOR,
    KEYS,
    OWN_BROKERS,
    SYNC_BATCHES,
    allowed,
    limits,
    measure,
    prefix,
    targets,
    verdict,
    ways,
)
from rmq.bench.options import Load, Options
from rmq.client import Admin
from rmq.testing.broker import BrokerThread

from rigs.bench import FixedFloor, FixedPeer, Steps


@pytest.fixture
def fixed_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.bench.loads.produce.floor", FixedFloor())


def figure(*samples: float) -> Figure:
    return Figure("any", "", "msg/s", samples=list(samples))


def test_a_target_is_the_ratio_of_its_two_figures_round_by_round() -> None:
    found = verdict(FLOOR[0], {"bodies": figure(3, 4, 5), "floor": figure(6, 6, 5)}, {}, "async")

    assert (found.key, found.flush, found.samples) == ("P1.floor", "async", [0.5, 4 / 6, 1.0])
    assert found.met is True


def test_a_target_without_another_side_judges_the_figure_itself() -> None:
    found = verdict(KEYS[1], {"caught_up": figure(0.1, 3.0, 2.5)}, {}, "async")

    assert (found.samples, found.unit, found.met) == ([0.1, 3.0, 2.5], "s", False)


def test_a_target_whose_other_side_is_missing_is_not_shown_and_says_why() -> None:
    found = verdict(SYNC_BATCHES[0], {"bodies": figure(1.0)}, {"bodies_async": OWN_BROKERS}, "sync")

    assert (found.met, found.samples, found.why_not) == (None, [], OWN_BROKERS)


def test_sync_allows_single_sends_up_to_async_and_one_per_sync_and_connection() -> None:
    assert allowed(figure(9000, 50000), figure(5.0, 2.0), 64) == [9000, 32000]


def test_a_disk_without_room_shows_no_target_and_says_why() -> None:
    steps = Steps()

    found = measure(Load(1 << 40), Options(), steps)

    assert (found.figures, steps.taken) == ([], [])
    assert [one.met for one in found.verdicts] == [None] * 4
    assert all(one.why_not.startswith("the disk has ") for one in found.verdicts)


@pytest.mark.slow
@pytest.mark.usefixtures("fixed_floor")
def test_a_run_measures_every_way_to_send_the_floor_and_the_benchmark_of_redis() -> None:
    steps = Steps()
    with BrokerThread(flush="async") as broker:
        options = Options(broker=broker.address, rounds=1, rivals=lambda _: [FixedPeer()])
        found = measure(Load(2000), options, steps)

    keys = [f"produce.{name}" for name in ("messages", "messages_inside", "bodies", "floor", "redis_benchmark")]
    assert (steps.expected, steps.taken) == (5, keys)
    assert [one.key for one in found.figures] == keys
    assert [one.flush for one in found.figures] == ["async"] * 4 + ["fsync every second"]
    before, inside, bodies, *_ = (one.middle for one in found.figures)
    assert [one.samples for one in found.verdicts] == [[bodies / 4.0], [before / 4.0], [inside / 4.0], [bodies / 16.0]]


@pytest.mark.slow
@pytest.mark.usefixtures("fixed_floor")
def test_keys_are_found_and_a_running_broker_keeps_no_topics() -> None:
    with BrokerThread() as broker:
        options = Options(broker=broker.address, rounds=1)
        found = measure(Load(2000, keys=True), options, Steps())
        left = asyncio.run(_topics(broker.address))

    keys = [f"produce.sync.{name}" for name in ("plain", "keys", "caught_up")]
    assert [one.key for one in found.figures] == keys
    assert all(one.middle > 0 and one.flush == "sync" for one in found.figures)
    assert [(one.key, len(one.samples)) for one in found.verdicts] == [("P10.keys", 1), ("P10.caught-up", 1)]
    assert left == []


@pytest.mark.slow
@pytest.mark.usefixtures("fixed_floor")
def test_a_running_broker_cannot_be_compared_with_another_durability() -> None:
    with BrokerThread() as broker:
        options = Options(broker=broker.address, rounds=1)
        found = measure(Load(500, batch=1, connections=64), options, Steps())

    assert [one.key for one in found.figures] == ["produce.single.sync.messages", "produce.single.sync.fdatasync"]
    assert [(one.key, one.met, one.why_not) for one in found.verdicts] == [("P6.single", None, OWN_BROKERS)]


async def _topics(address: str) -> list[str]:
    async with Admin(address) as admin:
        return [topic.topic for topic in await admin.list_topics() if topic.topic.startswith("bench-")]


FLOOR_PLAN = ["P1.floor", "P1.floor.messages", "P1.floor.messages_inside", "P1.redis-benchmark"]
SOCKET = ["P2.socket-to-file", "P2.socket-to-file.messages", "P2.socket-to-file.messages_inside"]
THREE = ["messages", "messages_inside", "bodies"]


@pytest.mark.parametrize(
    ("load", "flush", "wanted"),
    [
        (Load(), "async", FLOOR_PLAN),
        (Load(messages=10), "async", FLOOR_PLAN),
        (Load(producers=2), "async", []),
        (Load(queues=1), "async", []),
        (Load(in_flight=1), "async", []),
        (Load(batch=100), "async", []),
        (Load(connections=2), "async", []),
        (Load(size=1024), "async", SOCKET),
        (Load(size=1024, batch=100), "async", SOCKET),
        (Load(size=1024, batch=1), "async", []),
        (Load(size=5000), "async", []),
        (Load(batch=1), "async", ["P5.floor"]),
        (Load(batch=1, in_flight=32), "async", []),
        (Load(), "sync", ["P6.batches"]),
        (Load(batch=1), "sync", []),
        (Load(batch=1, connections=64), "sync", ["P6.single"]),
        (Load(tags=8), "async", ["P10.tags"]),
        (Load(tags=3), "async", []),
        (Load(keys=True), "async", ["P10.keys", "P10.caught-up"]),
        (Load(tags=8, keys=True), "sync", ["P10.tags", "P10.keys", "P10.caught-up"]),
    ],
)
def test_a_load_is_judged_by_the_targets_that_name_it(load: Load, flush: str, wanted: list[str]) -> None:
    assert [target.verdict.key for target in targets(load, flush)] == wanted


@pytest.mark.parametrize(
    ("load", "flush", "ours", "machines"),
    [
        (Load(), "async", THREE, ["floor"]),
        (Load(size=1000), "async", THREE, ["floor", "socket_to_file"]),
        (Load(batch=1), "async", THREE, ["floor"]),
        (Load(), "sync", [*THREE, "bodies_async"], []),
        (Load(batch=1, connections=64), "sync", ["messages", "messages_async"], ["fdatasync"]),
        (Load(tags=8), "async", ["plain", "tags"], []),
        (Load(keys=True), "async", ["plain", "keys"], []),
        (Load(tags=8, keys=True), "async", ["plain", "tags", "keys"], []),
    ],
)
def test_a_load_is_sent_in_the_ways_that_its_targets_compare(
    load: Load, flush: str, ours: list[str], machines: list[str]
) -> None:
    assert [way.name for way in ways(load, flush)] == ours
    assert limits(load, flush) == machines


def test_messages_with_keys_are_compared_with_plain_ones() -> None:
    plain, tags, keys = ways(Load(tags=8, keys=True), "async")

    assert (plain.load.tags, plain.load.keys) == (0, False)
    assert (tags.load.tags, tags.load.keys) == (8, False)
    assert (keys.load.tags, keys.load.keys) == (0, True)
    assert {way.style for way in (plain, tags, keys)} == {"messages"}


def test_single_sends_with_sync_are_compared_with_those_over_one_connection_with_async() -> None:
    ours, other = ways(Load(batch=1, connections=64), "sync")

    assert (ours.load.connections, ours.flush) == (64, "sync")
    assert (other.load.connections, other.load.in_flight, other.flush) == (1, 64, "async")


def test_every_target_names_something_that_is_measured() -> None:
    derived = {"allowed", "caught_up", "redis_benchmark"}
    loads = [
        (Load(), "async"), (Load(size=1024), "async"), (Load(batch=1), "async"), (Load(), "sync"),
        (Load(batch=1, connections=64), "sync"), (Load(tags=8, keys=True), "async"),
    ]  # fmt: skip
    for load, flush in loads:
        measured = {way.name for way in ways(load, flush)} | set(limits(load, flush)) | derived
        assert {name for target in targets(load, flush) for name in (target.ours, target.other) if name} <= measured


def test_runs_of_one_report_have_distinct_keys() -> None:
    kinds = [
        (Load(), "async"), (Load(size=1024), "async"), (Load(batch=1), "async"),
        (Load(), "sync"), (Load(batch=1), "sync"), (Load(tags=8, keys=True), "async"),
    ]  # fmt: skip
    keys = [f"{prefix(*kind)}.{way.name}" for kind in kinds for way in ways(*kind)]

    assert len(set(keys)) == len(keys)
    assert prefix(Load(size=1024, batch=1), "sync") == "produce.1024B.single.sync"
