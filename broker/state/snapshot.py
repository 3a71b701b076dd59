"""
All state of a broker at one moment, as the changes that restore it; and the same for operators, as JSON files.

``config/topics.json``, ``consumerOffset.json`` and ``locks.json`` each name the log position they were true at. The
broker never reads them: the log says the same and more. Session ids are shortened, since a whole one lets a client
take the session over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..store.changes import Change, Committed, DelaysReached, DelaysWaiting, LeaseGranted, SnapshotEnded, TopicMade
from ..store.files import Files
from ..store.message_store import MessageStore
from .leases import LeaseTable
from .offsets import Ledger
from .producers import ProducerTable
from .topics import TopicTable


class Snapshot:
    """Reads the tables, between two turns."""

    def __init__(
        self, store: MessageStore, *, topics: TopicTable, ledger: Ledger, locks: LeaseTable,
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

        ``rings``: with what is in the log as well, but a checkpoint must not read there: the last batches of each
        producer, and the parked batches that wait.
        """
        now, store = self._now(), self._store
        self._ledger.trim(lambda queue: store.readable_range(queue)[0])
        changes: list[Change] = [store.history.started(self._grace_s())]
        changes += [topic.made() for topic in self._topics.all()]
        changes += store.queue_bounds()
        changes += [lease.granted() for lease in self._locks.rows(now=now)]
        changes += self._ledger.rows()
        changes += self._producers.rows(now=now, rings=rings)
        if store.delays.reached.due_at:
            changes.append(DelaysReached(*store.delays.reached))
        if rings:
            changes += map(DelaysWaiting, store.delays.packed())
        changes.append(SnapshotEnded(store.log.written, len(changes), self._topics.last_generation))
        return changes

    def for_export(self) -> list[Change]:
        """Return topics, leases and offsets for the exported files; made every few seconds, so the rest is left out."""
        changes: list[Change] = [topic.made() for topic in self._topics.all()]
        changes += [lease.granted() for lease in self._locks.rows(now=self._now())]
        changes += self._ledger.offsets.rows()
        return [*changes, SnapshotEnded(self._store.log.written, len(changes), self._topics.last_generation)]


def documents(changes: list[Change]) -> dict[str, dict[str, Any]]:
    """The files and what they say, from a snapshot."""
    topics: dict[str, Any] = {}
    offsets: dict[str, dict[str, int]] = {}
    locks: list[dict[str, Any]] = []
    position = 0
    for change in changes:
        match change:
            case TopicMade():
                topics[change.topic] = {k: v for k, v in change._asdict().items() if k != "topic"}
            case Committed():
                offsets.setdefault(f"{change.topic}@{change.group}", {})[str(change.queue_id)] = change.queue_offset
            case LeaseGranted():
                locks.append({**change._asdict(), "session": change.session.hex()[:8]})  # as LOCK_STATUS shows it
            case SnapshotEnded():
                position = change.position
    return {
        "topics.json": {"position": position, "topics": topics},
        "consumerOffset.json": {"position": position, "offsetTable": offsets},
        "locks.json": {"position": position, "locks": locks},
    }


class JsonExport(NamedTuple):
    """Files to be written from a snapshot."""

    files: Files
    directory: Path
    changes: list[Change]

    def run(self) -> None:
        """Write them, each whole or not at all; they are not synced, since nothing depends on them."""
        for name, content in documents(self.changes).items():
            text = json.dumps(content, indent=1, sort_keys=True) + "\n"
            self.files.replace_file(self.directory / name, text.encode(), durable=False)
