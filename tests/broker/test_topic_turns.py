"""Topics that are made, filled, grown and deleted within one turn of the loop: the log tells what memory tells."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmq.broker.state.leases import LeaseTable
from rmq.broker.state.offsets import Ledger, OffsetTable
from rmq.broker.state.producers import ProducerTable
from rmq.broker.state.replay import DeferredLog, Replay
from rmq.broker.state.topics import Topic, TopicTable
from rmq.broker.store.changes import Change, Committed, SnapshotEnded, Started, TopicDeleted, TopicMade
from rmq.broker.store.committer import Committer, without_the_dead
from rmq.broker.store.directory import DataDirectory
from rmq.broker.store.files import Files
from rmq.broker.store.message_store import MessageStore
from rmq.broker.store.read import ColdRead
from rmq.wire.batch import batch as batches
from rmq.wire.batch.layout import Buffer
from rmq.wire.model import MessageQueue
from rmq.wire.stores import StoreIds

from .builders import ORDERS, Opened, WallClock, make_batch, segment_files

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
SMALL = 500  # bytes of a segment: two or three batches


class FragileFiles(Files):
    """A disk that takes nothing while it is ``broken``."""

    broken = False

    def write(self, fd: int, buffers: Sequence[Buffer], at: int) -> int:
        if self.broken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, buffers, at)


class ManualLoop:
    """A loop whose turns and timers run when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        self.later: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self.soon.append(lambda: callback(*args))

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> None:
        self.later.append(lambda: callback(*args))

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def fire(self) -> None:
        later, self.later = self.later, []
        for callback in later:
            callback()


class Ticket:
    """A send that notes what became of it."""

    def __init__(self, name: str, story: list[str]) -> None:
        self.name = name
        self.story = story

    def stored(self) -> None:
        self.story.append(f"{self.name} stored")

    def failed(self, error: OSError) -> None:
        self.story.append(f"{self.name} failed")


class Rig:
    """Topics and offsets over a real store and committer, changed as the handlers change them."""

    def __init__(self, path: Path, *, segment_bytes: int) -> None:
        self.path = path
        self.files = FragileFiles()
        self.loop = ManualLoop()
        self.opened = Opened(path, files=self.files, segment_bytes=segment_bytes)
        self.store = self.opened.store
        self.topics, self.offsets = TopicTable(), OffsetTable()
        self.exposed: list[MessageQueue] = []
        self.story: list[str] = []
        self.committer = Committer(self.store, self.loop, sync=True, exposed=self.exposed.extend)
        self.store.snapshot = self.snapshot
        self.committer.turn_over = self.turn_over

    def create(self, name: str = "orders", queues: int = 1) -> None:
        self.committer.record(self.topics.create(name, queues, created_at=0)[0].made())

    def grow(self, name: str, queues: int) -> None:
        self.committer.record(self.topics.grow(name, queues)[0].made())

    def delete(self, name: str = "orders") -> None:
        topic = self.topics.delete(name)
        self.committer.record(topic.deleted())
        self.offsets.forget_topic(name)
        self.store.drop_topic(name, topic.generation)

    def send(self, body: bytes, to: MessageQueue = ORDERS) -> int:
        topic = self.topics.require_queue(*to)
        self.committer.add_send(Ticket(body.decode(), self.story))
        self.committer.before_send()
        data = make_batch(body, to=to)
        return self.store.stage(to, topic.generation, data, batches.check(data, stamped=False)).base_offset

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        self.topics.require_queue(*queue)
        if self.offsets.commit(group, queue, offset):
            self.committer.record(Committed(group, *queue, offset))

    def snapshot(self) -> list[Change]:
        told: list[Change] = [
            Started(self.store.stores.current, self.store.log_epoch),
            *map(Topic.made, self.topics.all()),
        ]
        told += [*self.store.queue_bounds(), *self.offsets.rows()]
        return [*told, SnapshotEnded(self.store.log.written, len(told), self.topics.last_generation)]

    def turn_over(self) -> None:
        if self.store.turn_over():
            self.committer.schedule()

    def turn(self) -> None:
        self.loop.turn()

    def sync(self) -> None:
        self.committer.synced(self.store.log.sync())

    def close(self) -> None:
        self.opened.close()


