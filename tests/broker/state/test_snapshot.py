"""T.broker.state.test_snapshot"""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from rmq.broker.state.deferred import DeferredBatch, DelayTable, DeliveryMark
from rmq.broker.state.leases import LeaseTable
from rmq.broker.state.offsets import Ledger
from rmq.broker.state.producers import ProducerTable
from rmq.broker.state.replay import DeferredLog, Replay
from rmq.broker.state.snapshot import JsonExport, Snapshot, documents
from rmq.broker.state.topics import TopicTable
from rmq.broker.store.changes import (
    Change,
    Committed,
    Copied,
    DeadHandled,
    DelaysReached,
    DelaysWaiting,
    LeaseGranted,
    QueueBounds,
    SnapshotEnded,
    Started,
    TopicMade,
    pack_changes,
    unpack_changes,
)
from rmq.broker.store.files import Files
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.redelivery import DeadRun

from ..builders import ORDERS, Opened
from rigs.disk.faulty import FaultyFiles


class Tables:
    """The tables of a broker, empty."""

    def __init__(self) -> None:
        self.topics = TopicTable()
        self.ledger = Ledger()
        self.locks = LeaseTable()
        self.producers = ProducerTable()

    def snapshot(self, opened: Opened, *, now: float = 0.0) -> Snapshot:
        return Snapshot(
            opened.store, topics=self.topics, ledger=self.ledger, locks=self.locks,
            producers=self.producers, grace_s=lambda: 5.0, now=lambda: now,
        )  # fmt: skip

    def replay(self) -> Replay:
        return Replay(self.topics, self.ledger, self.locks, self.producers, DeferredLog(), now=0.0)

    def fill(self) -> None:
        self.topics.create("orders", 4, created_at=12)
        self.topics.create("payments", 2, created_at=13)
        self.locks.start(3)
        self.locks.acquire("g", ORDERS, b"s" * 16, "m#1", now=0.0)
        self.locks.acquire("h", ORDERS, b"t" * 16, "m#2", now=0.0)
        self.ledger.commit("g", ORDERS, 17)
        self.ledger.attempts.record("g", ORDERS, [AttemptRun(17, 20, 3)])
        self.ledger.suspects.abandon("g", ORDERS, epoch=1, committed=17, fetched=30)
        self.ledger.copied.apply(Copied("g", *ORDERS, [18, 19]))
        self.ledger.handled.apply(DeadHandled("%DLQ%g", [DeadRun(2, 5, 1), DeadRun(5, 6, 2)]))


def test_an_empty_broker_tells_who_it_is_and_that_this_is_all(memory_path: Path) -> None:
    opened = Opened(memory_path)

    changes = Tables().snapshot(opened).changes(rings=False)

    assert changes == [opened.store.history.started(5.0), SnapshotEnded(0, 1, 0)]
    opened.close()


def test_a_snapshot_brings_all_tables_back(memory_path: Path) -> None:
    opened, tables, fresh = Opened(memory_path), Tables(), Tables()
    tables.fill()
    opened.append(b"a", b"b")

    changes = unpack_changes(pack_changes(tables.snapshot(opened).changes(rings=True)))
    replay = fresh.replay()
    for change in changes:
        replay.change(change)

    def told(of: Tables) -> list[Change]:
        return [change for change in of.snapshot(opened).changes(rings=True) if not isinstance(change, SnapshotEnded)]

    assert told(fresh) == told(tables)
    assert replay.grace_s == 5.0
    assert QueueBounds("orders", 1, 0, 0, 2, [1, 0]) in changes
    opened.close()


def test_what_is_known_of_dead_letters_that_retention_took_is_not_reported(memory_path: Path) -> None:
    opened, tables = Opened(memory_path), Tables()
    tables.fill()
    opened.append(*[b"x"] * 9, to=MessageQueue("%DLQ%g", 0))
    opened.store.queue(MessageQueue("%DLQ%g", 0)).raise_min(4)

    told = tables.snapshot(opened).changes(rings=False)

    assert [change.runs for change in told if isinstance(change, DeadHandled)] == [[(4, 5, 1), (5, 6, 2)]]
    opened.close()


