"""
The checkers of the other modes can fail: builds with one protection taken away, each found out by the script it needs.

Each is broken from outside, by a part that does not do what it should; the sound build passes the same script. Those
that any script may meet are found by the first generated ones, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
from functools import partial
from typing import Any

import pytest

from rmq.broker.app import Broker
from rmq.broker.jobs.deferred_delivery import DeferredDelivery, Due
from rmq.broker.state.dead_letters import CopiedTable
from rmq.consumer.dispatch.concurrent import ConcurrentService
from rmq.consumer.dispatch.failures import Fate
from rmq.consumer.fetch.concurrent_queue import Chunk, ConcurrentQueue
from rmq.consumer.group.assignment import Assignment
from rmq.consumer.member import ConsumerRuntime
from rmq.wire.model import MessageQueue

from rigs.disk.crash import KEPT
from simulation.broken import UNFENCED, UNGUARDED
from simulation.groups import CAST_ORDERLY, CONCURRENT, Group
from simulation.network import DOWN
from simulation.processes import ORDERS
from simulation.scripts import (
    CloseUnseen,
    Crash,
    Fail,
    Heal,
    Join,
    Kill,
    Partition,
    Pause,
    Resume,
    Script,
    Send,
    Slow,
    Step,
    Tick,
    mixed_script,
)
from simulation.verdict import Verdict
from simulation.world import SOUND, Build, play

ENOUGH = 40  # scripts, of the 100 that are played

pytestmark = pytest.mark.slow


# What is broken: the consumer


class Forgetting:
    """Says that failed messages were given back."""

    async def give_back(self, assignment: Assignment, messages: Any, **_: Any) -> Fate:
        """Nothing is done."""
        return Fate.GIVEN_BACK


class Highest(ConcurrentQueue):
    """Takes the highest finished message for the progress."""

    _highest = 0

    def done(self, chunk: Chunk) -> None:
        messages = self.messages_of(chunk)
        if messages:
            self._highest = max(self._highest, messages[-1].queue_offset + 1)
        super().done(chunk)

    @property
    def commit_offset(self) -> int:
        return max(self._highest, super().commit_offset)


def forgetting(runtime: ConsumerRuntime) -> None:
    if isinstance(runtime.service, ConcurrentService):
        runtime.service._failures = Forgetting()


def highest(runtime: ConsumerRuntime) -> None:
    if isinstance(runtime.service, ConcurrentService):
        runtime.rebalancer._make_cache = partial(Highest, max_span=2000)


def writing_ahead(runtime: ConsumerRuntime) -> None:
    """A broadcasting member writes that it is further than it is."""
    if runtime._local is not None:
        progress = runtime._local.progress
        honest = progress.note
        progress.note = lambda queue, at: honest(queue, at._replace(offset=at.offset + 10))  # type: ignore[method-assign]


# What is broken: the broker


class EarlyBroker(Broker):
    """Its clock of deliveries is a fifth of a second ahead."""

    def _build_handlers(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._build_handlers(loop)
        honest = self._handlers.delivery._now_us
        self._handlers.delivery._now_us = lambda: honest() + 200_000


class Unmarked(DeferredDelivery):
    """Delivers without a word of what it delivers."""

    def _stage(self, due: Due) -> str | None:
        assert due.checked is not None
        header = due.checked.header
        self._store.stage(MessageQueue(header.topic, header.queue_id), header.topic_gen, due.data, due.checked)
        return None


class RepeatingBroker(Broker):
    """Does not know after a crash what it has delivered."""

    def _build_handlers(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._build_handlers(loop)
        self._handlers.delivery.__class__ = Unmarked


class Forgetful(CopiedTable):
    """Knows of nothing that was copied."""

    def offsets(self, group: str, queue: MessageQueue) -> Set[int]:
        return frozenset()


class CopyingBroker(Broker):
    """Copies what it is asked to copy, however often."""

    def _build_services(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._build_services(loop)
        self._ledger.copied = Forgetful()


# What finds it

SHORT = (("message_delay_level", "1s 2s 1s 2s"), ("max_retries", 2))
ONE = Group("g1", CONCURRENT, (("batch", 1), ("slots", 2)))
GOOD, BAD = Send("p1", 2, "k", 0), Send("p1", 2, "k", 0, bad=1)
NEVER_GOOD = Send("p1", 2, "k", 0, bad=99)
DELAYED = Send("p1", 3, "k", 0, None, 0, 0.5)


def scripted(*steps: Step, group: Group = ONE, queues: int = 1) -> Script:
    return Script(0, queues, steps, (group,), SHORT)


FAILS = scripted(GOOD, BAD, Join("g1-1"), Tick(5.0))
OVERTAKEN = scripted(Join("g1-1"), Tick(0.5), Slow("g1-1", 3.0), GOOD, Tick(1.0), Send("p1", 1, "k", 0), Tick(5.0))
WAITS = scripted(Join("g1-1"), DELAYED, Tick(2.0))
WAITS_AND_CRASHES = scripted(Join("g1-1"), DELAYED, Tick(1.0), Crash(KEPT, 0.0), Tick(3.0))
REPLY_LOST = scripted(  # of a send-back of a message that the progress cannot pass
    Join("g1-1"), Tick(0.5), Slow("g1-1", 25.0), Slow("g1-1", 0.5), Send("p1", 1, "k", 0), BAD, Tick(0.3),
    Partition("g1-1", (DOWN,)), Tick(0.6), Heal("g1-1", cut=True), Tick(12.0),
)  # fmt: skip
# As many slots as messages: whichever queue is pulled first, calls of both run when one is handed over.
HANDED_OVER = scripted(
    *(Send("p1", 4, f"k{key}", 0) for key in range(6)), Join("g1-1"), *[Slow("g1-1", 4.0)] * 24, Tick(1.0),
    Join("g1-2"), Tick(6.0), queues=2, group=Group("g1", CONCURRENT, (("batch", 1), ("slots", 24))),
)  # fmt: skip
COMES_BACK = scripted(
    *(Send("p1", 10, "k", 0) for _ in range(2)), Join("g1-i1-1"), *[Slow("g1-i1-1", 0.6)] * 20, Tick(5.5),
    Kill("g1-i1-1"), Tick(0.5), Join("g1-i1-2"), Tick(3.0), group=Group("g1", CAST_ORDERLY),
)  # fmt: skip
CUT_OFF = scripted(
    *(Send("p1", 10, "k", 0) for _ in range(2)), Join("g1-1"), *[Slow("g1-1", 9.0)] * 3, Tick(0.5), CloseUnseen("g1-1"),
    Join("g1-2"), Tick(9.5), Heal("g1-1", cut=True), Tick(3.0),
)  # fmt: skip
GIVEN_UP = scripted(NEVER_GOOD, Join("g1-1"), Fail("g1-1", 1, "ack", -1), Tick(9.0))


def stopped_and_resumed(order: str) -> Script:
    """An owner gets SIGSTOP within a call, its lease runs out, another takes over, and it goes on."""
    return scripted(
        *(Send("p1", 10, "k", 0) for _ in range(15)), Join("g1-1"), *[Slow("g1-1", 0.3)] * 200, Tick(1.05),
        Join("g1-2"), *[Slow("g1-2", 0.3)] * 200, Tick(1.0), Pause("g1-1"), Tick(70.0), Resume("g1-1", order),
        Tick(3.0),
    )  # fmt: skip


def verdict(one: Script, build: Build) -> Verdict:
    played = play(one, build)
    found = (played if build is SOUND else played._replace(troubles=[])).judged()
    print(found)
    return found


BROKEN = {
    "send-back that forgets": (Build(change=forgetting), FAILS, "neither processed nor a dead letter"),
    "progress of the highest": (Build(change=highest), OVERTAKEN, "is not finished"),
    "early delivery": (Build(broker=EarlyBroker), WAITS, "it is early"),
    "delay delivered twice": (Build(broker=RepeatingBroker), WAITS_AND_CRASHES, "in the log 2 times"),
    "send-back that repeats": (Build(broker=CopyingBroker), REPLY_LOST, "given back 2 times"),
    "hand-over that rushes": (UNGUARDED, HANDED_OVER, "which did not know"),
    "progress written ahead": (Build(change=writing_ahead), COMES_BACK, "leaves a gap"),
}


@pytest.mark.parametrize(("build", "one", "text"), BROKEN.values(), ids=BROKEN)
def test_a_broken_build_is_caught_and_the_sound_one_is_not(build: Build, one: Script, text: str) -> None:
    assert any(text in line for line in verdict(one, build).violations)
    assert verdict(one, SOUND).violations == []


@pytest.mark.parametrize("order", ORDERS)
def test_fencing_off_is_caught_by_an_owner_that_was_stopped_and_resumed(order: str) -> None:
    one = stopped_and_resumed(order)

    assert any("fence" in line for line in verdict(one, UNFENCED).violations)
    assert verdict(one, SOUND).violations == []


@pytest.mark.parametrize("one", [CUT_OFF, GIVEN_UP], ids=["cut off", "given up"])
def test_the_sound_build_passes_what_is_rough(one: Script) -> None:
    assert verdict(one, SOUND).violations == []


FOUND = {
    "forgetting": Build(change=forgetting), "highest": Build(change=highest), "early": Build(broker=EarlyBroker),
    "repeating": Build(broker=RepeatingBroker),
}  # fmt: skip


@pytest.mark.parametrize("build", FOUND.values(), ids=FOUND)
def test_generated_scripts_find_it_too(build: Build) -> None:
    for seed in range(1, ENOUGH + 1):
        found = play(mixed_script(seed), build)._replace(troubles=[]).judged()
        if found.violations:
            print(seed, found)
            return
    pytest.fail(f"{ENOUGH} scripts have not found it")
