"""
What happened to a concurrent group, and whether it may have happened: pure.

The rules, for each row of the log, which is a message of the topic or one that was given back:

- It is given once; again under the same owner (an epoch) only when it failed and could not be given back, not before
  its pause is over, and with the next number; under another owner only when no durable progress covers it. An owner
  that gives a queue back has finished what it began, so that it is not done again.
- Two calls overlap in a queue only within one owner, or as a *fenced overlap* (see simulation/ordered.py).
- Progress never passes a row that is neither processed nor copied, and covers everything in the end.
- What is copied failed: to the retry topic not before the delay of its level, and, where nothing hindered, not 100 ms
  later; to the dead-letter topic only after the last attempt, or because the listener asked for it.
- Without crashes, kills and lost leases every message ends processed once, or as a dead letter, and not as both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from rmq.wire.model import MessageQueue

from simulation.final_log import TINY_S, Downtimes, Log
from simulation.groups import Group, Levels
from simulation.history import (
    DONE,
    FAILED,
    GIVEN_UP,
    Born,
    BrokerCrashed,
    Committed,
    Continued,
    Ended,
    Event,
    Granted,
    Hindered,
    Killed,
    Lost,
    Promised,
    Released,
    Row,
    Sent,
    Started,
    Stopped,
    Troubled,
    concerns,
)

RECONNECTING_S = 5.0  # for a member to be at work with a broker that is back
Place = tuple[MessageQueue, int]


class Findings(NamedTuple):
    """What was broken, and what there was to judge."""

    violations: list[str]
    calls: int
    fenced_overlaps: int
    strict: bool  # whether everything had to happen exactly once
    again: int  # deliveries of what had been processed before
    local: int  # of what could not be given back


class DeferredDelivery:
    """A row in the hands of a member; ``fate`` is None until its call has ended."""

    __slots__ = ("attempt", "call", "ended", "expired", "fate", "level")

    def __init__(self, call: Started, attempt: int) -> None:
        self.call = call
        self.attempt = attempt
        self.fate: str | None = None
        self.ended = float("inf")
        self.level = 0
        self.expired = False  # the call ran so long that its result may count for nothing

    @property
    def failed(self) -> bool:
        """Whether the row may have been given back for this."""
        return self.fate != DONE or self.expired


def judge_concurrent(
    events: list[Event], log: Log, group: Group, levels: Levels, topic: str, *, grace_s: float
) -> Findings:
    """Judge what befell a concurrent group; everything has been taken away that hindered it."""
    checker = _Checker(events, log, group, levels, topic)
    for event in events:
        checker.see(event)
    checker.copies()
    checker.ends(grace_s)
    return checker.findings()


class _Checker:
    def __init__(self, events: list[Event], log: Log, group: Group, levels: Levels, topic: str) -> None:
        self._log, self._group, self._levels, self._topic = log, group, levels, topic
        self._downtimes = Downtimes(events)
        self._violations: list[str] = []
        self._accepted: dict[bytes, Sent] = {}
        self._members: set[str] = set()
        self._calls: dict[int, Started] = {}
        self._running: dict[int, Started] = {}
        self._lost: set[int] = set()
        self._stopped: set[str] = set()
        self._fenced: set[int] = set()
        self._given: defaultdict[Place, list[DeferredDelivery]] = defaultdict(list)
        self._by_call: defaultdict[int, list[tuple[Place, DeferredDelivery]]] = defaultdict(list)
        self._newest: dict[MessageQueue, Started] = {}
        self._owners: dict[MessageQueue, Granted] = {}
        self._released: dict[tuple[MessageQueue, int], Released] = {}
        self._promised: defaultdict[MessageQueue, int] = defaultdict(int)
        self._committed: defaultdict[MessageQueue, int] = defaultdict(int)
        self._doubts: list[tuple[MessageQueue, int, float, str]] = []  # progress that is wrong if it lasts
        self._disturbed = False
        self._troubled: list[Troubled] = []
        self._healed = 0.0
        self._again = self._local = 0
        self._timeout_s = group.setting("consume_timeout_s", 900.0)
        self._see: dict[type, Callable[..., None]] = {
            Sent: self._sent, Born: self._born, Started: self._started, Ended: self._ended,
            Granted: self._granted, Released: self._was_released, Committed: self._progress,
            Promised: self._was_promised, Killed: self._killed, BrokerCrashed: self._crashed,
            Hindered: self._hindered, Troubled: self._trouble, Lost: self._was_lost,
            Stopped: lambda event: self._stopped.add(event.process),
            Continued: lambda event: self._stopped.discard(event.process),
        }  # fmt: skip

    def see(self, event: Event) -> None:
        """Judge the next event, if it is about this group."""
        if type(event) in self._see and concerns(event, self._group.name):
            self._see[type(event)](event)

    def _bad(self, at: float, text: str) -> None:
        self._violations.append(f"{at:.3f} s: {self._group.name}: {text}")

    def _sent(self, event: Sent) -> None:
        self._accepted[event.body] = event

    def _born(self, event: Born) -> None:
        self._members.add(event.process)

    def _hindered(self, event: Hindered) -> None:
        self._healed = max(self._healed, event.until)

    def _trouble(self, event: Troubled) -> None:
        if event.process in self._members:
            self._troubled.append(event)

    def _was_lost(self, event: Lost) -> None:
        if event.call in self._calls:
            self._lost.add(event.call)
            self._disturbed = True

    def _killed(self, event: Killed) -> None:
        if event.process in self._members:
            self._disturbed = True
            self._stopped.discard(event.process)
            self._running = {number: call for number, call in self._running.items() if call.process != event.process}

    def _crashed(self, event: BrokerCrashed) -> None:
        self._disturbed = True
        # Progress that was not promised may be gone, and the copies that were written with it.
        self._doubts = [doubt for doubt in self._doubts if doubt[1] < self._promised[doubt[0]]]
        for queue in self._committed:
            self._committed[queue] = self._promised[queue]

    # Owners

    def _granted(self, event: Granted) -> None:
        before = self._owners.get(event.queue)
        if event.committed != -1 and event.committed < self._promised[event.queue]:
            promised = self._promised[event.queue]
            self._bad(event.at, f"{event.queue} is granted at {event.committed}, and {promised} was promised")
        if before is not None and (event.queue, before.epoch) not in self._released:
            self._disturbed = True  # that lease was lost
        self._owners[event.queue] = event

    def _was_released(self, event: Released) -> None:
        if event.offset >= 0 or not self._disturbed:  # a broker that crashed may not have what was done
            self._released[event.queue, event.epoch] = event

    # Calls

    def _started(self, call: Started) -> None:
        self._calls[call.call] = call
        self._members.add(call.process)
        if call.lost:
            self._bad(call.at, f"{call} was started although its lease could not be proven")
        self._check_overlaps(call)
        for offset, attempt, body in zip(call.offsets, call.attempts, call.bodies, strict=True):
            row = self._log.at.get((call.queue, offset))
            if row is None or row.body != body:
                self._bad(call.at, f"{call} gets {body!r:.40}, and {row} is in the log")
            else:
                self._check_given(call, row, attempt)
        self._running[call.call] = call
        newest = self._newest.get(call.queue)
        if newest is None or call.epoch >= newest.epoch:
            self._newest[call.queue] = call

    def _check_overlaps(self, call: Started) -> None:
        newest = self._newest.get(call.queue)
        if newest is not None and call.epoch < newest.epoch:
            self._bad(call.at, f"{call} was started after {newest}, which fences it")
        for older in self._running.values():
            if older.queue != call.queue:
                continue
            if older.epoch == call.epoch:
                if set(older.offsets) & set(call.offsets) and not self._expired(older, call.at):
                    self._bad(call.at, f"{call} overlaps {older}: they share messages")
            elif older.call not in self._lost and older.process not in self._stopped:
                if not self._expired(older, call.at):
                    self._bad(call.at, f"{call} overlaps {older}, which did not know")
            else:
                self._fenced.add(older.call)

    def _expired(self, call: Started, at: float) -> bool:
        return at - call.at >= self._timeout_s - TINY_S

    def _check_given(self, call: Started, row: Row, attempt: int) -> None:
        place = row.queue, row.offset
        given = self._given[place]
        delivery = DeferredDelivery(call, attempt)
        sent = self._accepted.get(row.body)
        if sent is not None and sent.due is not None and call.at < sent.due - TINY_S:
            self._bad(call.at, f"{call} gets {row.body!r:.40}, which is due at {sent.due:.3f} s")
        under_this = [earlier for earlier in given if earlier.call.epoch == call.epoch]
        if under_this:
            self._check_local(under_this[-1], delivery, row)
        else:
            if attempt != row.attempts + 1:
                self._bad(call.at, f"{call}: attempt {attempt} of {row.offset} comes after {row.attempts}")
            if given:
                self._check_again(given[-1], delivery, row)
        given.append(delivery)
        self._by_call[call.call].append((place, delivery))

    def _check_local(self, before: DeferredDelivery, after: DeferredDelivery, row: Row) -> None:
        """Given again by the same owner."""
        at, pause_s = after.call.at, self._group.setting("send_back_retry_s", 5.0)
        self._local += 1
        if before.fate not in (FAILED, GIVEN_UP):
            self._bad(at, f"{after.call} has {row.offset} again, which was {before.fate or 'running'}")
        elif after.attempt != before.attempt + 1:
            self._bad(at, f"{after.call}: attempt {after.attempt} of {row.offset} follows {before.attempt}")
        elif at < before.ended + pause_s - TINY_S:
            self._bad(at, f"{after.call} has {row.offset} again, {at - before.ended:.3f} s after it failed")

    def _check_again(self, before: DeferredDelivery, after: DeferredDelivery, row: Row) -> None:
        """Given again by another owner."""
        call = after.call
        self._again += before.fate == DONE
        owner = self._owners.get(call.queue)
        if owner is not None and owner.epoch == call.epoch and row.offset < owner.committed:
            self._bad(call.at, f"{call} gives again what was committed: {row.offset}")
        if row.offset < self._promised[call.queue]:
            self._bad(call.at, f"{call} gives again {row.offset}: {self._promised[call.queue]} was promised")
        if (call.queue, before.call.epoch) in self._released and before.fate == DONE and not before.expired:
            first = self._first_of(call, before.call.epoch)
            if first is None or first.fate == DONE:
                self._bad(call.at, f"{call} gives {row.offset} again, though it was given back as finished")
            else:
                self._disturbed = True  # something before it could not be given back, so all after it comes again

    def _first_of(self, call: Started, epoch: int) -> DeferredDelivery | None:
        """The last delivery, under an earlier owner, of what a new one begins with."""
        begins = max(self._released[call.queue, epoch].offset, 0)
        for offset in range(begins, call.offsets[-1] + 1):
            under = [one for one in self._given.get((call.queue, offset), []) if one.call.epoch == epoch]
            if under:
                return under[-1]
        return None

    def _ended(self, event: Ended) -> None:
        call = self._calls.get(event.call)
        if call is None or self._running.pop(event.call, None) is None:
            return
        for (_, delivery), fate in zip(self._by_call[event.call], event.fates, strict=False):
            # What an owner that is fenced off has done counts for nothing.
            owner = self._owners.get(call.queue)
            delivery.fate = fate if owner is None or call.epoch >= owner.epoch else "fenced"
            delivery.ended, delivery.level = event.at, event.level
            delivery.expired = self._expired(call, event.at)

    # Progress

    def _was_promised(self, event: Promised) -> None:
        self._promised[event.queue] = max(self._promised[event.queue], event.offset)
        self._committed[event.queue] = max(self._committed[event.queue], event.offset)

    def _progress(self, event: Committed) -> None:
        for offset in range(self._committed[event.queue], event.offset):
            row = self._log.at.get((event.queue, offset))
            if row is not None and self._wants(row) and not self._settled(row, event.at):
                text = f"{event.queue} is committed up to {event.offset}, and {offset} is not finished"
                self._doubts.append((event.queue, offset, event.at, text))
        self._committed[event.queue] = max(self._committed[event.queue], event.offset)

    def _wants(self, row: Row) -> bool:
        return row.queue.topic == self._group.retries or self._group.wants(row.tag)

    def _settled(self, row: Row, at: float) -> bool:
        given = self._given.get((row.queue, row.offset), [])
        if any(one.fate == DONE for one in given):
            return True
        if not self._log.copied(self._group, row):
            return False
        return any(one.fate is not None or self._expired(one.call, at) for one in given)

    # Copies

    def copies(self) -> None:
        """What was given back and given up had failed, and waited for its time."""
        for row in self._log.topic(self._group.retries):
            failures = [one for one in self._of(row.body) if one.failed and one.attempt == row.attempts]
            if not failures:
                self._bad(row.at, f"{row.body!r:.40} was given back after delivery {row.attempts}, which did not fail")
            elif all(row.at < self._due(one) - TINY_S for one in failures):
                due = min(self._due(one) for one in failures)
                self._bad(row.at, f"{row.body!r:.40} comes back early: delivery {row.attempts} waits to {due:.3f} s")
            elif len(failures) == 1 and self._is_late(failures[0], row.at):
                due = self._due(failures[0])
                self._bad(row.at, f"{row.body!r:.40} comes back late: delivery {row.attempts} waits to {due:.3f} s")
        limit = self._levels.limit(self._group)
        for row in self._log.topic(self._group.dead):
            given = self._of(row.body)
            if not any(one.failed and (one.attempt >= limit or one.fate == GIVEN_UP) for one in given):
                self._bad(row.at, f"{row.body!r:.40} is a dead letter after {[one.attempt for one in given]}")

    def _of(self, body: bytes) -> list[DeferredDelivery]:
        rows = [*self._log.of(self._topic, body), *self._log.of(self._group.retries, body)]
        return [delivery for row in rows for delivery in self._given.get((row.queue, row.offset), [])]

    def _due(self, failure: DeferredDelivery) -> float:
        if failure.fate is None or failure.expired:  # it was taken from its call
            return failure.call.at + self._timeout_s + self._levels.delay_s(3, failure.attempt)
        return failure.ended + self._levels.delay_s(failure.level, failure.attempt)

    def _is_late(self, failure: DeferredDelivery, at: float) -> bool:
        return at > self._due(failure) + self._levels.late_s + TINY_S and self._unhindered(failure, at)

    def _unhindered(self, failure: DeferredDelivery, until: float) -> bool:
        if failure.fate != FAILED or failure.expired or self._disturbed:
            return False
        troubled = any(trouble.process == failure.call.process for trouble in self._troubled)
        return not troubled and not self._downtimes.touch(failure.call.at - RECONNECTING_S, until)

    # The end

    def ends(self, grace_s: float) -> None:
        """Everything is processed or given up, in time, and committed."""
        for _, _, at, text in self._doubts:
            self._bad(at, text)
        for body, sent in self._accepted.items():
            if self._group.wants(sent.tag):
                self._check_end(body, sent)
        for row in [*self._log.topic(self._topic), *self._log.topic(self._group.retries)]:
            if not self._wants(row) or row.body not in self._accepted:
                continue
            limit = max(row.at, self._healed + grace_s) + self._levels.settle_s
            given = self._given.get((row.queue, row.offset))
            if not given:
                self._bad(limit, f"{row.queue} {row.offset} is never given")
            elif given[0].call.at > limit:
                self._bad(given[0].call.at, f"{row.queue} {row.offset} is given late: it was due at {limit:.3f} s")
            if self._committed[row.queue] <= row.offset:
                self._bad(limit, f"{row.queue} is committed up to {self._committed[row.queue]} only")

    def _check_end(self, body: bytes, sent: Sent) -> None:
        given, dead = self._of(body), self._log.of(self._group.dead, body)
        done = [one for one in given if one.fate == DONE]
        if not done and not dead:
            self._bad(sent.at, f"{body!r:.40} was acknowledged, and is neither processed nor a dead letter")
        if self._disturbed or any(one.expired or one.fate is None for one in given):
            return
        if len(done) + len(dead) != 1:
            self._bad(sent.at, f"{body!r:.40} was processed {len(done)} times and is {len(dead)} dead letters")
        # One that could not be given back before its queue was handed over has the same number once more.
        attempts = [0, *(one.attempt for one in given)]
        if any(after - before not in (0, 1) for before, after in pairwise(attempts)):
            self._bad(sent.at, f"{body!r:.40} was delivered as {attempts[1:]}")

    def findings(self) -> Findings:
        """All of it."""
        return Findings(
            self._violations, len(self._calls), len(self._fenced), not self._disturbed, self._again, self._local
        )
