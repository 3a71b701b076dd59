"""The line of queues that have something: everybody once, in turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer.poll.polls import ReadyLine


def test_who_stands_already_keeps_its_place_and_nobody_is_served_twice() -> None:
    line = ReadyLine[str]()
    for name in "abab":
        line.add(name)

    assert (len(line), line.take(), line.take(), line.take()) == (2, "a", "b", None)


def test_who_leaves_the_line_is_not_served_and_may_come_back_at_its_end() -> None:
    line = ReadyLine[str]()
    for name in "abc":
        line.add(name)

    line.discard("a")
    line.discard("nobody")
    line.add("a")

    assert [line.take() for _ in range(3)] == ["b", "c", "a"]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_each_of_n_in_line_has_its_turn_within_n_turns(work: list[int]) -> None:
    line, left, served = ReadyLine[int](), dict(enumerate(work)), []
    for who in left:
        line.add(who)

    while (who := line.take()) is not None:
        served.append(who)
        left[who] -= 1
        if left[who]:
            line.add(who)

    for who, turns in enumerate(work):
        places = [at for at, each in enumerate(served) if each == who]
        assert len(places) == turns
        assert all(later - before <= len(work) for before, later in zip([-1, *places], places, strict=False))
