"""What becomes of a question about stored messages that a thread or its asker cannot go on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from rmq.broker.handlers.lookup import MAX_AT_ONCE, MessageHandler
from rmq.broker.net.connection import DEFERRED, Connection
from rmq.broker.state.topics import TopicTable
from rmq.broker.store.message_store import MessageStore
from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import Internal, MessageNotFound, TooManyInFlight, WireError

from ..builders import Opened

ID = "f" * 32


class Asker:
    """The part of a connection that answers; it remembers what was answered."""

    def __init__(self) -> None:
        self.closing = False
        self.blocked = False
        self.answers: list[type[WireError] | bytes] = []

    def reply_parts(self, request_id: int, payload: Sequence[Buffer]) -> None:
        self.answers.append(b"".join(payload))

    def refuse(self, request_id: int, error: WireError) -> None:
        self.answers.append(type(error))

    def defect(self, error: Exception, request_id: int) -> Internal:
        return Internal(str(error))


class Pool:
    """A pool whose jobs run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.full = False

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if self.full:
            raise TooManyInFlight("full")
        self.jobs.append((job, done))

    def run(self) -> None:
        for job, done in self.jobs:
            try:
                done(job())
            except WireError as error:
                done(error)
        self.jobs.clear()


@pytest.fixture
def store(memory_path: Path) -> Iterator[MessageStore]:
    opened = Opened(memory_path / "data")
    yield opened.store
    opened.close()


def make(store: MessageStore, pool: Pool) -> tuple[MessageHandler, Asker, Connection]:
    asker = Asker()
    handler = MessageHandler(
        store, TopicTable(), pool, index_now=lambda ready: None, call_later=lambda *_: None, clock=lambda: 0.0  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    return handler, asker, cast(Connection, asker)


def test_a_question_is_answered_when_its_thread_is_done(store: MessageStore) -> None:
    pool = Pool()
    handler, asker, connection = make(store, pool)

    assert handler.get(connection, 1, [ID]) is DEFERRED
    assert handler.query(connection, 2, [None, "k"]) is DEFERRED
    assert handler.offsets_at(connection, 3, [0, []]) is DEFERRED
    assert asker.answers == []
    pool.run()

    assert asker.answers == [MessageNotFound, b"\x93\x90\x00\x00", b"\x90"]


def test_a_full_pool_refuses_and_forgets_the_question(store: MessageStore) -> None:
    pool = Pool()
    handler, asker, connection = make(store, pool)
    pool.full = True
    for _ in range(MAX_AT_ONCE + 1):
        handler.get(connection, 1, [ID])

    assert asker.answers == [TooManyInFlight] * (MAX_AT_ONCE + 1)


def test_a_peer_that_does_not_read_gets_no_more_large_answers(store: MessageStore) -> None:
    pool = Pool()
    handler, asker, connection = make(store, pool)
    handler.query(connection, 1, [None, "k"])
    asker.blocked = True
    pool.run()

    assert asker.answers == [TooManyInFlight]


def test_a_defect_in_a_thread_is_answered_as_one(store: MessageStore) -> None:
    pool = Pool()
    handler, asker, connection = make(store, pool)
    handler.query(connection, 1, [None, "k"])
    ((_, done),) = pool.jobs
    done(ZeroDivisionError("a defect"))

    assert asker.answers == [Internal]
