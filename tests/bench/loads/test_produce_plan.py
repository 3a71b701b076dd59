"""What a run of ``produce`` compares and is judged by follows from its load."""

from __future__ import annotations

import pytest

from rmq.bench.loads.produce import limits, prefix, targets, ways
from rmq.bench.options import Load

FLOOR = ["P1.floor", "P1.floor.messages", "P1.floor.messages_inside", "P1.redis-benchmark"]
SOCKET = ["P2.socket-to-file", "P2.socket-to-file.messages", "P2.socket-to-file.messages_inside"]
THREE = ["messages", "messages_inside", "bodies"]


@pytest.mark.parametrize(
    ("load", "flush", "wanted"),
    [
        (Load(), "async", FLOOR),
        (Load(messages=10), "async", FLOOR),
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


def test_messages_with_keys_are_compared_with_the_same_without_anything() -> None:
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


def test_runs_that_may_stand_in_one_report_have_keys_of_their_own() -> None:
    kinds = [
        (Load(), "async"), (Load(size=1024), "async"), (Load(batch=1), "async"),
        (Load(), "sync"), (Load(batch=1), "sync"), (Load(tags=8, keys=True), "async"),
    ]  # fmt: skip
    keys = [f"{prefix(*kind)}.{way.name}" for kind in kinds for way in ways(*kind)]

    assert len(set(keys)) == len(keys)
    assert prefix(Load(size=1024, batch=1), "sync") == "produce.1024B.single.sync"