class Found:
    """What a start finds in a copy of the data, taken in this moment, if its oldest segments are gone."""

    def __init__(self, rig: Rig, *, without: int = 0) -> None:
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            copy = Path(folder, "copy")
            shutil.copytree(rig.path, copy)
            self.topics, ledger = TopicTable(), Ledger()
            self.offsets = ledger.offsets
            replay = Replay(self.topics, ledger, LeaseTable(), ProducerTable(), DeferredLog(), now=0.0)
            if without:
                for segment in segment_files(copy)[:without]:
                    segment.unlink()
            store = MessageStore(DataDirectory(copy), segment_bytes=SMALL, wall_us=WallClock())
            store.recover(replay)
            self.first: dict[MessageQueue, int] = {}
            self.bodies: dict[MessageQueue, list[bytes]] = {}
            for topic in self.topics.all():
                for queue in (MessageQueue(topic.name, queue_id) for queue_id in range(topic.queues)):
                    self.first[queue] = store.queue(queue).min_offset
                    self.bodies[queue] = _bodies(store, queue)
            self.segments = len(store.log.segments)
            store.abandon()


def _bodies(store: MessageStore, queue: MessageQueue) -> list[bytes]:
    found: list[bytes] = []
    offset = store.queue(queue).min_offset
    while offset < store.queue(queue).readable:
        run = store.read(queue, offset, 1 << 20)
        if isinstance(run, ColdRead):
            run = run.run(store.files)
        for batch in batches.read_all(b"".join(run.buffers), stores=StoreIds(1)):
            found += [message.body for message in batch.messages(offset)]
        offset = run.next_offset
    return found


@contextmanager
def opened_rig(segment_bytes: int = 1 << 30) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        rig = Rig(Path(folder, "data"), segment_bytes=segment_bytes)
        yield rig
        rig.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with opened_rig() as rig:
        rig.create()
        yield rig


def test_a_send_and_the_end_of_its_topic_in_one_turn(rig: Rig) -> None:
    rig.send(b"dead")
    rig.delete()
    rig.turn()
    rig.sync()

    assert rig.story == ["dead stored"]
    assert rig.exposed == []
    assert Found(rig).bodies == {}


def test_the_end_and_a_new_beginning_in_one_turn(rig: Rig) -> None:
    rig.send(b"dead")
    rig.turn()
    rig.delete()
    rig.create(queues=2)
    rig.turn()
    rig.sync()

    assert rig.exposed == []
    assert rig.store.queue(ORDERS).readable == 0
    found = Found(rig)
    assert [(topic.generation, topic.queues) for topic in found.topics.all()] == [(2, 2)]
    assert list(found.bodies.values()) == [[], []]


def test_all_in_one_turn_and_the_new_topic_begins_at_0(rig: Rig) -> None:
    rig.send(b"dead")
    rig.delete()
    rig.create()
    assert rig.send(b"alive") == 0
    rig.turn()
    rig.sync()

    assert rig.exposed == [ORDERS]
    assert rig.opened.bodies() == Found(rig).bodies[ORDERS] == [b"alive"]


def test_a_topic_that_ends_between_write_and_sync_exposes_nothing_of_it(rig: Rig) -> None:
    rig.send(b"dead")
    rig.turn()
    written = rig.store.log.sync()
    rig.delete()
    rig.create()
    rig.send(b"alive")
    rig.committer.synced(written)
    assert rig.exposed == []
    assert rig.store.queue(ORDERS).readable == 0
    rig.turn()
    rig.sync()

    assert rig.opened.bodies() == [b"alive"]


def test_a_failed_write_takes_back_the_sends_of_both_generations_and_keeps_the_changes(rig: Rig) -> None:
    rig.turn()
    rig.files.broken = True
    rig.send(b"dead")
    rig.delete()
    rig.create()
    rig.send(b"lost")
    rig.turn()
    assert rig.story == ["lost failed", "dead failed"]

    rig.files.broken = False
    assert rig.send(b"alive") == 0
    rig.loop.fire()
    rig.sync()

    found = Found(rig)
    assert rig.opened.bodies() == found.bodies[ORDERS] == [b"alive"]
    assert found.topics.require("orders").generation == 2


