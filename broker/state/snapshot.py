"""All that is true of a broker at one moment, as the changes that bring it back."""

from __future__ import annotations

from collections.abc import Callable

from ..store.changes import Change, DelaysReached, DelaysWaiting, SnapshotEnded
from ..store.message_store import MessageStore
from .leases import LockTable
from .ledger import Ledger
from .producers import ProducerTable
from .topics import TopicTable


class Snapshot:
    """Reads the tables, between two turns."""

    def __init__(
        self, store: MessageStore, *, topics: TopicTable, ledger: Ledger, locks: LockTable,
        producers: ProducerTable, grace_s: Callable[[], float], now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store = store
        self._topics = topics
        self._ledger = ledger
        self._locks = locks
        self._producers = producers
        self._grace_s = grace_s
        self._now = now

    def changes(self, *, rings: bool) -> list[Change]:
        """
        Everything, the end included.

        ``rings``: with what the log tells as well, and a checkpoint must not ask it for: the last batches of each
        producer, and the parked batches that wait.
        """
        now, store = self._now(), self._store
        self._ledger.trim(lambda queue: store.readable_range(queue)[0])
        told: list[Change] = [store.history.started(self._grace_s())]
        told += [topic.made() for topic in self._topics.all()]
        told += store.holds()
        told += [lease.granted() for lease in self._locks.rows(now=now)]
        told += self._ledger.rows()
        told += self._producers.rows(now=now, rings=rings)
        if store.delays.reached.due_at:
            told.append(DelaysReached(*store.delays.reached))
        if rings:
            told += map(DelaysWaiting, store.delays.packed())
        told.append(SnapshotEnded(store.log.written, len(told), self._topics.last_generation))
        return told

    def for_people(self) -> list[Change]:
        """Topics, leases and offsets: what people ask for. It is told every few seconds, so the many are left out."""
        told: list[Change] = [topic.made() for topic in self._topics.all()]
        told += [lease.granted() for lease in self._locks.rows(now=self._now())]
        told += self._ledger.offsets.rows()
        return [*told, SnapshotEnded(self._store.log.written, len(told), self._topics.last_generation)]
