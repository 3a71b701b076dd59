"""What generated scripts have found, each as the shortest script that showed it."""

from __future__ import annotations

import pytest

from support.consumption_checker import judge
from support.fleet import play
from support.network import DOWN, UP
from support.scripts import Join, Leave, Partition, Pause, Reset, Script, Send, Slow, Step, Tick

SENT = (Send("p1", 60, "k", 0),)
CALLED = (Join("c1"), Slow("c1", 15.0), Tick(1.0), Join("c2"), Tick(1.0))


@pytest.mark.parametrize(
    "fate",
    [(Leave("c1"),), (Partition("c1", (UP, DOWN)),), (Pause("c1"),), ()],
    ids=["leaves", "is cut off", "is stopped", "works"],
)
@pytest.mark.parametrize("settings", [(), (("cache_messages", 1),)], ids=["pull parked", "no pull"])
def test_a_reset_gives_no_queue_away_whose_owner_is_within_a_call_and_does_not_know(
    fate: tuple[Step, ...], settings: tuple[tuple[str, int], ...]
) -> None:
    """The lease had been free at once: a peer began while the owner was told by nobody, and went on with its next."""
    script = Script(0, 1, (*SENT, *CALLED, *fate, Tick(0.5), Reset(0, 0.0), Tick(12.0)), settings, pace_s=0.2)

    played = play(script)

    assert judge(played.history, grace_s=played.grace_s).violations + played.troubles == []
