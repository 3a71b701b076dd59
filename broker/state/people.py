"""
What the broker knows, as JSON for people: ``config/topics.json``, ``consumerOffset.json`` and ``locks.json``.

Each names the log position it was true at. The broker never reads them: the log says the same and more. A session id
is shortened, since the whole one lets a client take the session over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ..store.changes import Change, Committed, LeaseGranted, SnapshotEnded, TopicMade
from ..store.files import Files


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


class PeopleWork(NamedTuple):
    """Files to be written from a snapshot."""

    files: Files
    directory: Path
    changes: list[Change]

    def run(self) -> None:
        """Write them, each whole or not at all; they are not synced, since nothing depends on them."""
        for name, content in documents(self.changes).items():
            text = json.dumps(content, indent=1, sort_keys=True) + "\n"
            self.files.replace_file(self.directory / name, text.encode(), durable=False)
