"""Copies and the changes that hold only with them are in the log together, or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq.broker.handlers.redelivery import CopyAppender, MessageCopy, Ticket
from rmq.broker.state.deferred import Delays
from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import Rows
from rmq.wire.errors import DiskFull, Refused, StoreFailed
from rmq.wire.model import MessageQueue

from ..builders import BORN_AT, ORDERS
from ..copy_rig import DEAD, RETRIES, Rig, found_by_a_start


@pytest.fixture
def rig_appending(memory_path: Path) -> Iterator[Rig]:
    rig_appending = Rig(memory_path)
    rig_appending.begin()
    yield rig_appending
    rig_appending.close()


@pytest.fixture
def appender(rig_appending: Rig) -> CopyAppender:
    delays = Delays(rig_appending.store.delays, [1_000_000, 5_000_000], max_delay_s=1e6, now_us=rig_appending.wall)
    return CopyAppender(
        rig_appending.store,
        rig_appending.committer,
        delays,
        rig_appending.tables.ledger,
        make_topic=rig_appending.make_topic,
        refusal=lambda: rig_appending.refusal,
    )


def copy(offset: int, to: MessageQueue, level: int = 0) -> MessageCopy:
    rows = Rows([b"x"], BORN_AT, properties=[{"RMQ_ORIGIN_OFFSET": str(offset)}])
    data = bytes(batches.encode(*to, rows, delay_level=level))
    return MessageCopy(offset, 8 << 12, to, data, batches.check(data, stamped=False), level)


def test_copies_for_now_and_for_later_are_there_when_it_is_true(rig_appending: Rig, appender: CopyAppender) -> None:
    seen: list[object] = []
    change = rig_appending.tables.ledger.copied.change("g", ORDERS, [1, 2])
    ticket = Ticket(lambda: seen.append("durable"))

    placed = appender.append(
        [copy(1, DEAD), copy(2, RETRIES, 2)],
        [change],
        ticket,
        lambda: seen.append(sorted(rig_appending.tables.ledger.copied.offsets("g", ORDERS))),
    )

    assert [place.base_offset for place in placed] == [0, -1]
    assert seen == [[1, 2], "durable"]
    assert (len(rig_appending.stored(DEAD)), [due_s for due_s, _ in rig_appending.deferred()]) == (1, [5])
    after = found_by_a_start(rig_appending)
    assert sorted(after.ledger.copied.offsets("g", ORDERS)) == [1, 2]
    assert {topic.name for topic in after.topics.all()} == {"orders", DEAD.topic, RETRIES.topic}


def test_nothing_is_begun_while_nothing_may_be_stored(rig_appending: Rig, appender: CopyAppender) -> None:
    rig_appending.refusal = "only 3 MiB are free"
    written = rig_appending.store.log.written

    with pytest.raises(DiskFull, match="only 3 MiB are free"):
        appender.append([copy(1, DEAD)], [], Ticket(), lambda: None)
    rig_appending.turn()

    assert rig_appending.tables.topics.get(DEAD.topic) is None
    assert rig_appending.store.log.written == written


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StoreFailed)]
)
def test_a_write_that_fails_says_why_and_nothing_of_it_is_true(
    rig_appending: Rig, appender: CopyAppender, number: int, kind: type[Refused]
) -> None:
    seen: list[str] = []
    change = rig_appending.tables.ledger.copied.change("g", ORDERS, [1])
    rig_appending.files.fail("write", "commitlog", number)

    ticket = Ticket(lambda: seen.append("durable"))
    with pytest.raises(kind, match=os.strerror(number)):
        appender.append([copy(1, DEAD), copy(2, RETRIES, 1)], [change], ticket, lambda: seen.append("written"))

    rig_appending.files.heal()
    rig_appending.turn()
    assert (seen, rig_appending.stored(DEAD), rig_appending.deferred()) == ([], [], [])
    assert not rig_appending.tables.ledger.copied.offsets("g", ORDERS)