def test_what_waits_for_the_disk_says_nothing_of_a_topic_that_has_ended() -> None:
    made, gone, anew = TopicMade("orders", 1, 4, 4, 0), TopicDeleted("orders", 1), TopicMade("orders", 2, 4, 4, 9)
    other, after = Committed("g", "payments", 0, 5), Committed("g", "orders", 0, 2)

    waiting: list[Change] = [made, Committed("g", "orders", 0, 7), other, gone, anew, after]

    assert without_the_dead(waiting) == [other, gone, anew, after]


def test_a_send_to_a_queue_that_has_just_grown_stands_after_the_growth(rig: Rig) -> None:
    rig.grow("orders", 3)
    rig.send(b"new", MessageQueue("orders", 2))
    rig.turn()

    assert Found(rig).bodies[MessageQueue("orders", 2)] == [b"new"]


names = st.sampled_from(["orders", "payments"])
small = st.integers(0, 2)


class Turns(RuleBasedStateMachine):
    """Random changes, turns, syncs and failures against plain dictionaries; every turn is followed by a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = opened_rig(SMALL)
        self.rig = self.stack.__enter__()
        self.queues: dict[MessageQueue, list[bytes]] = {}  # of living topics, with what is not yet written
        self.unwritten: list[list[bytes]] = []  # where the sends of this turn went
        self.committed: dict[tuple[str, MessageQueue], int] = {}
        self.sent = 0

    def teardown(self) -> None:
        self.stack.__exit__(None, None, None)

    def living(self, name: str) -> list[MessageQueue]:
        return [queue for queue in self.queues if queue.topic == name]

    @rule(name=names, queues=st.integers(1, 3))
    def create(self, name: str, queues: int) -> None:
        """Also in place of one that exists: most steps should do something."""
        self.delete(name)
        self.rig.create(name, queues)
        self.queues |= {MessageQueue(name, i): [] for i in range(queues)}

    @rule(name=names)
    def grow(self, name: str) -> None:
        if queues := self.living(name):
            self.rig.grow(name, len(queues) + 1)
            self.queues[MessageQueue(name, len(queues))] = []

    @rule(name=names)
    def delete(self, name: str) -> None:
        if self.rig.topics.get(name) is not None:
            self.rig.delete(name)
            for queue in self.living(name):
                del self.queues[queue]
            self.committed = {key: at for key, at in self.committed.items() if key[1].topic != name}

    @rule(name=names, pick=small)
    def send(self, name: str, pick: int) -> None:
        if queues := self.living(name):
            self.sent += 1
            body, queue = b"%d" % self.sent, queues[pick % len(queues)]
            held = self.queues[queue]
            assert self.rig.send(body, queue) == len(held)
            held.append(body)
            self.unwritten.append(held)

    @rule(name=names, pick=small, group=st.sampled_from(["g", "h"]), offset=small)
    def commit(self, name: str, pick: int, group: str, offset: int) -> None:
        if queues := self.living(name):
            queue = queues[pick % len(queues)]
            self.rig.commit(group, queue, offset)
            self.committed[group, queue] = max(offset, self.committed.get((group, queue), 0))

    @rule()
    def turn(self) -> None:
        self.rig.turn()
        self.unwritten.clear()
        self.crash()

    @rule()
    def turn_that_fails(self) -> None:
        """All sends of the turn are gone, whatever became of their topics; the changes come with the next one."""
        self.rig.files.broken = True
        self.rig.turn()
        self.rig.files.broken = False
        for held in self.unwritten:
            held.pop()
        self.unwritten.clear()
        self.rig.loop.fire()
        self.crash()

    @rule()
    def sync(self) -> None:
        self.rig.sync()

    def crash(self) -> None:
        """Start on a copy; also without the older segments, as retention leaves it."""
        found = Found(self.rig)
        assert found.bodies == self.queues
        for without in range(max(found.segments - 1, 1)):  # the newest one may have no whole snapshot yet
            found = Found(self.rig, without=without)
            assert found.topics.all() == self.rig.topics.all()
            assert found.topics.last_generation == self.rig.topics.last_generation
            assert found.bodies == {queue: held[found.first[queue] :] for queue, held in self.queues.items()}
            assert {(row[0], MessageQueue(*row[1:3])): row[3] for row in found.offsets.rows()} == self.committed

    @invariant()
    def readers_see_a_part_of_what_is_there(self) -> None:
        for queue, held in self.queues.items():
            readable = _bodies(self.rig.store, queue)
            assert readable == held[: len(readable)]


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
