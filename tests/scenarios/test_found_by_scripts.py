"""What generated scripts have found, each as the shortest script that showed it."""

from __future__ import annotations

import pytest

from support.consumption_checker import judge
from support.fleet import play
from support.network import DOWN, UP
from support.scripts import Join, Leave, Partition, Pause, Reset, Script, Send, Slow, Step, Tick

SENT = tuple(Send("p1", 15, f"k{key}", 0) for key in range(8))
# One of the two queues that c1 works on falls to c2, which waits for it.
CALLED = (Join("c1"), Slow("c1", 15.0), Slow("c1", 15.0), Tick(1.0), Join("c2"), Tick(1.0))


@pytest.mark.parametrize(
    "fate",
    [(Leave("c1"),), (Partition("c1", (UP, DOWN)),), (Pause("c1"),), ()],
    ids=["leaves", "is cut off", "is stopped", "works on"],
)
def test_a_reset_gives_no_queue_away_whose_owner_is_within_a_call_and_does_not_know(fate: tuple[Step, ...]) -> None:
    """The lease was free at once: a peer began a call while the owner, which no pull told, went on with its own."""
    reset = (Tick(0.5), Reset(0, 0.0), Reset(1, 0.0), Tick(12.0))
    script = Script(0, 2, (*SENT, *CALLED, *fate, *reset), pace_s=0.2)

    played = play(script)

    assert judge(played.history, grace_s=played.grace_s).violations + played.troubles == []


def test_a_queue_that_was_reset_while_its_owner_was_cut_off_goes_on_when_that_is_back() -> None:
    """That its call has ended could not be said at once, and was not said again: the queue waited for a whole lease."""
    others = (Join("a1"), Join("a2"))  # both queues are theirs when it is back
    cut_off = (Partition("c1", (UP,)), Tick(0.5), Reset(0, 0.0), Reset(1, 0.0), *others, Tick(14.0))
    script = Script(0, 2, (*SENT, *CALLED, *cut_off), (("drain_s", 60.0),), (("grace_s", 20.0),), pace_s=0.2)

    played = play(script)

    assert judge(played.history, grace_s=0.0, settle_s=4.0).violations + played.troubles == []
