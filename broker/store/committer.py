"""
The work of one loop turn, made durable together.

Handlers stage batches and record changes while the loop reads its sockets; once a turn everything is written with
one ``writev`` and published. Replies wait here until the disk is as far as the flush mode promises. There is no
task and no future: a reply is a callback queued for a log position.

A failed write discards the sends of the turn and refuses them. State changes are already true in memory, so they stay
queued, and so do the replies that wait for them: nothing is replied before it is in the log. Only a request that its
client repeats anyway is refused then.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from rmq.runtime.logging import get_broker_logger
from rmq.wire.errors import DiskFull, Refused, StoreFailed
from rmq.wire.model import MessageQueue

from .changes import Change, TopicDeleted, TopicMade
from .message_store import MessageStore

log = get_broker_logger(__name__)

RETRY_S = 0.1


class WriteTicket(Protocol):
    """A request that waits for batches of this turn."""

    def stored(self) -> None:
        """The batches are as durable as the flush mode promises."""

    def failed(self, error: OSError) -> None:
        """The batches were not written."""


class AppendTicket:
    """Waits for :meth:`Committer.append_now`: ``stored`` runs when it is durable, ``error`` is why it was not."""

    __slots__ = ("error", "stored")

    def __init__(self, stored: Callable[[], None] = lambda: None) -> None:
        self.stored = stored
        self.error: OSError | None = None

    def failed(self, error: OSError) -> None:
        """Keep the error for the caller: nothing of it exists."""
        self.error = error


class _Refusable(NamedTuple):
    """A request that is answered when it is durable, and refused when the write fails."""

    stored: Callable[[], None]
    refuse: Callable[[Refused], None]

    def failed(self, error: OSError) -> None:
        """The write failed."""
        self.refuse(refusal_of(error))


class Committer:
    """
    Collects a turn, commits it, and releases what waited for it. ``exposed`` gets the queues that grew.

    ``clock`` measures how long turns wait for the disk.
    """

    def __init__(
        self, store: MessageStore, loop: asyncio.AbstractEventLoop, *, sync: bool,
        exposed: Callable[[list[MessageQueue]], None], clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._store = store
        self._loop = loop
        self._sync = sync
        self._exposed = exposed
        self.turn_over: Callable[[], None] = lambda: (
            None
        )  # set by the composition root: the turn is written, or given up
        self.answered: Callable[[], None] = lambda: None  # set by the composition root: answers wait to be sent
        self.on_synced: Callable[[int], None] = lambda position: None
        self._request_flush: Callable[[], None] = lambda: None
        self._scheduled = False
        self._failing = False  # the turn that ends now could not be written
        self._failure: OSError | None = None  # of the newest write
        self._changes: list[Change] = []
        self._staged: list[Change] = []  # changes that a send of this turn had to come after
        self._topic_made = False  # whether one of the unstaged changes makes a topic
        self._sends: list[WriteTicket] = []
        self._answers: list[Callable[[], None]] = []
        self._waiting: deque[tuple[int, list[Callable[[], None]], float]] = deque()  # since when
        self._clock = clock
        self.failed_writes = 0
        self._waits = 0  # turns that waited for the disk, and how long they did together
        self._total_wait_s = 0.0

    def attach(self, request_flush: Callable[[], None]) -> None:
        """Set what asks for a flush after a write."""
        self._request_flush = request_flush

    def add_send(self, ticket: WriteTicket) -> None:
        """A frame's batches were staged in this turn (or their originals are on the way)."""
        self._sends.append(ticket)
        self.schedule()

    def record(self, change: Change) -> None:
        """A change that is true in memory and belongs into the log with this turn."""
        self._changes.append(change)
        self._topic_made |= isinstance(change, TopicMade)
        self.schedule()

    def before_send(self) -> None:
        """A batch is about to be staged: a topic that was made in this turn must come before it in the log."""
        if self._topic_made:
            self._stage_changes()

    def in_order(self) -> None:
        """Stage what was recorded so far: what comes next must stand after it in the log."""
        self._stage_changes()

    def append_now(self, changes: Sequence[Change], ticket: WriteTicket, written: Callable[[], None]) -> None:
        """
        Write the turn so far, with what was staged for a ticket and the changes that hold only together with it.

        ``written`` makes them true before any other callback runs. If the write fails they were never there, unlike
        other changes, and the ticket fails before this returns.
        """
        self.in_order()
        self._store.stage_changes(changes)
        self._sends.append(ticket)
        self._commit(written)

    def _stage_changes(self) -> None:
        changes, self._changes = self._changes, []
        self._topic_made = False
        self._staged += changes
        self._store.stage_changes(changes)

    def when_durable(self, answer: Callable[[], None], refuse: Callable[[Refused], None] | None = None) -> None:
        """
        Run ``answer`` once everything recorded so far is as durable as a send would be.

        A failed write calls ``refuse`` instead; without it, ``answer`` waits for the write that succeeds.
        """
        if refuse is None:
            self._answers.append(answer)
        else:
            self._sends.append(_Refusable(answer, refuse))
        self.schedule()

    def schedule(self) -> None:
        """Make sure that this turn is committed at its end."""
        if self._scheduled:
            return
        self._scheduled = True
        if self._failing:  # what is asked for now would fail again, turn after turn
            self._loop.call_later(RETRY_S, self.commit)
        else:
            self._loop.call_soon(self.commit)

    def commit(self) -> None:
        """Write the turn and publish it; answers follow now or when the flusher has posted."""
        self._scheduled = False
        self._commit(lambda: None)

    def _commit(self, written: Callable[[], None]) -> None:
        sends, self._sends = self._sends, []
        self._stage_changes()
        changes, self._staged = self._staged, []
        try:
            self._store.write()
        except OSError as error:
            self._failing = True
            self._take_back(changes, sends, error)
        else:
            written()
            self._written(sends)
        self.turn_over()
        self._failing = False

    def _written(self, sends: list[WriteTicket]) -> None:
        answers: list[Callable[[], None]] = [ticket.stored for ticket in sends]
        answers += self._answers
        self._answers.clear()
        self._failure = None
        position = self._store.log.written
        if not self._sync:
            self._exposed(self._store.expose(position))
            _run(answers)
            self.answered()
            self._request_flush()
        elif position <= self._store.log.durable:
            _run(answers)
            self.answered()
        else:
            self._waiting.append((position, answers, self._clock()))
            self._request_flush()

    def _take_back(self, changes: list[Change], sends: list[WriteTicket], error: OSError) -> None:
        self.failed_writes += 1
        self._failure = error
        self._changes = without_the_dead([*changes, *self._changes])
        self._topic_made = any(isinstance(change, TopicMade) for change in self._changes)
        if self._changes or self._answers:
            self.schedule()
        # Newest first, so that a producer's numbers are given back in order.
        _run([partial(ticket.failed, error) for ticket in reversed(sends)])
        log.error("log.write_failed", error=str(error), sends=len(sends), changes=len(changes))

    def synced(self, position: int) -> None:
        """The flusher got this far. Runs on the loop."""
        self._store.log.durable = max(self._store.log.durable, position)
        if self._sync:
            self._exposed(self._store.expose(position))
        now = self._clock()
        while self._waiting and self._waiting[0][0] <= position:
            _, answers, since = self._waiting.popleft()
            self._waits += 1
            self._total_wait_s += now - since
            _run(answers)
        self.answered()
        self.on_synced(position)
        if self._waiting:
            self._request_flush()

    def stats(self) -> dict[str, float]:
        """What waits for the disk and how long, how long the turns before it did, and what the disk did not take."""
        return {
            "waiting_turns": len(self._waiting),
            "waiting_answers": sum(len(answers) for _, answers, _ in self._waiting) + len(self._answers),
            "longest_waiting_s": self._clock() - self._waiting[0][2] if self._waiting else 0.0,
            "waited_turns": self._waits,
            "total_wait_s": self._total_wait_s,
            "failed_writes": self.failed_writes,
        }

    @property
    def has_unwritten(self) -> bool:
        """Whether the tables say something that could not be written to the log yet."""
        return bool(self._changes or self._staged)

    @property
    def refusal(self) -> Refused | None:
        """Why a change that is recorded now would wait: the newest write failed, and others wait already."""
        return refusal_of(self._failure) if self._failure is not None and self.has_unwritten else None

    @property
    def idle(self) -> bool:
        """Whether nothing waits for the disk."""
        return not (self._scheduled or self._waiting or self._changes or self._sends or self._answers)


def refusal_of(error: OSError) -> Refused:
    """Return what a client gets whose request could not be written."""
    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreFailed
    return kind(f"the log could not be written: {error.strerror}")


def without_the_dead(changes: list[Change]) -> list[Change]:
    """
    Changes that wait for a disk, without those of a topic that one of them ends.

    A snapshot may come before them in the log and know the next topic of that name, whose own they would seem to be.
    """
    ended: set[str] = set()
    kept: list[Change] = []
    for change in reversed(changes):
        if isinstance(change, TopicDeleted):
            ended.add(change.topic)
        elif getattr(change, "topic", None) in ended:
            continue
        kept.append(change)
    return kept[::-1]


def _run(answers: list[Callable[[], None]]) -> None:
    for answer in answers:
        try:
            answer()
        except Exception:  # one answer's defect must not keep the others back
            log.exception("answer.failed")
