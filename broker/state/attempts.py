"""
How often messages were delivered in vain, so that a take-over goes on counting.

A batch fails as a whole, so the counts of a queue are kept as runs: each message from one offset to before another
failed so often. Counts never go down. A commit forgets the messages it has passed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from rmq.wire.model import MessageQueue
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.core import NO_OFFSET

from ..store.changes import Attempted

NO_ATTEMPT: Final = (NO_OFFSET, 0)
MAX_RUNS: Final = 64  # of a queue; beyond that neighbours are joined, and the lower count of the two is raised

Runs = list[AttemptRun]  # ascending, none empty, none overlaps another, neighbours that touch have different counts


class AttemptTable:
    """Failed deliveries by group and queue."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, MessageQueue], Runs] = {}

    def get(self, group: str, queue: MessageQueue) -> tuple[int, int]:
        """The offset of the first failing message and how often it failed; (-1, 0) if none fails."""
        runs = self._runs.get((group, queue))
        return (runs[0].from_offset, runs[0].attempts) if runs else NO_ATTEMPT

    def runs(self, group: str, queue: MessageQueue) -> Runs:
        """All failing messages of a queue, in order."""
        return list(self._runs.get((group, queue), ()))

    def of_message(self, group: str, queue: MessageQueue, queue_offset: int) -> int:
        """How often one message failed."""
        runs = self._runs.get((group, queue), [])
        place = bisect_right(runs, queue_offset, key=lambda run: run.from_offset) - 1
        return runs[place].attempts if place >= 0 and queue_offset < runs[place].end_offset else 0

    def record(self, group: str, queue: MessageQueue, runs: Sequence[AttemptRun]) -> Attempted | None:
        """Note failed deliveries; the change if that is news. A repeated report never lowers a count."""
        known = self._runs.get((group, queue), [])
        merged = joined(highest(known, runs))
        if merged == known or not merged:
            return None
        self._runs[group, queue] = merged
        return _change(group, queue, merged)

    def forget_below(self, group: str, queue: MessageQueue, committed_offset: int) -> bool:
        """Forget messages that a commit has passed; says whether there were any. Belongs to every applied commit."""
        known = self._runs.get((group, queue))
        if known is None or known[0].from_offset >= committed_offset:
            return False
        self._keep(group, queue, [_cut(run, committed_offset, run.end_offset) for run in known])
        return True

    def forget_from(self, group: str, queue: MessageQueue, queue_end: int) -> Attempted | None:
        """Forget messages that recovery cut off: the next ones there are others. The change that says so."""
        known = self._runs.get((group, queue))
        if known is None or known[-1].end_offset <= queue_end:
            return None
        return self._keep(group, queue, [_cut(run, run.from_offset, queue_end) for run in known])

    def forget_queue(self, group: str, queue: MessageQueue) -> Attempted | None:
        """Forget all of a queue; the change that says so, if there was anything."""
        return self._keep(group, queue, []) if (group, queue) in self._runs else None

    def forget_topic(self, topic: str) -> None:
        """Forget the failing messages of a topic that is gone."""
        for key in [key for key in self._runs if key[1].topic == topic]:
            del self._runs[key]

    def apply(self, change: Attempted) -> None:
        """Repeat a change from the log: the last one stands, also when it says that nothing fails."""
        runs = change.runs
        if not runs and change.queue_offset != NO_OFFSET:
            runs = [AttemptRun(change.queue_offset, change.queue_offset + 1, change.attempts)]
        self._keep(change.group, MessageQueue(change.topic, change.queue_id), list(runs))

    def rows(self) -> Iterator[Attempted]:
        """All failing messages, as the changes that bring them back."""
        for (group, queue), runs in self._runs.items():
            yield _change(group, queue, runs)

    def _keep(self, group: str, queue: MessageQueue, runs: Runs) -> Attempted:
        runs = [run for run in runs if run.from_offset < run.end_offset]
        if runs:
            self._runs[group, queue] = runs
        else:
            self._runs.pop((group, queue), None)
        return _change(group, queue, runs)


def highest(one: Sequence[AttemptRun], other: Sequence[AttemptRun]) -> Runs:
    """The higher of two counts for each message; both are in order and without overlap."""
    edges = sorted({edge for run in (*one, *other) for edge in run[:2]})
    merged: Runs = []
    places = [0, 0]
    for start, end in pairwise(edges):
        count = 0
        for which, runs in enumerate((one, other)):
            while places[which] < len(runs) and runs[places[which]].end_offset <= start:
                places[which] += 1
            if places[which] < len(runs) and runs[places[which]].from_offset <= start:
                count = max(count, runs[places[which]].attempts)
        if not count:
            continue
        if merged and merged[-1].end_offset == start and merged[-1].attempts == count:
            merged[-1] = merged[-1]._replace(end_offset=end)
        else:
            merged.append(AttemptRun(start, end, count))
    return merged


def joined(runs: Runs, most: int = MAX_RUNS) -> Runs:
    """
    At most so many runs: neighbours whose join raises counts least become one, with the higher count of the two.

    A message that is counted too high is given up a little early; one that is counted too low might never be.
    """
    while len(runs) > most:
        costs = [_cost(one, other) for one, other in pairwise(runs)]
        chosen: set[int] = set()  # the places of runs that are joined with the next one: many at once, none twice
        for place in sorted(range(len(costs)), key=costs.__getitem__):
            if len(chosen) == len(runs) - most:
                break
            if place - 1 not in chosen and place + 1 not in chosen:
                chosen.add(place)
        runs = [
            _hull(run, runs[place + 1]) if place in chosen else run
            for place, run in enumerate(runs)
            if place - 1 not in chosen
        ]
    return runs


def _hull(one: AttemptRun, other: AttemptRun) -> AttemptRun:
    return AttemptRun(one.from_offset, other.end_offset, max(one.attempts, other.attempts))


def _cost(one: AttemptRun, other: AttemptRun) -> int:
    """How much is added to the counts of all messages if two neighbours become one."""
    high = max(one.attempts, other.attempts)
    added = (high - one.attempts) * (one.end_offset - one.from_offset)
    added += (high - other.attempts) * (other.end_offset - other.from_offset)
    return added + high * (other.from_offset - one.end_offset)


def _cut(run: AttemptRun, first: int, end: int) -> AttemptRun:
    return AttemptRun(max(run.from_offset, first), min(run.end_offset, end), run.attempts)


def _change(group: str, queue: MessageQueue, runs: Runs) -> Attempted:
    """What stands in the log; one message needs no runs."""
    if not runs:
        return Attempted(group, *queue, *NO_ATTEMPT)
    first = runs[0]
    is_one = len(runs) == 1 and first.end_offset == first.from_offset + 1
    return Attempted(group, *queue, first.from_offset, first.attempts, [] if is_one else runs)
