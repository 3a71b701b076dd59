"""How far a benchmark is, as a part of a whole."""

from __future__ import annotations

import pytest

from rmq.bench.options import Counted, Whole
from rmq.bench.processes import BenchError


def test_a_sample_is_done_when_the_next_one_begins() -> None:
    shown: list[tuple[float, str]] = []
    steps = Counted(lambda done, what: shown.append((done, what)))

    steps.expect(4)
    for what in "abcd":
        steps(what)

    assert shown == [(0.0, "a"), (0.25, "b"), (0.5, "c"), (0.75, "d")]


def test_more_samples_than_were_announced_do_not_lead_beyond_the_end() -> None:
    shown: list[float] = []
    steps = Counted(lambda done, what: shown.append(done))

    steps.expect(1)
    for _ in range(3):
        steps("a")

    assert shown == [0.0, 1.0, 1.0]


def test_parts_of_a_whole_count_by_their_weights_also_when_they_go_on_at_once() -> None:
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
    steps = Counted(lambda done, what: shown.append(done))

    steps.expect(1)
    steps("a")
    steps.expect(3)
    steps("b")

    assert shown == [0.0, 0.25]


def test_what_is_stopped_ends_at_its_next_sample() -> None:
    whole = Whole(lambda done, what: None, [1.0])
    steps = whole.part(0)
    steps("a")

    whole.stop()

    with pytest.raises(BenchError, match="interrupted"):
        steps("b")
