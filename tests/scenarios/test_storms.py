"""A fleet that never comes to rest: members come, go and die, and a sink that checks the token sees strict order."""

from __future__ import annotations

from collections import Counter, defaultdict

from simulation.history import Sent, Started, Wrote
from simulation.scripts import Join, Kill, Leave, Script, Send, Step, Tick
from simulation.world import play

KEYS = [f"k{number}" for number in range(8)]


def storm() -> Script:
    """Twenty changes in a minute, every sixth a kill, with a backlog that lasts for all of it."""
    steps: list[Step] = []
    alive: list[str] = []
    for change in range(20):
        steps += [Send("p1", 3, key, 0) for key in KEYS]
        if change % 3 == 2:
            gone = alive.pop(0)
            steps.append(Kill(gone) if change % 6 == 5 else Leave(gone))
        else:
            alive.append(f"c{change}")
            steps.append(Join(alive[-1]))
        steps.append(Tick(3.0))
    return Script(0, 4, tuple(steps), pace_s=0.1)


def test_twenty_changes_in_a_minute_keep_the_order_of_every_key_in_a_sink_that_checks_tokens() -> None:
    """Scenario 100."""
    played = play(storm())

    assert played.judged().violations == []
    sent = {(event.queue, event.offset): event for event in played.history if isinstance(event, Sent)}
    calls = Counter(event.process for event in played.history if isinstance(event, Started))
    assert len(calls) > 10, "most of the members had something to do"
    of_key: dict[bytes, list[int]] = defaultdict(list)
    for event in played.history:
        if isinstance(event, Wrote):
            message = sent[event.queue, event.offset]
            of_key[message.body.split(b"/")[2] if b"/" in message.body else message.body].append(message.number)
    assert {key.encode() for key in KEYS} <= set(of_key)
    for key in KEYS:
        # A run may be written again by the next owner; what is new comes in the order it was sent.
        numbers = of_key[key.encode()]
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
        assert len(set(numbers)) == 60
