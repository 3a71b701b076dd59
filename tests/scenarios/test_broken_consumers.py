"""
The checker can fail: builds with one protection taken away, each found out by the script that needs it.

Each is broken from outside, by a part that does not do what it should; the sound build passes the same script.
"""

from __future__ import annotations

import asyncio

import pytest

from rmq.consumer.dispatch.orderly import OrderlyScheduler
from rmq.consumer.group.assignment import QueueGates
from rmq.consumer.member import ConsumerRuntime
from rmq.engine.native.connection import Connection
from rmq.wire.model import MessageQueue

from simulation import ordered
from simulation.broken import UNFENCED, UNGUARDED, without_guard
from simulation.processes import ORDERS
from simulation.scripts import (
    CloseUnseen,
    Heal,
    Join,
    Kill,
    Leave,
    Pause,
    Resume,
    Script,
    Send,
    Slow,
    Step,
    Tick,
    ordered_script,
)
from simulation.verdict import Verdict
from simulation.world import SOUND, Build, play

ENOUGH = 60  # scripts, of the 300 that are played


# What is broken


class NoGates(QueueGates):
    """Gives each caller a gate of its own, so that none waits."""

    def __getitem__(self, queue: MessageQueue) -> asyncio.Lock:
        return asyncio.Lock()


class TrustingConnection(Connection):
    """Always says that the broker has answered just now: what is left is the time to live of the lock."""

    @property
    def answered_sent_at(self) -> float:  # type: ignore[override]
        return self._now()

    @answered_sent_at.setter
    def answered_sent_at(self, sent_at: float) -> None:
        """Not needed."""


def without_guard_and_gate(runtime: ConsumerRuntime) -> None:
    without_guard(runtime)
    assert isinstance(runtime.service, OrderlyScheduler)
    runtime.service.gates = NoGates()


UNGATED = Build(change=without_guard_and_gate)
TRUSTING = Build(connection=TrustingConnection)


# What finds it


def scripted(*steps: Step, queues: int = 1, messages: int = 150, pace_s: float = 0.2) -> Script:
    sends = [Send("p1", messages, f"k{key}", 0) for key in range(4 if queues > 1 else 1)]
    return Script(0, queues, (*sends, *steps), pace_s=pace_s)


def stopped_and_resumed(order: str) -> Script:
    """An owner gets SIGSTOP within a call, its lease runs out, another takes over, and it goes on."""
    return scripted(
        Join("c1"), Tick(1.05), Join("c2"), Tick(1.0), Pause("c1"), Tick(70.0), Resume("c1", order), Tick(3.0)
    )  # fmt: skip


DROPPED_DURING_A_CALL = scripted(
    Join("c1"), Slow("c1", 4.0), Slow("c1", 4.0), Tick(1.0), Join("c2"), Tick(6.0),
    queues=2, messages=20,
)  # fmt: skip

# c2 is heard of and never asks for a queue: c1 drops one while it is being consumed, and gets it back.
AWAY_AND_BACK = scripted(
    Join("c1"), Slow("c1", 20.0), Slow("c1", 20.0), Tick(1.0), Join("c2"), Tick(0.005), Pause("c2"), Tick(2.0),
    Kill("c2"), Tick(10.0),
    queues=2, messages=20,
)  # fmt: skip

CLOSED_UNSEEN = scripted(
    Join("c1"), Tick(1.0), Join("c2"), Tick(1.0), CloseUnseen("c1"), Tick(12.0), Heal("c1", cut=False), Tick(3.0),
    Leave("c2"),
)  # fmt: skip


def verdict(one: Script, build: Build) -> Verdict:
    played = play(one, build)
    found = (played if build is SOUND else played._replace(troubles=[])).judged()
    print(found)
    return found


@pytest.mark.parametrize("order", ORDERS)
def test_fencing_off_is_caught_by_an_owner_that_was_stopped_and_resumed(order: str) -> None:
    one = stopped_and_resumed(order)

    assert any("which fences it" in line for line in verdict(one, UNFENCED).violations)
    assert verdict(one, SOUND).violations == []


def test_the_consume_guard_off_is_caught_by_a_drop_during_a_call() -> None:
    broken = verdict(DROPPED_DURING_A_CALL, UNGUARDED)

    assert any("did not know" in line for line in broken.violations)
    assert verdict(DROPPED_DURING_A_CALL, SOUND).violations == []


def test_the_gate_off_is_caught_by_a_queue_that_leaves_and_comes_back_while_its_old_call_runs() -> None:
    """Scenarios 27 and 28. The guard is off in both: it would keep the queue from coming back before its call ended."""
    assert any("in the same process" in line for line in verdict(AWAY_AND_BACK, UNGATED).violations)
    assert not any("overlaps" in line for line in verdict(AWAY_AND_BACK, UNGUARDED).violations)
    assert verdict(AWAY_AND_BACK, SOUND).violations == []


def test_the_ping_rule_off_is_caught_by_a_connection_that_the_broker_closes_and_the_client_does_not_see() -> None:
    broken = verdict(CLOSED_UNSEEN, TRUSTING)

    assert any("did not know" in line or "fences" in line for line in broken.violations)
    assert verdict(CLOSED_UNSEEN, SOUND).violations == []


@pytest.mark.parametrize("build", [UNFENCED, UNGUARDED, TRUSTING], ids=["unfenced", "unguarded", "trusting"])
def test_generated_scripts_find_it_too(build: Build) -> None:
    """One of the first scripts that ``make test`` plays does, which was not written for it."""
    for seed in range(1, ENOUGH + 1):
        one = ordered_script(seed)
        found = ordered.judge(play(one, build).history, wants=one.groups[0].wants)
        if found.violations:
            print(seed, found)
            return
    pytest.fail(f"{ENOUGH} scripts have not found it")
