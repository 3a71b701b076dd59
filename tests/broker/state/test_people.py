from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from rmq.broker.state.snapshot import PeopleWork, documents
from rmq.broker.store.changes import Change, Committed, LeaseGranted, SnapshotEnded, Started, TopicMade
from rmq.broker.store.files import Files

from ..faulty_files import FaultyFiles

CHANGES: list[Change] = [
    Started(7, 3, 5.0),
    TopicMade("orders", 2, 4, 4, 123),
    LeaseGranted("g", "orders", 1, b"\x01" * 16, "m#1", 99),
    Committed("g", "orders", 1, 17),
    Committed("g", "orders", 10, 18),
    Committed("h", "orders", 1, 5),
    SnapshotEnded(800, 6, 2),
]


def test_topics_offsets_and_locks_are_told_with_the_position_they_are_true_at() -> None:
    assert documents(CHANGES) == {
        "topics.json": {
            "position": 800,
            "topics": {"orders": {"generation": 2, "queues": 4, "shards": 4, "created_at": 123}},
        },
        "consumerOffset.json": {
            "position": 800,
            "offsetTable": {"orders@g": {"1": 17, "10": 18}, "orders@h": {"1": 5}},
        },
        "locks.json": {
            "position": 800,
            "locks": [
                {
                    "group": "g",
                    "topic": "orders",
                    "queue_id": 1,
                    "session": "01010101",
                    "member": "m#1",
                    "epoch": 99,
                    "ordered": True,
                    "leaving": False,
                },
            ],
        },
    }


def test_the_files_are_json_and_each_is_replaced_whole(tmp_path: Path) -> None:
    PeopleWork(Files(), tmp_path, CHANGES).run()
    PeopleWork(Files(), tmp_path, CHANGES).run()

    found = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert found == documents(CHANGES)


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    PeopleWork(Files(), tmp_path, CHANGES).run()
    files = FaultyFiles()
    files.fail("write", "locks", errno.ENOSPC, after=10)

    with pytest.raises(OSError):
        PeopleWork(files, tmp_path, []).run()

    assert json.loads((tmp_path / "locks.json").read_text()) == documents(CHANGES)["locks.json"]
    assert json.loads((tmp_path / "topics.json").read_text()) == documents([])["topics.json"]
