"""
Delivery of deferred messages when they are due: never early, strictly in the order of their times, each once.

A thread reads and verifies what is due, in portions, and only when it is as durable as its reply promised. The loop
then appends the same producer's part as data, with the deferred batch as its origin, and the watermark moves with the
write that holds the copies: so the log alone says what was delivered, wherever it is cut. A write that fails leaves
everything waiting. A batch that cannot be delivered any more, because its topic is gone or the disk damaged it, is
discarded. A batch that the disk cannot read is neither delivered nor discarded: it waits, and so does all that is due
after it, because the watermark cannot leave one out.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.errors import Refused, TooManyInFlight
from rmq.wire.model import MessageQueue

from ..net.connection import WORK_S
from ..state.deferred import DeferredBatch, DeliveryMark
from ..state.topics import TopicTable
from ..store.changes import Change, DelaysReached
from ..store.committer import AppendTicket, Committer
from ..store.lookup import LogReader
from ..store.message_store import MessageStore
from .read_pool import ReadPool

log = get_broker_logger(__name__)

PORTION_BYTES: Final = 8 << 20
PORTION_BATCHES: Final = 1000
RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 60.0  # of a read: the disk may take seconds to fail, and need a new cable
SHORTEST_S: Final = 0.0005  # of a timer, so that clocks that disagree by a hair do not make a busy loop
GONE: Final = "its topic is gone"
DAMAGED: Final = "it is damaged"


class Due(NamedTuple):
    """A batch whose time has come, as it was read; None if it is damaged."""

    entry: DeferredBatch
    data: bytes
    checked: batches.Checked | None


class DeferredDelivery:
    """
    Delivers while it runs. ``now_us`` is the clock of delays, ``clock`` measures work on the loop.

    ``is_paused`` is set by the disk watch: there is no room at present.
    """

    def __init__(
        self, store: MessageStore, topics: TopicTable, committer: Committer, pool: ReadPool,
        loop: asyncio.AbstractEventLoop, *, now_us: Callable[[], int], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store = store
        self._table = store.delays
        self._topics = topics
        self._committer = committer
        self._pool = pool
        self._loop = loop
        self._now_us = now_us
        self._clock = clock
        self._is_running = False
        self._is_busy = False  # a portion is read or appended
        self._is_blocked = False  # what is due is not durable yet
        self._portion: deque[Due] = deque()  # the rest of a portion
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = 0  # when the timer is meant to fire, 0: whenever it does
        self.is_paused = False
        self.batches = 0
        self.messages = 0
        self.passed = 0
        self.failures = 0
        self.failed_reads = 0
        self._read_error = ""  # why the first batch that is due could not be read, the last time
        self._read_again_s = RETRY_S

    # ---- when

    def start(self) -> None:
        """Deliver what became due meanwhile, and all that will."""
        self._is_running = True
        self.look()

    def stop(self) -> None:
        """Deliver nothing more; what was written is written."""
        self._is_running = False
        self._set_timer(None)

    def deferred(self, due_at: int) -> None:
        """A batch waits from now on; ``due_at`` of the earliest of several."""
        if (
            self._is_running
            and not (self._is_busy or self._is_blocked)
            and (self._timer is None or 0 < due_at < self._wake_at)
        ):
            self._wait_until(due_at)

    def exposed(self) -> None:
        """More of the log can be read."""
        if self._is_blocked:
            self.look()

    def each_second(self) -> None:
        """The wall clock may have been set forward."""
        if self._wake_at and not self._is_busy and self._now_us() >= self._wake_at:
            self.look()

    def _set_timer(self, delay_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay_s is None else self._loop.call_later(delay_s, self.look)
        self._wake_at = 0

    def _wait_until(self, due_at: int) -> None:
        self._set_timer(max((due_at - self._now_us()) / 1_000_000, SHORTEST_S))
        self._wake_at = due_at

    def look(self) -> None:
        """Begin with what is due, unless that is under way; else wait for the next."""
        if not self._is_running or self._is_busy:
            return
        self._set_timer(None)
        self._is_blocked = False
        until = self._now_us()
        if (staged := self._store.staged_due) is not None:
            until = min(until, staged - 1)  # the watermark must not pass what the table does not have yet
        due = self._table.due(until, max_batches=PORTION_BATCHES, max_bytes=PORTION_BYTES)
        if not due:
            if next_due := self._table.next_due:
                self._wait_until(next_due)
            return
        end = self._store.exposed
        readable = list(takewhile(lambda entry: entry.position + entry.size <= end, due))
        if not readable:
            self._is_blocked = True
        elif self.is_paused:
            self._set_timer(RETRY_S)
        else:
            self._read(readable)

    def _read(self, entries: list[DeferredBatch]) -> None:
        reader = self._store.reader()
        try:
            self._pool.submit(lambda: read(entries, reader), self._was_read)
        except TooManyInFlight:
            self._set_timer(RETRY_S)
        else:
            self._is_busy = True

    # ---- what

    def _was_read(self, result: list[Due] | Exception) -> None:
        self._is_busy = False
        if not self._is_running:
            return
        if isinstance(result, OSError):
            self._cannot_read(result)
            return
        if isinstance(result, Exception):
            self._failed(result)
            return
        self._read_error = ""
        self._is_busy = True
        self._portion.extend(result)
        self._work()

    def _work(self) -> None:
        """Append for a while; a defect in that must not end delivery for good."""
        if not self._is_running:
            return
        try:
            self._append()
        except Exception as error:
            log.exception("delay.defect")
            self._give_up(error)

    def _append(self) -> None:
        """Append for 2 ms; the next turn comes back to what is left."""
        until = self._clock() + WORK_S
        self._committer.in_order()  # a topic that ends in this turn ends before it
        done: list[tuple[Due, str | None]] = []
        error: Exception | None = None
        while self._portion and error is None and (not done or self._clock() <= until):
            due = self._portion.popleft()
            try:
                done.append((due, self._stage(due)))
            except Exception as defect:  # what was staged before it will be written: it must count as delivered
                log.exception("delay.defect")
                error = defect
        error = self._write(done) or error
        if error is not None:
            self._give_up(error)
        elif self._portion:
            self._loop.call_soon(self._work)
        else:
            self._is_busy = False
            self.look()

    def _write(self, done: list[tuple[Due, str | None]]) -> OSError | None:
        """Write what was staged, with how far delivery has come by that; why not, if the disk does not take it."""
        if not done:
            return None
        mark = DeliveryMark(*done[-1][0].entry[:2])
        is_passed = any(why is not None for _, why in done)
        changes: list[Change] = [DelaysReached(*mark)] if is_passed else []  # the copies prove the others
        ticket = AppendTicket()
        self._committer.append_now(changes, ticket, lambda: self._written(mark, done))
        return ticket.error

    def _stage(self, due: Due) -> str | None:
        """Stage the copy of a batch; why not, if it cannot be delivered."""
        if due.checked is None:
            return DAMAGED
        header = due.checked.header
        topic = self._topics.get(header.topic)
        if topic is None or topic.generation != header.topic_gen or header.queue_id >= topic.queues:
            return GONE
        origin = batches.handle(header.physical_offset, 0)
        to = MessageQueue(header.topic, header.queue_id)
        self._store.stage(to, topic.generation, due.data, due.checked, origin)
        return None

    def _written(self, mark: DeliveryMark, done: list[tuple[Due, str | None]]) -> None:
        self._table.reach(mark)
        delivered = [due.entry for due, why in done if why is None]
        self.batches += len(delivered)
        self.messages += sum(entry.messages for entry in delivered)
        self.passed += len(done) - len(delivered)
        for why, count in Counter(why for _, why in done if why is not None).items():
            first = next(due.entry for due, reason in done if reason == why)
            log.warning("delay.passed", batches=count, reason=why, position=first.position, due_at=first.due_at)

    def _give_up(self, error: Exception) -> None:
        self._portion.clear()
        self._is_busy = False
        self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        log.error("delay.failed", error=str(error) or repr(error), again_s=RETRY_S)
        self._set_timer(RETRY_S)

    def _cannot_read(self, error: OSError) -> None:
        """Wait for the disk, longer each time, and log a place once."""
        self.failures += 1
        self.failed_reads += 1
        if self._read_error != str(error):
            self._read_error, self._read_again_s = str(error), RETRY_S
            log.error("delay.unreadable", error=self._read_error, waiting_batches=self._table.batches)
        self._set_timer(self._read_again_s)
        self._read_again_s = min(2 * self._read_again_s, LONGEST_RETRY_S)

    def stats(self) -> dict[str, int]:
        """What waits, and what became of the rest."""
        table = self._table
        return {
            "waiting_batches": table.batches, "waiting_messages": table.messages, "next_due_at": table.next_due,
            "delivered_batches": self.batches, "delivered_messages": self.messages, "passed_batches": self.passed,
            "failures": self.failures, "failed_reads": self.failed_reads,
        }  # fmt: skip


def read(entries: Sequence[DeferredBatch], reader: LogReader) -> list[Due]:
    """
    Return batches as they lie in the log, judged, up to the first that the disk cannot read. Runs in a thread.

    Raises:
        OSError: that is the first of all; it may be sound, so it is not given up.
    """
    found: list[Due] = []
    with reader:
        for entry in entries:
            try:
                found.append(_due(entry, reader))
            except OSError:
                if not found:
                    raise
                break
    return found


def _due(entry: DeferredBatch, reader: LogReader) -> Due:
    try:
        data = reader.batch(entry.position)
        checked = None if data is None else batches.check(data, stamped=True, unpack=False)
    except Refused:
        return Due(entry, b"", None)
    if data is None or checked is None or not _is_it(checked.header, entry):
        return Due(entry, b"", None)
    return Due(entry, data, checked)


def _is_it(header: layout.Header, entry: DeferredBatch) -> bool:
    place = header.kind, header.base_offset, header.physical_offset
    return place == (layout.KIND_PARKED, entry.due_at, entry.position)
