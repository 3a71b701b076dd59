"""A pull handler over a real store: arrivals, turns, threads and time by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from rmq.broker.handlers.pull import PullHandler
from rmq.broker.jobs.read_pool import ReadPool
from rmq.broker.state.parked_pulls import ParkedPullTable
from rmq.broker.state.topics import TopicTable
from rmq.broker.store.message_store import MessageStore
from rmq.broker.store.read import ColdRead, ReadBatches
from rmq.wire.batch import batch as batches
from rmq.wire.batch import tags
from rmq.wire.batch.tags import Wanted
from rmq.wire.errors import Fenced
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op, Pull, PullQueue
from rmq.wire.stores import StoreIds

from .builders import ORDERS, Opened
from .fakes import FakeService, HeldPool, Peer, Turns, request
from rigs.disk.faulty import FaultyFiles

OTHER = MessageQueue("orders", 1)


class Member:
    """Has every lease, and wants what ``expression`` says."""

    def __init__(self) -> None:
        self.expression: str | None = "a"
        self.is_fenced = False

    def check_pull(self, session: bytes, group: str, queue: MessageQueue, epoch: int | None) -> None:
        if self.is_fenced:
            raise Fenced("the lease is gone")

    def wanted(self, session: bytes, group: str, topic: str) -> Wanted | None:
        return None if self.expression is None else tags.wanted(self.expression)

    def ride(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        pass

    def fetched(self, group: str, queue: MessageQueue, next_offset: int) -> None:
        pass


class HookedStore:
    """The store, with something that happens before each read."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.before_read: Callable[[], None] = lambda: None
        self.reads = 0

    def read(self, *args: Any) -> ReadBatches | ColdRead:
        self.before_read()
        self.reads += 1
        return self._store.read(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Rig:
    """The handler and a peer; ``recent_bytes=0`` and ``files.cold`` leave all reads to threads."""

    def __init__(self, path: Path, *, member: Member | None = None, **settings: int) -> None:
        self.path = path
        self.files = FaultyFiles()
        self.opened = Opened(path, files=self.files, **settings)
        self.store = HookedStore(self.opened.store)
        self.service, self.turns, self.parked_pulls, self.pool = FakeService(), Turns(), ParkedPullTable(), HeldPool()
        self.member = member or Member()
        self.clock = self.service.clock
        self.topics = TopicTable()
        self.topics.create("orders", 4, created_at=0)
        self.pulls = PullHandler(
            cast(MessageStore, self.store), self.topics, self.parked_pulls, self.member, now=self.service.now,
            clock=lambda: self.clock(), call_soon=self.turns.call_soon, max_park_s=30.0,
            pool=cast(ReadPool, self.pool), answers=self.service.answers,
        )  # fmt: skip
        self.service.handlers[Op.PULL] = self.pulls.pull
        self.service.unblocked = self.pulls.unblocked  # type: ignore[method-assign]
        self.peer = Peer(self.service, self.turns)

    def arrive(self, *some: str | None, to: MessageQueue = ORDERS, told: bool = True) -> None:
        """A batch with these tags becomes readable."""
        self.opened.append(*(b"%s" % (tag or "-").encode() for tag in some), to=to, tags=some)
        if told:
            self.pulls.arrived([to])

    def pull(
        self, request_id: int, *offsets: int, wait_ms: int = 15_000, max_bytes: int = 1 << 20, group: str | None = "g",
        expression: str | None = None,
    ) -> None:  # fmt: skip
        """Pull the queues from 0 on, each from one of ``offsets``."""
        queues = [PullQueue("orders", i, offset) for i, offset in enumerate(offsets)]
        self.peer.send(request(request_id, Op.PULL, Pull(group, wait_ms, max_bytes, queues, expression)))

    def results(self) -> list[tuple[Any, ...]]:
        """(request, place, status, next offset, bodies) of each part of all answers."""
        found = []
        for _, request_id, status, parts in self.peer.answers():
            if status:
                found.append((request_id, status))
                continue
            for place, code, following, *_, data, _ in parts:
                bodies = [m.body for batch in batches.read_all(data, stores=StoreIds(1)) for m in batch.messages()]
                found.append((request_id, place, code, following, bodies))
        return found

    def expire(self, now: float) -> None:
        self.service.time = now
        self.pulls.expire()
