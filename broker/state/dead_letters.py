"""
What became of messages that a group gave up or sent back, so that asking again copies none of them twice.

:class:`HandledTable` knows which dead letters were replayed or dropped, each once, by their offsets in the dead-letter
topic of their group. Offsets of one state lie in runs, since operators handle them by the hundred; what no run names
waits. Retention takes the oldest, and what is known of them.

:class:`CopiedTable` knows which messages of a queue a group has sent back or given up. Messages below the committed
offset are done, whatever became of them; the table has those at it and above.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence, Set
from typing import Final

from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, WAITING, DeadRun

from ..store.changes import Copied, DeadHandled

MAX_RUNS: Final = 65_536  # of one group
PIECE_RUNS: Final = 4096  # in one change of a snapshot
_END: Final = 1 << 62  # after every offset


class _Runs:
    """Ascending runs of offsets without overlap; neighbours that touch differ in their state. 17 bytes a run."""

    __slots__ = ("counts", "ends", "starts", "states")

    def __init__(self) -> None:
        self.starts = array("q")
        self.ends = array("q")
        self.states = array("b")
        self.counts = {REPLAYED: 0, DROPPED: 0}

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, i: int) -> DeadRun:
        return DeadRun(self.starts[i], self.ends[i], self.states[i])

    def state_of(self, offset: int) -> int:
        i = bisect_right(self.ends, offset)
        return self.states[i] if i < len(self) and self.starts[i] <= offset else WAITING

    def put(self, new: DeadRun) -> None:
        """Give a run of offsets a state; ``WAITING`` takes theirs from them."""
        first = bisect_left(self.ends, new.from_offset)  # the first run that overlaps or touches it
        last = bisect_right(self.starts, new.end_offset)  # after the last one that does
        met = [self.at(i) for i in range(first, last)]
        pieces = [run._replace(end_offset=min(run.end_offset, new.from_offset)) for run in met]
        if new.state != WAITING:
            pieces.append(new)
        pieces += [run._replace(from_offset=max(run.from_offset, new.end_offset)) for run in met]
        self._replace(first, last, met, _joined(pieces))

    def _replace(self, first: int, last: int, met: Sequence[DeadRun], by: Sequence[DeadRun]) -> None:
        for sign, runs in ((-1, met), (1, by)):
            for run in runs:
                self.counts[run.state] += sign * (run.end_offset - run.from_offset)
        self.starts[first:last] = array("q", [run.from_offset for run in by])
        self.ends[first:last] = array("q", [run.end_offset for run in by])
        self.states[first:last] = array("b", [run.state for run in by])


def _joined(pieces: Sequence[DeadRun]) -> list[DeadRun]:
    """The runs that are not empty, those that touch and agree as one."""
    found: list[DeadRun] = []
    for run in pieces:
        if run.from_offset >= run.end_offset:
            continue
        if found and found[-1].end_offset == run.from_offset and found[-1].state == run.state:
            found[-1] = found[-1]._replace(end_offset=run.end_offset)
        else:
            found.append(run)
    return found


_NOTHING: Final = _Runs()


class HandledTable:
    """States of dead letters, by the topic they lie in."""

    def __init__(self) -> None:
        self._runs: dict[str, _Runs] = {}

    def state_of(self, topic: str, offset: int) -> int:
        """What became of a dead letter: ``WAITING``, ``REPLAYED`` or ``DROPPED``."""
        return self._runs.get(topic, _NOTHING).state_of(offset)

    def counts(self, topic: str) -> tuple[int, int]:
        """How many dead letters were replayed, and how many dropped."""
        counts = self._runs.get(topic, _NOTHING).counts
        return counts[REPLAYED], counts[DROPPED]

    def length(self, topic: str) -> int:
        """How many runs are known of a topic."""
        return len(self._runs.get(topic, _NOTHING))

    def length_after(self, change: DeadHandled) -> int:
        """How many there would be after a change of dead letters that wait."""
        runs, length = self._runs.get(change.topic, _NOTHING), self.length(change.topic)
        for run in change.runs:
            neighbours = (runs.state_of(run.from_offset - 1), runs.state_of(run.end_offset))
            length += 1 - neighbours.count(run.state)  # it joins a neighbour of its state
        return length

    def runs(self, topic: str, from_offset: int, limit: int) -> list[DeadRun]:
        """The first runs that reach beyond ``from_offset``; one that begins before it is cut."""
        runs = self._runs.get(topic, _NOTHING)
        first = bisect_right(runs.ends, from_offset)
        found = [runs.at(i) for i in range(first, min(first + limit, len(runs)))]
        return [run._replace(from_offset=max(run.from_offset, from_offset)) for run in found]

    @staticmethod
    def change(topic: str, offsets: Sequence[int], state: int) -> DeadHandled:
        """The change that says what became of dead letters (ascending); :meth:`apply` makes it true."""
        return DeadHandled(topic, _joined([DeadRun(offset, offset + 1, state) for offset in offsets]))

    def apply(self, change: DeadHandled) -> None:
        """Repeat a change from the log."""
        runs = self._runs.setdefault(change.topic, _Runs())
        for run in change.runs:
            runs.put(run)
        if not runs:
            del self._runs[change.topic]

    def forget_below(self, topic: str, min_offset: int) -> None:
        """Forget what retention has taken; not recorded, since the start of the log implies it."""
        if topic in self._runs:
            self.apply(DeadHandled(topic, [DeadRun(0, min_offset, WAITING)]))

    def forget_from(self, topic: str, queue_end: int) -> DeadHandled | None:
        """Forget what recovery cut off: the next dead letters there are others. The change that says so."""
        runs = self._runs.get(topic)
        if runs is None or runs.ends[-1] <= queue_end:
            return None
        change = DeadHandled(topic, [DeadRun(queue_end, _END, WAITING)])
        self.apply(change)
        return change

    def forget_topic(self, topic: str) -> None:
        """Forget the dead letters of a topic that is gone."""
        self._runs.pop(topic, None)

    def topics(self) -> list[str]:
        """The topics of which anything is known."""
        return list(self._runs)

    def rows(self) -> Iterator[DeadHandled]:
        """All of it, as the changes that bring it back."""
        for topic, runs in self._runs.items():
            for i in range(0, len(runs), PIECE_RUNS):
                piece = [runs.at(k) for k in range(i, min(i + PIECE_RUNS, len(runs)))]
                yield DeadHandled(topic, piece, True)


MAX_COPIED: Final = 16_384  # messages that a group has had copied in a queue and not passed with its progress


class CopiedTable:
    """Offsets of messages that were copied, by group and queue."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, MessageQueue], set[int]] = {}

    def offsets(self, group: str, queue: MessageQueue) -> Set[int]:
        """The messages of a queue that were sent back or given up."""
        return self._offsets.get((group, queue), frozenset())

    @staticmethod
    def change(group: str, queue: MessageQueue, offsets: Sequence[int]) -> Copied:
        """The change that says that messages were copied; :meth:`apply` makes it true."""
        return Copied(group, *queue, list(offsets))

    def forget_below(self, group: str, queue: MessageQueue, committed_offset: int) -> None:
        """Forget what a commit has passed. Belongs to every applied commit."""
        known = self._offsets.get((group, queue))
        if known is not None:
            self._keep(group, queue, {offset for offset in known if offset >= committed_offset})

    def forget_from(self, group: str, queue: MessageQueue, queue_end: int) -> Copied | None:
        """Forget what recovery cut off: the next messages there are others. The change that says so."""
        known = self._offsets.get((group, queue), set())
        left = {offset for offset in known if offset < queue_end}
        if left == known:
            return None
        self._keep(group, queue, left)
        return Copied(group, *queue, sorted(left), True)

    def forget_queue(self, group: str, queue: MessageQueue) -> Copied | None:
        """Forget all of a queue; the change that says so, if there was anything."""
        if self._offsets.pop((group, queue), None) is None:
            return None
        return Copied(group, *queue, [], True)

    def forget_topic(self, topic: str) -> None:
        """Forget what was copied of a topic that is gone."""
        for key in [key for key in self._offsets if key[1].topic == topic]:
            del self._offsets[key]

    def apply(self, change: Copied) -> None:
        """Repeat a change from the log."""
        queue = MessageQueue(change.topic, change.queue_id)
        if change.is_all:
            self._keep(change.group, queue, set(change.queue_offsets))
        elif change.queue_offsets:
            self._offsets.setdefault((change.group, queue), set()).update(change.queue_offsets)

    def rows(self) -> Iterator[Copied]:
        """All of it, as the changes that bring it back."""
        for (group, queue), offsets in self._offsets.items():
            yield Copied(group, *queue, sorted(offsets), True)

    def _keep(self, group: str, queue: MessageQueue, offsets: set[int]) -> None:
        if offsets:
            self._offsets[group, queue] = offsets
        else:
            self._offsets.pop((group, queue), None)
