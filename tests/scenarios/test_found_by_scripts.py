"""What generated scripts have found, each as the shortest script that showed it."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.groups import CONCURRENT, ORDERLY, Group
from simulation.history import Started
from simulation.network import DOWN, UP
from simulation.scripts import Join, Leave, Partition, Pause, Reset, Restart, Script, Send, Slow, Step, Tick
from simulation.world import play

SENT = tuple(Send("p1", 15, f"k{key}", 0) for key in range(8))
# One of the two queues that c1 works on falls to c2, which waits for it.
CALLED = (Join("c1"), Slow("c1", 15.0), Slow("c1", 15.0), Tick(1.0), Join("c2"), Tick(1.0))


@pytest.mark.parametrize(
    "fate",
    [(Leave("c1"),), (Partition("c1", (UP, DOWN)),), (Pause("c1"),), ()],
    ids=["leaves", "is cut off", "is stopped", "works on"],
)
def test_a_reset_gives_no_queue_away_whose_owner_is_within_a_call_and_does_not_know(fate: tuple[Step, ...]) -> None:
    """The lease was free at once: a peer began a call while the owner, which no pull informed, went on with its own."""
    reset = (Tick(0.5), Reset(0, 0.0), Reset(1, 0.0), Tick(12.0))
    script = Script(0, 2, (*SENT, *CALLED, *fate, *reset), pace_s=0.2)

    assert play(script).judged().violations == []


def test_a_queue_that_was_reset_while_its_owner_was_cut_off_goes_on_when_that_is_back() -> None:
    """That its call has ended could not be said at once, and was not said again: the queue waited for a whole lease."""
    others = (Join("a1"), Join("a2"))  # both queues are theirs when it is back
    cut_off = (Partition("c1", (UP,)), Tick(0.5), Reset(0, 0.0), Reset(1, 0.0), *others, Tick(14.0))
    group = Group("g", ORDERLY, (("drain_s", 60.0),))
    script = Script(0, 2, (*SENT, *CALLED, *cut_off), (group,), (("grace_s", 20.0),), pace_s=0.2)

    played = play(script)

    strict = played._replace(grace_s=0.0, levels=played.levels._replace(settle_s=4.0))
    assert strict.judged().violations == []


@pytest.mark.parametrize("kind", [CONCURRENT, ORDERLY])
def test_a_hand_over_that_a_clean_restart_of_the_broker_comes_into_gives_nothing_again(kind: str) -> None:
    """A queue that was given up pulled no more, so that nothing showed whether the broker had its progress."""
    sent = [Send("p1", 3, f"k{key}", 0) for key in range(6)]
    joined = (Join("g1-1"), *[Slow("g1-1", 4.0)] * 6, Tick(1.0), Join("g1-2"), Tick(1.0))
    script = Script(0, 2, (*sent, *joined, Restart(0.5), Tick(8.0)), (Group("g1", kind, (("batch", 1),)),))

    played = play(script)

    given = Counter(body for event in played.history if isinstance(event, Started) for body in event.bodies)
    assert {body: count for body, count in given.items() if count > 1} == {}
    assert len(given) == 18 + 2  # and the last of each queue
    assert played.troubles == []
