"""What a run of ``end-to-end`` is judged by, and one run with real processes."""

from __future__ import annotations

import pytest

from rmq.bench.figures import Figure
from rmq.bench.loads.end_to_end import against_rivals, measure, prefix, targets
from rmq.bench.options import Load, Options
from rmq.bench.rivals import NO_RIVALS

from rigs.bench import FixedFloor, FixedPeer, Steps


@pytest.fixture
def fixed_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.bench.loads.end_to_end.floor", FixedFloor())


def figure(*samples: float) -> Figure:
    return Figure("any", "", "msg/s", samples=list(samples))


@pytest.mark.parametrize(
    ("load", "wanted"),
    [
        (Load(), ["P3.floor", "P3.peer"]),
        (Load(size=1024), []),
        (Load(producers=2), []),
        (Load(queues=1), []),
        (Load(consumers=2), []),
    ],
)
def test_a_load_is_judged_by_the_targets_about_it(load: Load, wanted: list[str]) -> None:
    assert [target.key for target in targets(load)] == wanted


def test_runs_of_other_kinds_have_keys_of_their_own() -> None:
    assert prefix(Load(), "async") == "end_to_end"
    assert prefix(Load(size=1024), "sync") == "end_to_end.1024B.sync"


def test_ours_is_compared_with_the_best_peer_of_each_round_and_with_each_peer() -> None:
    found = against_rivals(figure(100, 90), {"a": figure(5, 6), "b": figure(10, 3)}, {"a": "", "b": ""})

    assert [(one.key, one.samples) for one in found] == [
        ("P3.peer", [10.0, 15.0]), ("P3.peer.a", [20.0, 15.0]), ("P3.peer.b", [10.0, 30.0]),
    ]  # fmt: skip
    assert [(one.at_least, one.met) for one in found] == [(10.0, True)] * 3


def test_the_best_of_all_needs_every_peer() -> None:
    best, there, missing = against_rivals(figure(100), {"a": figure(5)}, {"a": "", "b": "no server"})

    assert (best.met, best.why_not) == (None, "b: no server")
    assert (there.samples, there.met) == ([20.0], True)
    assert (missing.met, missing.why_not) == (None, "no server")
    assert [one.why_not for one in against_rivals(figure(100), {}, {})] == [NO_RIVALS]


def test_a_disk_without_room_shows_no_target_and_says_why() -> None:
    found = measure(Load(1 << 40), Options(), Steps()).verdicts

    assert [one.met for one in found] == [None, None]
    assert all(one.why_not.startswith("the disk has ") for one in found)


@pytest.mark.slow
@pytest.mark.usefixtures("fixed_floor")
def test_a_run_gets_every_message_through_next_to_floor_and_peers() -> None:
    steps = Steps()
    peers = [
        FixedPeer("redis", 8.0),
        FixedPeer("nats", why_not="no server"),
        FixedPeer("rabbit", breaks="it fell"),
    ]

    found = measure(Load(2000), Options(rounds=1, rivals=lambda _: peers), steps)

    keys = ["end_to_end.messages", "end_to_end.floor", "end_to_end.redis"]
    assert (steps.expected, steps.taken) == (4, [*keys, "end_to_end.rabbit"])
    ours, floor, redis = found.figures
    assert [one.key for one in found.figures] == keys
    assert (ours.flush, floor.flush, redis.flush) == ("async", "async", "fsync every second")
    assert [(one.key, one.samples, one.why_not) for one in found.verdicts] == [
        ("P3.floor", [ours.middle / 2.0], ""),
        ("P3.peer", [], "nats: no server; rabbit: it fell"),
        ("P3.peer.redis", [ours.middle / 8.0], ""),
        ("P3.peer.nats", [], "no server"),
        ("P3.peer.rabbit", [], "it fell"),
    ]
