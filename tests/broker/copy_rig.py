"""Handlers that copy messages over a real store, with threads, turns and the disk by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmq.broker.config import parse_levels
from rmq.broker.handlers.dead_letters import DeadAdminHandler
from rmq.broker.handlers.progress import ProgressHandler
from rmq.broker.handlers.redelivery import CopyAppender, CopyQueue, SendBackHandler
from rmq.broker.state.deferred import Delays, DeliveryMark
from rmq.broker.state.groups import Membership
from rmq.broker.state.leases import LeaseTable
from rmq.broker.state.offsets import Ledger
from rmq.broker.state.producers import ProducerTable
from rmq.broker.state.replay import DeferredLog, Replay
from rmq.broker.state.topics import Topic, TopicTable
from rmq.broker.store.changes import Change, DelaysReached, SnapshotEnded, Started
from rmq.broker.store.committer import Committer
from rmq.broker.store.directory import DataDirectory
from rmq.broker.store.message_store import MessageStore
from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import Batch
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.ops.core import DeadLetter, Op
from rmq.wire.protocol.ops.redelivery import ReplayDead, SendBack
from rmq.wire.stores import StoreIds

from .builders import BORN_AT, ORDERS, WallClock, make_batch
from .fakes import FakeService, HeldPool, Peer, Turns, request
from rigs.disk.faulty import FaultyFiles

DEAD_LETTERS = MessageQueue("%DLQ%g", 0)
RETRIES = MessageQueue("%RETRY%g", 0)
SESSION = b"s" * 16
LEVELS = "1s 5s 10s 30s 1m"


class Tables:
    """All that a log brings back."""

    def __init__(self) -> None:
        self.topics, self.ledger, self.locks, self.producers = TopicTable(), Ledger(), LeaseTable(), ProducerTable()
        self.deferred = DeferredLog()

    def replay(self) -> Replay:
        return Replay(self.topics, self.ledger, self.locks, self.producers, self.deferred, now=0.0)


class Rig:
    """The handlers, with a lease of orders/0 for the group g; ``kind`` is what :meth:`ask` asks for."""

    def __init__(self, path: Path, *, segment_bytes: int = 1 << 30, kind: str = "dead") -> None:
        self.path = path
        self.kind = kind
        self.files = FaultyFiles()
        self.wall = WallClock()
        self.tables = tables = Tables()
        self.store = MessageStore(
            DataDirectory(path, self.files), segment_bytes=segment_bytes, wall_us=self.wall, recent_bytes=0
        )
        replay = tables.replay()
        self.store.recover(replay)
        tables.deferred.fill(self.store.delays)
        self.store.stage_changes(replay.name_copies(self.store.reader()))
        self.store.snapshot = self.snapshot
        tables.locks.start(self.store.log_epoch)
        self.service, self.turns, self.pool = FakeService(), Turns(), HeldPool()
        self.committer = Committer(self.store, self.turns, sync=False, exposed=lambda queues: None)
        self.committer.turn_over = self.turn_over
        self.progress = ProgressHandler(
            topics=tables.topics, members=Membership(), locks=tables.locks, ledger=tables.ledger,
            committer=self.committer, now=self.service.now, readable_range=self.store.readable_range,
            call_soon=self.turns.call_soon,
        )  # fmt: skip
        self.refusal: str | None = None
        delays = Delays(self.store.delays, parse_levels(LEVELS), max_delay_s=1e6, now_us=self.wall)
        self.copy_queue = CopyQueue(self.pool)
        appender = CopyAppender(
            self.store, self.committer, delays, tables.ledger, make_topic=self.make_topic,
            refusal=lambda: self.refusal,
        )  # fmt: skip
        self.send_backs = SendBackHandler(
            self.store, topics=tables.topics, locks=tables.locks, ledger=tables.ledger, progress=self.progress,
            committer=self.committer, copy_queue=self.copy_queue, appender=appender, delays=delays, max_retries=16,
            now=self.service.now,
        )  # fmt: skip
        self.admin = DeadAdminHandler(
            self.store, topics=tables.topics, ledger=tables.ledger, committer=self.committer,
            copy_queue=self.copy_queue, appender=appender,
        )  # fmt: skip
        self.service.handlers[Op.DEAD_LETTER] = self.send_backs.dead_letter
        self.service.handlers[Op.SEND_BACK] = self.send_backs.send_back
        self.service.handlers[Op.REPLAY_DEAD] = self.admin.replay
        self.service.handlers[Op.DROP_DEAD] = self.admin.drop
        self.peer = Peer(self.service, self.turns)
        self.epoch = 0
        self.is_closed = False

    def begin(self) -> None:
        """The topic, six messages and the lease."""
        self.committer.record(self.tables.topics.create("orders", 1, created_at=0)[0].made())
        self.committer.before_send()
        for i in range(6):
            data = make_batch(b"%d" % i * 50)
            self.store.stage(ORDERS, 1, data, batches.check(data, stamped=False))
            self.turn()
        self.acquire()
        self.files.cold = True

    def acquire(self) -> None:
        lease = self.tables.locks.acquire("g", ORDERS, SESSION, "m", now=self.service.time)
        assert lease is not None
        self.committer.record(lease.granted())
        self.turn()
        self.epoch = lease.epoch

    def make_topic(self, name: str) -> Topic:
        topic, made = self.tables.topics.make_own(name, created_at=0)
        if made:
            self.committer.record(topic.made())
        return topic

    def snapshot(self) -> list[Change]:
        told: list[Change] = [
            Started(self.store.stores.current, self.store.log_epoch),
            *map(Topic.made, self.tables.topics.all()),
        ]
        told += [*self.store.queue_bounds(), *self.tables.ledger.rows(), DelaysReached(*self.store.delays.reached)]
        return [*told, SnapshotEnded(self.store.log.written, len(told), self.tables.topics.last_generation)]

    def turn_over(self) -> None:
        if self.store.turn_over():
            self.committer.schedule()

    def turn(self) -> None:
        while self.turns.soon:
            self.turns.turn()
        self.committer.commit()

    # ---- requests

    def ask(self, request_id: int, *offsets: int, commit: int = -1, peer: Peer | None = None) -> None:
        """Have messages given up, or sent back after their first delivery."""
        if self.kind == "dead":
            payload: Any = DeadLetter("g", *ORDERS, self.epoch, list(offsets), commit, "poison")
            op = Op.DEAD_LETTER
        else:
            attempts = [1] * len(offsets)
            payload = SendBack("g", *ORDERS, self.epoch, list(offsets), attempts, 0, -1, commit, "poison")
            op = Op.SEND_BACK
        (peer or self.peer).send(request(request_id, op, payload))

    def ask_replay(self, request_id: int, *offsets: int, to_topic: bool = False) -> None:
        self.peer.send(request(request_id, Op.REPLAY_DEAD, ReplayDead("g", list(offsets), to_topic)))

    def run(self) -> None:
        """Let all jobs be done."""
        while self.pool.run():
            pass

    def answers(self, peer: Peer | None = None) -> list[tuple[int, int]]:
        """(request, status) of each answer, in their order."""
        return [(request_id, status) for _, request_id, status, _ in (peer or self.peer).answers()]

    # ---- what came of it

    def copies(self) -> list[str]:
        """The offsets of the messages that were copied, in the order of the copies."""
        found = self.stored(DEAD_LETTERS) if self.kind == "dead" else [message for _, message in self.deferred()]
        return [message.properties["RMQ_ORIGIN_OFFSET"] for message in found]

    def stored(self, queue: MessageQueue) -> list[StoredMessage]:
        """All that can be read in a queue whose batches have one message each."""
        places = [self.store.locator(queue).position_of(i) for i in range(self.store.queue(queue).readable)]
        return [self._batch(place[0]).messages()[0] for place in places if place is not None]

    def deferred(self) -> list[tuple[int, StoredMessage]]:
        """What waits for its time: how many seconds, and the message."""
        entries = self.store.delays.page(DeliveryMark(), 1000)
        return [((entry.due_at - BORN_AT) // 1_000_000, self._batch(entry.position).pick([0])[0]) for entry in entries]

    def _batch(self, position: int) -> Batch:
        with self.store.reader() as reader:
            data = reader.batch(position)
        assert data is not None
        return batches.read(data, stores=StoreIds(1))

    @property
    def committed(self) -> int:
        return self.tables.ledger.offsets.get("g", ORDERS)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.store.abandon()


def found_by_a_start(rig: Rig) -> Tables:
    """The tables as a start finds them; the directory is given back."""
    rig.store.log.sync()
    rig.close()
    tables = Tables()
    store = MessageStore(DataDirectory(rig.path), segment_bytes=1 << 30, wall_us=WallClock())
    store.recover(tables.replay())
    store.abandon()
    return tables
