"""
Messages that may have killed their consumers, so that a message that does cannot take down the fleet.

A lease that ends without being released, while its owner had messages that it had not committed, was *abandoned*. Two
abandoned leases in a row at the same offset make the queue *careful* up to where their owners had read: from then on
its owners announce each message before they process it, so that the next end convicts exactly one. An owner of a
careful queue that has announced nothing has begun nothing, whatever it had fetched, and died of something else, perhaps
of a message of another queue. The table only counts; consumers decide what to do about a convicted message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET

from ..store.changes import Suspected

CAREFUL_FROM: Final = 2  # abandoned leases in a row: one may be anything, a power cut or a deployment


class CrashMark(NamedTuple):
    """
    The suspicion against the message at ``suspect_offset``: so many abandoned leases in a row.

    ``is_careful``: everything below ``careful_until`` is to be announced. ``announced_by`` is the epoch of the lease
    whose owner has announced ``suspect_offset``, 0 for none.
    """

    suspect_offset: int = NO_OFFSET
    abandoned: int = 0
    careful_until: int = NO_OFFSET
    is_careful: bool = False
    announced_by: int = 0


NOTHING: Final = CrashMark()


class SuspectTable:
    """Marks by group and queue. Changes that a commit makes are not in the log: it is repeated with the commit."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, MessageQueue], CrashMark] = {}

    def get(self, group: str, queue: MessageQueue) -> CrashMark:
        """Return the mark of a queue; an empty one if no message is suspect."""
        return self._marks.get((group, queue), NOTHING)

    def abandon(
        self, group: str, queue: MessageQueue, *, epoch: int, committed: int, fetched: int
    ) -> tuple[Suspected, int] | None:
        """
        A lease ended without being given back. ``fetched`` is the offset after the last message its owner got.

        Returns the change and the offset whose message had been announced, -1 if none; None if its owner had nothing
        in hand, or had to announce what it begins and did not.
        """
        mark = self.get(group, queue)
        is_announced = bool(mark.announced_by) and mark.announced_by == epoch
        first = max(committed, 0)  # a group without progress may have begun anywhere; its first message is as good
        if not is_announced and (mark.is_careful or fetched <= first):
            return None
        suspect = mark.suspect_offset if is_announced else first
        abandoned = mark.abandoned + 1 if suspect == mark.suspect_offset else 1
        until = max(fetched, suspect + 1, mark.careful_until)
        is_careful = mark.is_careful or abandoned >= CAREFUL_FROM
        change = self._put(group, queue, CrashMark(suspect, abandoned, until, is_careful, 0))
        return change, suspect if is_announced else NO_OFFSET

    def announce(self, group: str, queue: MessageQueue, queue_offset: int, epoch: int) -> Suspected | None:
        """A message is about to be processed under a lease; the change, unless that was said before."""
        mark = self.get(group, queue)
        if mark.suspect_offset != queue_offset:
            mark = mark._replace(suspect_offset=queue_offset, abandoned=0)
        elif mark.announced_by == epoch:
            return None
        return self._put(group, queue, mark._replace(announced_by=epoch))

    def committed(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        """A commit clears what it has passed. Belongs to every applied commit."""
        mark = self._marks.get((group, queue))
        if mark is None:
            return
        if mark.is_careful and queue_offset >= mark.careful_until:
            mark = mark._replace(is_careful=False, careful_until=NO_OFFSET)
        if queue_offset > mark.suspect_offset:
            mark = CrashMark(careful_until=mark.careful_until, is_careful=True) if mark.is_careful else NOTHING
        self._put(group, queue, mark)

    def forget_from(self, group: str, queue: MessageQueue, queue_end: int) -> Suspected | None:
        """Forget what recovery cut off: the next messages there are others. The change that says so."""
        mark = self.get(group, queue)
        if max(mark.suspect_offset + 1, mark.careful_until) <= queue_end:
            return None
        if mark.suspect_offset >= queue_end:
            return self._put(group, queue, NOTHING)
        return self._put(group, queue, mark._replace(careful_until=queue_end))

    def forget_queue(self, group: str, queue: MessageQueue) -> Suspected | None:
        """Forget the mark of a queue; return the change that says so, if there was anything."""
        return self._put(group, queue, NOTHING) if (group, queue) in self._marks else None

    def forget_topic(self, topic: str) -> None:
        """Forget the marks of a topic that is gone."""
        for key in [key for key in self._marks if key[1].topic == topic]:
            del self._marks[key]

    def apply(self, change: Suspected) -> None:
        """Repeat a change from the log: the last one stands."""
        self._put(change.group, MessageQueue(change.topic, change.queue_id), CrashMark(*change[3:]))

    def rows(self) -> Iterator[Suspected]:
        """All marks, as the changes that bring them back."""
        for (group, queue), mark in self._marks.items():
            yield _change(group, queue, mark)

    def _put(self, group: str, queue: MessageQueue, mark: CrashMark) -> Suspected:
        if mark == NOTHING:
            self._marks.pop((group, queue), None)
        else:
            self._marks[group, queue] = mark
        return _change(group, queue, mark)


def _change(group: str, queue: MessageQueue, mark: CrashMark) -> Suspected:
    return Suspected(
        group, *queue, mark.suspect_offset, mark.abandoned, mark.careful_until, mark.is_careful, mark.announced_by
    )
