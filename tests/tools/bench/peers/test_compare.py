"""Peers next to ours: ratios round by round, and a reason for every peer that has none."""

from __future__ import annotations

import pytest

from peers.compare import END_TO_END, NATIVE, PRODUCE, measure, verdict
from rmq.bench.figures import Figure, Side
from rmq.bench.options import Load, Options
from rmq.bench.rivals import Tried
from rmq.testing.broker import BrokerThread

from rigs.bench import FixedPeer, Steps


def side(*samples: float) -> Side:
    return Figure("any", "", "msg/s", "async", list(samples)), lambda: 0.0


MINE = {PRODUCE: side(30.0, 20.0), END_TO_END: side(8.0, 8.0)}


@pytest.mark.parametrize(("what", "samples"), [(PRODUCE, [3.0, 5.0]), (NATIVE, [3.0, 5.0]), (END_TO_END, [0.8, 2.0])])
def test_a_ratio_is_ours_divided_by_theirs(what: str, samples: list[float]) -> None:
    figure, take = side(10.0, 4.0)

    found = verdict(FixedPeer(), what, MINE, (figure, Tried(take)))

    assert (found.key, found.samples, found.met) == (f"peers.redis.{what}", samples, None)


def test_a_missing_peer_is_not_shown() -> None:
    found = verdict(FixedPeer(why_not="no server"), PRODUCE, MINE, None)

    assert (found.samples, found.why_not) == ([], "no server")


@pytest.mark.slow
def test_a_run_takes_turns_and_goes_on_when_a_peer_fails() -> None:
    steps = Steps()
    known = [
        FixedPeer("redis", 8.0),
        FixedPeer("nats", why_not="no client"),
        FixedPeer("rabbitmq", native_why_not="none", breaks="it has lost a message"),
    ]

    with BrokerThread(flush="async") as broker:
        options = Options(rounds=1, broker=broker.address, rivals=lambda _: known)
        found = measure(Load(2000, producers=3), options, steps)

    assert steps.expected == len(steps.taken) == 8
    figures = {figure.key: figure for figure in found.figures}
    assert set(figures) == {
        "peers.rmq.produce", "peers.rmq.end_to_end",
        "peers.redis.produce", "peers.redis.end_to_end", "peers.redis.native_produce",
        "peers.nats.native_produce", "peers.rabbitmq.produce",
    }  # fmt: skip
    ours = figures["peers.rmq.produce"]
    assert (ours.flush, figures["peers.redis.produce"].flush) == ("async", "fsync every second")
    verdicts = {one.key: one for one in found.verdicts}
    assert verdicts["peers.redis.native_produce"].samples == [ours.middle / 16.0]
    assert {key: one.why_not for key, one in verdicts.items() if not one.samples} == {
        "peers.nats.produce": "no client",
        "peers.nats.end_to_end": "no client",
        "peers.rabbitmq.end_to_end": "it has lost a message",
    }
