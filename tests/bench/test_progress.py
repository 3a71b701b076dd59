"""How far a benchmark is, as a part of a whole."""

from __future__ import annotations

from rmq.bench.progress import Counted


def test_a_sample_is_done_when_the_next_one_begins() -> None:
    shown: list[tuple[float, str]] = []
    steps = Counted(lambda done, what: shown.append((done, what)))

    steps.expect(4)
    for what in "abcd":
        steps(what)

    assert shown == [(0.0, "a"), (0.25, "b"), (0.5, "c"), (0.75, "d")]


def test_a_part_of_a_whole_stays_within_its_share() -> None:
    shown: list[float] = []
    steps = Counted(lambda done, what: shown.append(done), begin=0.5, share=0.25)

    steps.expect(2)
    steps("a")
    steps("b")
    steps("one more than was said")

    assert shown == [0.5, 0.625, 0.75]


def test_samples_may_be_announced_bit_by_bit() -> None:
    shown: list[float] = []
    steps = Counted(lambda done, what: shown.append(done))

    steps.expect(1)
    steps("a")
    steps.expect(3)
    steps("b")

    assert shown == [0.0, 0.25]
