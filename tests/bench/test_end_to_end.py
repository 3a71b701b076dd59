"""What a run of ``end-to-end`` is judged by, and one run with real processes."""

from __future__ import annotations

import pytest

from rmq.bench.end_to_end import FLOOR, PEER, measure, prefix, targets, verdict
from rmq.bench.figures import Figure
from rmq.bench.loads import Load
from rmq.bench.options import Options

from support.bench_stand_ins import FixedFloor, FixedPeer, Noted


def figure(*samples: float) -> Figure:
    return Figure("any", "", "msg/s", samples=list(samples))


@pytest.mark.parametrize(
    ("load", "wanted"),
    [
        (Load(), ["P3.floor", "P3.peer"]),
        (Load(size=1024), []),
        (Load(producers=2), []),
        (Load(consumers=2), []),
    ],
)
def test_a_load_is_judged_where_the_targets_name_it(load: Load, wanted: list[str]) -> None:
    assert [target.key for target in targets(load)] == wanted


def test_runs_of_other_kinds_have_keys_of_their_own() -> None:
    assert prefix(Load(), "async") == "end_to_end"
    assert prefix(Load(size=1024), "sync") == "end_to_end.1024B.sync"


def test_the_floor_is_the_second_figure() -> None:
    assert verdict(FLOOR, [figure(3, 4), figure(6, 4)], []).samples == [0.5, 1.0]


def test_ours_is_compared_with_the_peer_that_was_best_in_the_same_round() -> None:
    found = verdict(PEER, [figure(100, 90), figure(1, 1), figure(5, 6), figure(10, 3)], [FixedPeer()])

    assert (found.samples, found.met) == ([10.0, 15.0], True)


def test_without_a_peer_nothing_is_shown_and_all_reasons_are_told() -> None:
    absent = [FixedPeer("redis", why_not="no server"), FixedPeer("nats", why_not="no client")]

    found = verdict(PEER, [figure(1.0), figure(2.0)], absent)

    assert (found.met, found.why_not) == (None, "redis: no server; nats: no client")


@pytest.mark.slow
def test_a_run_gets_every_message_through_beside_floor_and_peers() -> None:
    steps = Noted()
    peers = [FixedPeer("redis", 8.0), FixedPeer("nats", why_not="no server")]

    found = measure(Load(2000), Options(rounds=1), steps, floor=FixedFloor(), peers=peers)

    keys = ["end_to_end.messages", "end_to_end.floor", "end_to_end.redis"]
    assert (steps.expected, steps.taken) == (3, keys)
    ours, floor, redis = found.figures
    assert [one.key for one in found.figures] == keys
    assert (ours.flush, floor.flush, redis.flush) == ("async", None, "fsync every second")
    assert [one.samples for one in found.verdicts] == [[ours.middle / 2.0], [ours.middle / 8.0]]
