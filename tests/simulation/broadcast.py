"""
What happened to a broadcasting group, and whether it may have happened: pure.

An *instance* has progress of its own, and one life after the other. The rules, for each queue of each instance:

- A life begins where the last one ended: exactly there if that stopped cleanly, else not past what was finished, and
  with nothing again that was finished well before the instance's progress was written for the last time.
- Orderly: each message follows the one before; one that failed is given again, and passed after its last attempt.
- Concurrent: each message is given once in a life, and passed whatever becomes of it.
- In the end an instance that lives has finished everything that was acknowledged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable

from rmq.wire.model import MessageQueue

from simulation.concurrent import Findings
from simulation.final_log import Log
from simulation.groups import CAST_ORDERLY, Group
from simulation.history import (
    CUT,
    DONE,
    Born,
    Continued,
    Ended,
    Event,
    Hindered,
    Killed,
    Left,
    Sent,
    Started,
    Stopped,
    concerns,
)

SETTLE_S = 2.0
WRITING_S = 1.0  # from when progress is due to be written until it is


def judge_broadcast(events: list[Event], log: Log, group: Group, topic: str) -> Findings:
    """Judge what befell a broadcasting group; everything has been taken away that hindered it."""
    checker = _Checker(log, group, topic)
    for event in events:
        checker.see(event)
    checker.ends()
    return Findings(checker.violations, len(checker.calls), 0, checker.strict, checker.again, 0)


class _Line:
    """A queue as one instance sees it: places in the line of wanted messages."""

    def __init__(self, offsets: list[int]) -> None:
        self.offsets = offsets
        self.finished: dict[int, float] = {}
        self.next: int | None = None  # of this life; None before its first call
        self.begin = 0  # of this life
        self.given: dict[int, int] = {}  # of this life: the attempt
        self.done: dict[int, float] = {}  # of this life: what it finished, and when
        self.first = 0  # of the places, the lowest that is not finished
        self.floor = 0  # what lies below is written, and not to be given again

    def place(self, offset: int) -> int:
        """The place of the first wanted message that is not below an offset."""
        return bisect_left(self.offsets, offset)

    def finish(self, place: int, at: float) -> None:
        """A message was finished."""
        self.finished.setdefault(place, at)
        self.done.setdefault(place, at)
        while self.first in self.finished:
            self.first += 1

    def born(self) -> None:
        """Another life begins."""
        self.next = None
        self.given = {}
        self.done = {}

    def ended(self, written: Callable[[float], bool]) -> None:
        """A life is over; what was finished at a time for which ``written`` is true has been written."""
        if self.next is None:
            return
        place = self.begin
        while place in self.done and written(self.done[place]):
            place += 1
        self.floor = max(self.floor, place)


class _Instance:
    def __init__(self, lines: Callable[[], dict[MessageQueue, _Line]]) -> None:
        self.lines = lines()
        self.process: str | None = None


class _Checker:
    def __init__(self, log: Log, group: Group, topic: str) -> None:
        self._log, self._group = log, group
        self._orderly = group.kind == CAST_ORDERLY
        self.violations: list[str] = []
        self.calls: dict[int, Started] = {}
        self.strict = True
        self.again = 0
        self._running: dict[int, Started] = {}
        self._accepted: dict[bytes, Sent] = {}
        self._healed = 0.0
        offsets: defaultdict[MessageQueue, list[int]] = defaultdict(list)
        for row in sorted(log.topic(topic), key=lambda row: (row.queue, row.offset)):
            if group.wants(row.tag):
                offsets[row.queue].append(row.offset)
        self._instances: defaultdict[str, _Instance] = defaultdict(
            lambda: _Instance(lambda: {queue: _Line(found) for queue, found in offsets.items()})
        )
        self._of: dict[str, _Instance] = {}
        self._stopped: dict[str, float] = {}
        self._stops: list[tuple[str, float, float]] = []
        self._limit = int(group.setting("max_attempts", -1))
        self._see: dict[type, Callable[..., None]] = {
            Sent: self._sent, Born: self._born, Left: self._left, Killed: self._killed,
            Started: self._started, Ended: self._ended, Hindered: self._hindered,
            Stopped: lambda event: self._stopped.setdefault(event.process, event.at), Continued: self._continued,
        }  # fmt: skip

    def see(self, event: Event) -> None:
        """Judge the next event, if it is about this group."""
        if type(event) in self._see and concerns(event, self._group.name):
            self._see[type(event)](event)

    def _bad(self, at: float, text: str) -> None:
        self.violations.append(f"{at:.3f} s: {self._group.name}: {text}")

    def _sent(self, event: Sent) -> None:
        self._accepted[event.body] = event

    def _hindered(self, event: Hindered) -> None:
        self._healed = max(self._healed, event.until)

    def _continued(self, event: Continued) -> None:
        if (began := self._stopped.pop(event.process, None)) is not None:
            self._stops.append((event.process, began, event.at))

    # Lives

    def _born(self, event: Born) -> None:
        instance = self._of[event.process] = self._instances[event.instance]
        if instance.process is not None:
            self._bad(event.at, f"{event.process} lives, and {instance.process} too, as {event.instance}")
        instance.process = event.process
        for line in instance.lines.values():
            line.born()

    def _left(self, event: Left) -> None:
        self._end_life(event.process, lambda _: True)

    def _killed(self, event: Killed) -> None:
        if event.process not in self._of:
            return
        self.strict = False
        limit_s = self._group.setting("offsets_every_s", 5.0) + WRITING_S
        self._end_life(event.process, lambda at: self._awake(event.process, at, event.at) > limit_s)
        self._running = {number: call for number, call in self._running.items() if call.process != event.process}

    def _end_life(self, process: str, written: Callable[[float], bool]) -> None:
        if (instance := self._of.get(process)) is not None:
            instance.process = None
            for line in instance.lines.values():
                line.ended(written)

    def _awake(self, process: str, since: float, until: float) -> float:
        """How long a process could do anything in a span."""
        stops = [*self._stops, *((of, at, until) for of, at in self._stopped.items())]
        still = sum(max(0.0, min(on, until) - max(began, since)) for of, began, on in stops if of == process)
        return until - since - still

    # Calls

    def _started(self, call: Started) -> None:
        self.calls[call.call] = self._running[call.call] = call
        instance = self._of[call.process]
        line = instance.lines.setdefault(call.queue, _Line([]))
        places = [line.place(offset) for offset in call.offsets]
        if call.lost:
            self._bad(call.at, f"{call}: no member can take a queue from a broadcasting member")
        for offset, body in zip(call.offsets, call.bodies, strict=True):
            row = self._log.at.get((call.queue, offset))
            if row is None or row.body != body:
                self._bad(call.at, f"{call} gets {body!r:.40}, and {row} is in the log")
        if places != list(range(places[0], places[0] + len(places))):
            self._bad(call.at, f"{call} has a gap, or goes back")
        if line.next is None:
            self._check_begin(line, places[0], call)
            line.next = places[0]
        if places[0] != line.next:
            self._bad(call.at, f"{call} is not what is due: that is {self._named(line, line.next)}")
        self._check_attempts(line, places, call)
        self.again += sum(place in line.finished for place in places)
        if not self._orderly:
            line.next = places[-1] + 1
        elif any(other.queue == call.queue and self._of[other.process] is instance for other in self._others(call)):
            self._bad(call.at, f"{call} overlaps another call of its queue")

    def _others(self, call: Started) -> list[Started]:
        return [other for other in self._running.values() if other.call != call.call]

    def _check_begin(self, line: _Line, place: int, call: Started) -> None:
        line.begin = place
        if place > line.first:
            self._bad(call.at, f"{call} leaves a gap: {self._named(line, line.first)} is not finished")
        elif place < line.floor:
            self._bad(call.at, f"{call} goes back: what lies below {self._named(line, line.floor)} was written")

    def _check_attempts(self, line: _Line, places: list[int], call: Started) -> None:
        for place, attempt in zip(places, call.attempts, strict=True):
            before = line.given.get(place, 0)
            if attempt != before + 1:
                self._bad(call.at, f"{call}: attempt {attempt} of {self._named(line, place)} follows {before}")
            elif self._limit > 0 and attempt > self._limit:
                self._bad(call.at, f"{call}: attempt {attempt} of {self._named(line, place)} is beyond the last")
            line.given[place] = attempt

    def _ended(self, event: Ended) -> None:
        call = self.calls.get(event.call)
        if call is None or self._running.pop(event.call, None) is None:
            return
        line = self._of[call.process].lines[call.queue]
        for offset, attempt, fate in zip(call.offsets, call.attempts, event.fates, strict=False):
            place = line.place(offset)
            passed = fate != CUT if not self._orderly else self._limit > 0 and attempt >= self._limit
            if fate == DONE or passed:
                line.finish(place, event.at)
                if self._orderly and line.next == place:
                    line.next = place + 1

    # The end

    def ends(self) -> None:
        """Check that every instance that lives has everything."""
        for name, instance in self._instances.items():
            if instance.process is None:
                continue
            for queue, line in instance.lines.items():
                for place, offset in enumerate(line.offsets):
                    row = self._log.at[queue, offset]
                    if row.body not in self._accepted:
                        continue
                    limit = max(row.at, self._healed) + SETTLE_S
                    if place not in line.finished:
                        self._bad(limit, f"{queue} {offset} is never finished by {name}")
                    elif line.finished[place] > limit and place == line.first - 1:
                        self._bad(line.finished[place], f"{queue} {offset} is late for {name}: due at {limit:.3f} s")

    def missing(self) -> int:
        """Return how many places are not finished yet."""
        return sum(
            place not in line.finished
            for instance in self._instances.values()
            if instance.process is not None
            for line in instance.lines.values()
            for place in range(len(line.offsets))
        )

    @staticmethod
    def _named(line: _Line, place: int) -> str:
        return f"offset {line.offsets[place]}" if place < len(line.offsets) else "the end"
