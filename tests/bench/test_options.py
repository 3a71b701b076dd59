"""Loads, the brokers of samples, and progress, alone and as a part of a whole."""

from __future__ import annotations

import json

import pytest

from rmq.bench.options import Load, Options, Steps, Whole
from rmq.bench.processes import BenchError
from rmq.client import Admin


def test_a_broker_that_runs_is_used_as_it_is() -> None:
    with Options(broker="127.0.0.1:1").ground() as address:
        assert address == "127.0.0.1:1"


@pytest.mark.slow
async def test_a_sample_has_a_broker_of_its_own_with_the_durability_it_asks_for() -> None:
    with Options(flush="sync").ground("async") as address:
        async with Admin(address) as admin:
            assert (await admin.config())["flush"] == "async"


def test_the_messages_are_as_many_as_asked_all_of_their_size_and_all_different() -> None:
    batches = Load(messages=1003, size=16, batch=100).bodies()

    assert [len(batch) for batch in batches] == [100] * 10 + [3]
    bodies = [body for batch in batches for body in batch]
    assert {len(body) for body in bodies} == {16}
    assert len(set(bodies)) == 1003


def test_the_same_load_gives_the_same_bodies_again() -> None:
    load = Load(messages=10, size=16, batch=3)

    assert load.bodies() == load.bodies()


def test_producers_share_the_messages_and_nothing_is_left_over() -> None:
    load = Load(messages=10, producers=4, keys=True)

    shares = [load.share(part) for part in range(4)]

    assert [share.messages for share in shares] == [3, 3, 2, 2]
    assert {share.producers for share in shares} == {1}
    assert all(share.keys for share in shares)


def test_a_load_goes_to_another_process_and_is_the_same_there() -> None:
    load = Load(messages=7, size=3, tags=8, keys=True, connections=2)

    assert Load(**json.loads(json.dumps(load.as_object()))) == load


def test_a_sample_is_done_when_the_next_one_begins() -> None:
    shown: list[tuple[float, str]] = []
    steps = Steps(lambda done, what: shown.append((done, what)))

    steps.expect(4)
    for what in "abcd":
        steps(what)

    assert shown == [(0.0, "a"), (0.25, "b"), (0.5, "c"), (0.75, "d")]


def test_more_samples_than_were_announced_do_not_lead_beyond_the_end() -> None:
    shown: list[float] = []
    steps = Steps(lambda done, what: shown.append(done))

    steps.expect(1)
    for _ in range(3):
        steps("a")

    assert shown == [0.0, 1.0, 1.0]


def test_parts_of_a_whole_count_by_their_weights_even_at_the_same_time() -> None:
    shown: list[tuple[float, str]] = []
    whole = Whole(lambda done, what: shown.append((done, what)), [3.0, 1.0])
    long, short = whole.part(0), whole.part(1)

    long.expect(3)
    short.expect(2)
    for steps, what in [(long, "a"), (long, "b"), (short, "c"), (short, "d"), (long, "e")]:
        steps(what)
    whole.ended(1)
    long("f")

    assert shown == [(0.0, "a"), (0.25, "b"), (0.25, "c"), (0.375, "d"), (0.625, "e"), (1.0, "f")]


def test_samples_may_be_announced_bit_by_bit() -> None:
    shown: list[float] = []
    steps = Steps(lambda done, what: shown.append(done))

    steps.expect(1)
    steps("a")
    steps.expect(3)
    steps("b")

    assert shown == [0.0, 0.25]


def test_a_stopped_benchmark_ends_at_its_next_sample() -> None:
    whole = Whole(lambda done, what: None, [1.0])
    steps = whole.part(0)
    steps("a")

    whole.stop()

    with pytest.raises(BenchError, match="interrupted"):
        steps("b")