def test_doing_it_twice_changes_nothing(memory_path: Path) -> None:
    """A snapshot in the middle of the log tells what the changes before it told."""
    opened, tables = Opened(memory_path), Tables()
    tables.fill()
    before = tables.snapshot(opened).changes(rings=True)

    replay = tables.replay()
    for change in before:
        replay.change(change)

    assert tables.snapshot(opened).changes(rings=True) == before
    opened.close()


def test_the_end_says_where_and_how_much(memory_path: Path) -> None:
    opened, tables = Opened(memory_path), Tables()
    tables.fill()
    opened.append(b"a")

    *told, end = tables.snapshot(opened).changes(rings=False)

    assert end == SnapshotEnded(opened.store.log.written, len(told), 2)
    assert isinstance(told[0], Started)
    opened.close()


def test_a_lease_that_ran_out_is_not_reported(memory_path: Path) -> None:
    opened, tables = Opened(memory_path), Tables()
    tables.fill()

    told = tables.snapshot(opened, now=1000.0).changes(rings=False)

    assert not any(type(change).__name__ == "LeaseGranted" for change in told)
    opened.close()


def test_the_exported_files_have_topics_leases_and_offsets_and_their_position(memory_path: Path) -> None:
    opened, tables = Opened(memory_path), Tables()
    tables.fill()
    opened.append(b"a")

    told = tables.snapshot(opened).for_export()

    assert documents(told) == documents(tables.snapshot(opened).changes(rings=False))
    assert not any(isinstance(change, QueueBounds) for change in told)
    opened.close()


def test_a_checkpoint_tells_what_waits_and_a_segment_only_how_far_delivery_came(memory_path: Path) -> None:
    opened, tables = Opened(memory_path), Tables()
    opened.store.delays.reach(DeliveryMark(70, 800))
    entries = [DeferredBatch(80, 808, 200, 3), DeferredBatch(3_000_000, 80, 100, 1)]
    for entry in entries:
        opened.store.delays.add(entry)

    in_log, in_checkpoint = (tables.snapshot(opened).changes(rings=rings) for rings in (False, True))

    assert [type(change) for change in in_log] == [Started, DelaysReached, SnapshotEnded]
    assert in_log[1] == (70, 800)
    assert [type(change) for change in in_checkpoint] == [Started, DelaysReached, DelaysWaiting, SnapshotEnded]
    back, parked = DelayTable(), DeferredLog()
    for change in unpack_changes(pack_changes(in_checkpoint)):
        if isinstance(change, DelaysReached | DelaysWaiting):
            parked.apply(change)
    parked.fill(back)
    assert (back.reached, back.page(DeliveryMark(), 9)) == (DeliveryMark(70, 800), entries)
    opened.close()


CHANGES: list[Change] = [
    Started(7, 3, 5.0),
    TopicMade("orders", 2, 4, 4, 123),
    LeaseGranted("g", "orders", 1, b"\x01" * 16, "m#1", 99),
    Committed("g", "orders", 1, 17),
    Committed("g", "orders", 10, 18),
    Committed("h", "orders", 1, 5),
    SnapshotEnded(800, 6, 2),
]


def test_topics_offsets_and_locks_are_reported_with_the_position_they_are_true_at() -> None:
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
    JsonExport(Files(), tmp_path, CHANGES).run()
    JsonExport(Files(), tmp_path, CHANGES).run()

    found = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert found == documents(CHANGES)


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    JsonExport(Files(), tmp_path, CHANGES).run()
    files = FaultyFiles()
    files.fail("write", "locks", errno.ENOSPC, after=10)

    with pytest.raises(OSError):
        JsonExport(files, tmp_path, []).run()

    assert json.loads((tmp_path / "locks.json").read_text()) == documents(CHANGES)["locks.json"]
    assert json.loads((tmp_path / "topics.json").read_text()) == documents([])["topics.json"]
