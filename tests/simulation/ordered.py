"""
What happened to a group's queues, and whether it may have happened: pure, for simulated and for real processes.

The rules, for each queue of each group:

- A call's messages follow each other, and those of the owner's last call: no gap, nothing out of order. What failed is
  given again; nothing else is. An owner is an epoch.
- A new owner begins at the offset that was committed when it was granted the queue, so what is delivered again is a
  run without a gap, and nothing that was committed is in it.
- What is committed was processed before, and never goes back; only a broker that crashed may have forgotten progress,
  and then no more than what it had not acknowledged.
- Two calls overlap only as a *fenced overlap*: the older one's epoch is lower, its ``context.lost`` was set or its
  process was stopped before the newer one began, it is of another process, and its owner neither starts a call nor
  commits from then on.
- A dead letter may be left out, and counts as processed. Where an offset is reset to, the next owner begins, and what
  owners of before do from then on counts for nothing.
- The number of an attempt never goes down, and goes up when a failed message is given again by the same owner.
- What was acknowledged to a producer is what the listener gets at that offset, in the order in which it was sent, and
  it is processed (or a dead letter) within ``settle_s`` of the moment from which nothing hinders it.
- A sink that refuses a writer with an epoch lower than one it has seen is written without a gap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from simulation.history import (
    DONE,
    FAILED,
    KEPT,
    ROLLED_BACK,
    BrokerCrashed,
    Committed,
    Continued,
    DeadLettered,
    Ended,
    Event,
    Granted,
    Hindered,
    History,
    Killed,
    Lost,
    OffsetReset,
    Promised,
    Queue,
    Sent,
    Started,
    Stopped,
    Wrote,
)

SETTLE_S = 2.0


class Verdict(NamedTuple):
    """What was broken, and what there was to judge."""

    violations: list[str]
    calls: int
    fenced_overlaps: int  # calls that a newer owner's call began next to, as the contract allows
    missing: int  # acknowledged messages that were not processed

    def __str__(self) -> str:
        head = f"{self.calls} calls, {self.fenced_overlaps} fenced overlaps, {len(self.violations)} violations"
        return "\n  ".join([head, *self.violations[:10]])


def judge(
    history: History,
    *,
    grace_s: float | None = None,
    settle_s: float = SETTLE_S,
    wants: Callable[[str | None], bool] = lambda tag: True,
) -> Verdict:
    """
    Judge a history that has ended.

    Without ``grace_s`` it is not asked when, and whether, everything was processed. ``wants`` is true of the tags
    that the group has subscribed to.
    """
    events = list(history)
    checker = _Checker(events, wants)
    for event in events:
        checker.see(event)
    if grace_s is not None:
        checker.all_processed(grace_s, settle_s)
    return Verdict(checker.violations, len(checker.calls), len(checker.fenced), checker.missing())


class _Owner:
    """What an epoch was given: places in the line of wanted messages."""

    def __init__(self, first: int) -> None:
        self.first = first  # the first that is not processed
        self.next = first  # what the next call has to begin with
        self.failed = 0  # what lies before this place was given before, and failed


class _Line:
    """One queue of one group: its wanted messages, and how far everything is."""

    def __init__(self, offsets: list[int]) -> None:
        self.offsets = offsets
        self.sent: dict[int, Sent] = {}
        self.processed_at: dict[int, float] = {}
        self.processed = 0  # how many from the start on
        self.committed = 0
        self.promised = 0
        self.owners: dict[int, _Owner] = {}
        self.granted: dict[int, int] = {}
        self.running: dict[int, Started] = {}
        self.newest: Started | None = None  # of the calls, the one with the highest epoch
        self.attempts: dict[int, int] = {}
        self.written = 0  # places of the line that the sink has
        self.dead: set[int] = set()
        self.void = -1  # the last epoch before the offset was reset

    def place(self, offset: int) -> int:
        """The place of the first wanted message that is not below an offset."""
        return bisect_left(self.offsets, offset)

    def due(self, first: int, end: int) -> list[int]:
        """What may not be left out of these places."""
        return [offset for offset in self.offsets[first:end] if offset not in self.dead]

    def done(self, first: int, end: int, at: float) -> None:
        """Messages were processed."""
        for offset in self.offsets[first:end]:
            self.processed_at.setdefault(offset, at)
        while self.processed < len(self.offsets) and self.offsets[self.processed] in self.processed_at:
            self.processed += 1

    def upto(self) -> int | str:
        """The first offset that is not processed, for people."""
        return self.offsets[self.processed] if self.processed < len(self.offsets) else "the end"


class _Checker:
    def __init__(self, events: list[Event], wants: Callable[[str | None], bool]) -> None:
        self.violations: list[str] = []
        self.calls: dict[int, Started] = {}
        self.fenced: set[int] = set()
        self._lost: set[int] = set()
        self._stopped: set[str] = set()
        self._hindered_until = 0.0
        self._numbers: dict[tuple[str, Queue], tuple[int, int]] = {}
        self._lines = _lines(events, wants)
        self._see: dict[type, Callable[..., None]] = {
            Sent: self._sent, Granted: self._granted, Started: self._started, Ended: self._ended, Killed: self._killed,
            Committed: self._committed, Promised: self._promised, BrokerCrashed: self._broker_crashed,
            Wrote: self._wrote, DeadLettered: self._dead_lettered, OffsetReset: self._offset_reset,
            Lost: lambda event: self._lost.add(event.call), Stopped: lambda event: self._stopped.add(event.process),
            Continued: lambda event: self._stopped.discard(event.process), Hindered: self._hindered,
        }  # fmt: skip

    def see(self, event: Event) -> None:
        """Judge the next event."""
        if type(event) in self._see:
            self._see[type(event)](event)

    def _bad(self, at: float, text: str) -> None:
        self.violations.append(f"{at:.3f} s: {text}")

    # What was sent

    def _sent(self, event: Sent) -> None:
        number, offset = self._numbers.get((event.producer, event.queue), (-1, -1))
        if (event.number > number) != (event.offset > offset):
            self._bad(event.at, f"{event.producer} sent {event.number} after {number}, and it is at {event.offset}")
        self._numbers[event.producer, event.queue] = max((event.number, event.offset), (number, offset))

    def _hindered(self, event: Hindered) -> None:
        self._hindered_until = max(self._hindered_until, event.until)

    # Calls

    def _granted(self, event: Granted) -> None:
        line = self._lines[event.queue]
        if event.epoch <= line.void:
            return
        if event.committed != -1 and event.committed < line.promised:
            self._bad(event.at, f"{event.queue} is granted at {event.committed}, and {line.promised} was promised")
        line.granted[event.epoch] = max(event.committed, 0)
        line.committed = max(event.committed, 0)

    def _started(self, call: Started) -> None:
        self.calls[call.call] = call
        line = self._lines[call.queue]
        self._check_messages(line, call)
        self._check_order(line, call)
        self._check_attempts(line, call)
        self._check_overlaps(line, call)
        line.running[call.call] = call
        if line.newest is None or call.epoch >= line.newest.epoch:
            line.newest = call

    def _check_messages(self, line: _Line, call: Started) -> None:
        if call.lost:
            self._bad(call.at, f"{call} was started although its lease could not be proven")
        for before, after in pairwise(call.offsets):
            if before >= after or line.due(line.place(before) + 1, line.place(after)):
                self._bad(call.at, f"{call} has a gap, or goes back, between {before} and {after}")
        for offset, body in zip(call.offsets, call.bodies, strict=False):
            if offset in line.sent and line.sent[offset].body != body:
                self._bad(call.at, f"{call}: {body!r} is not what was sent to {offset}")

    def _check_order(self, line: _Line, call: Started) -> None:
        place = line.place(call.offsets[0])
        owner = line.owners.get(call.epoch)
        if owner is None:
            owner = line.owners[call.epoch] = _Owner(place)
            self._check_first(line, call, place)
        elif due := line.due(owner.next, place):
            self._bad(call.at, f"{call} leaves a gap: {due[0]} was due")
        elif place < owner.next:
            self._bad(call.at, f"{call} goes back: {line.offsets[place : owner.next]} had been given")
        owner.next = place

    def _check_first(self, line: _Line, call: Started, place: int) -> None:
        """Where a new owner begins."""
        if call.epoch <= line.void:
            return
        committed = line.granted.get(call.epoch)
        first = line.place(committed or 0)
        if committed is not None and (place < first or line.due(first, place)):
            self._bad(call.at, f"{call} is the first of its owner, which was granted the queue at {committed}")
        elif line.due(line.processed, place):
            self._bad(call.at, f"{call} leaves a gap: processed is only what is below {line.upto()}")
        elif place < line.place(line.promised):
            self._bad(call.at, f"{call} gives again what was committed: all below {line.promised} was")

    def _check_attempts(self, line: _Line, call: Started) -> None:
        if call.epoch <= line.void:
            return  # the count began again
        again = line.place(call.offsets[0]) < line.owners[call.epoch].failed
        for offset, attempt in zip(call.offsets, call.attempts, strict=True):
            last = line.attempts.get(offset, 0)
            if attempt < max(last, 1):
                self._bad(call.at, f"{call}: attempt {attempt} of {offset} comes after attempt {last}")
            elif again and offset == call.offsets[0] and attempt == last:
                self._bad(call.at, f"{call}: attempt {attempt} of {offset} failed, and has the same number now")
            line.attempts[offset] = attempt

    def _check_overlaps(self, line: _Line, call: Started) -> None:
        if line.newest is not None and call.epoch < line.newest.epoch:
            self._bad(call.at, f"{call} was started after {line.newest}, which fences it")
        for older in line.running.values():
            if older.process == call.process:
                self._bad(call.at, f"{call} overlaps {older} in the same process")
            elif older.epoch >= call.epoch:
                self._bad(call.at, f"{call} overlaps {older}, whose epoch is not lower")
            elif older.call not in self._lost and older.process not in self._stopped:
                self._bad(call.at, f"{call} overlaps {older}, which did not know that it lost the queue")
            else:
                self.fenced.add(older.call)

    def _ended(self, event: Ended) -> None:
        call = self.calls.get(event.call)
        if call is None or self._lines[call.queue].running.pop(event.call, None) is None:
            return  # it is another group's, or its process was killed
        line = self._lines[call.queue]
        owner = line.owners[call.epoch]
        owner.failed = line.place(call.offsets[-1]) + 1 if event.result in (FAILED, ROLLED_BACK) else 0
        if event.result in (DONE, KEPT):
            owner.next = line.place(call.offsets[-1]) + 1
        elif event.result == ROLLED_BACK:
            owner.next = owner.first
        if event.result == DONE:
            # What an owner that is fenced off has done counts for nothing: its successor does it again.
            if call.epoch > line.void and (line.newest is None or call.epoch >= line.newest.epoch):
                line.done(owner.first, owner.next, event.at)
            owner.first = owner.next

    def _killed(self, event: Killed) -> None:
        self._stopped.discard(event.process)
        for line in self._lines.values():
            line.running = {number: call for number, call in line.running.items() if call.process != event.process}

    # Progress

    def _committed(self, event: Committed) -> None:
        line = self._lines[event.queue]
        if line.place(event.offset) > line.processed:
            self._bad(event.at, f"{event.queue} is committed up to {event.offset}, and processed up to {line.upto()}")
        if event.offset < line.committed:
            self._bad(event.at, f"the progress of {event.queue} goes back from {line.committed} to {event.offset}")
        if event.epoch is not None and line.newest is not None and event.epoch < line.newest.epoch:
            self._bad(event.at, f"epoch {event.epoch} commits {event.offset} after {line.newest}, which fences it")
        line.committed = event.offset

    def _promised(self, event: Promised) -> None:
        line = self._lines[event.queue]
        if event.epoch is None or event.epoch > line.void:
            line.promised = max(line.promised, event.offset)

    def _broker_crashed(self, event: BrokerCrashed) -> None:
        for line in self._lines.values():
            line.committed = line.promised

    def _dead_lettered(self, event: DeadLettered) -> None:
        line = self._lines[event.queue]
        place = line.place(event.offset)
        if place < len(line.offsets) and line.offsets[place] == event.offset:
            line.dead.add(event.offset)
            line.done(place, place + 1, event.at)

    def _offset_reset(self, event: OffsetReset) -> None:
        line = self._lines[event.queue]
        place = line.place(event.offset)
        for offset in line.offsets[place:]:
            line.processed_at.pop(offset, None)
        line.done(0, place, event.at)
        line.processed = line.written = place
        line.committed = line.promised = event.offset
        line.attempts.clear()
        line.dead.clear()
        line.void = event.last_epoch

    # The sink

    def _wrote(self, event: Wrote) -> None:
        line = self._lines[event.queue]
        place = line.place(event.offset)
        if event.epoch <= line.void:
            return
        if due := line.due(line.written, place):
            self._bad(event.at, f"the sink of {event.queue} gets {event.offset}, and {due[0]} is due")
        line.written = max(line.written, place + 1)

    # The end

    def missing(self) -> int:
        """How many messages were acknowledged and not processed."""
        return sum(offset not in line.processed_at for line in self._lines.values() for offset in line.sent)

    def all_processed(self, grace_s: float, settle_s: float) -> None:
        """Everything that was acknowledged has been processed in time."""
        for queue, line in self._lines.items():
            for sent in line.sent.values():
                limit = max(self._hindered_until + grace_s, sent.at) + settle_s
                done_at = line.processed_at.get(sent.offset)
                if done_at is None:
                    self._bad(limit, f"{sent.offset} of {queue}, acknowledged at {sent.at:.3f} s, is never processed")
                elif done_at > limit:
                    self._bad(done_at, f"{sent.offset} of {queue} is processed late: it was due at {limit:.3f} s")


def _lines(events: list[Event], wants: Callable[[str | None], bool]) -> defaultdict[Queue, _Line]:
    """Every queue with the messages that its owners should get: those acknowledged, and those they got."""
    offsets: defaultdict[Queue, set[int]] = defaultdict(set)
    for event in events:
        if isinstance(event, Sent) and wants(event.tag):
            offsets[event.queue].add(event.offset)
        elif isinstance(event, Started):
            offsets[event.queue].update(event.offsets)
    lines = defaultdict(lambda: _Line([]), {queue: _Line(sorted(found)) for queue, found in offsets.items()})
    for event in events:
        if isinstance(event, Sent) and wants(event.tag):
            lines[event.queue].sent[event.offset] = event
    return lines
