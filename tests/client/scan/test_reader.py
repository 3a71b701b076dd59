"""A range is fetched whole and in order, or the task fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rmq.client.scan.ranges import Manner, QueueRange
from rmq.client.scan.reader import ENOUGH_ROWS, MAX_PULL, MOST_BYTES, rows_of
from rmq.wire.batch.batch import Rows
from rmq.wire.batch.compression import CODECS
from rmq.wire.batch.layout import MAX_BODY
from rmq.wire.errors import (
    BadBatch,
    ConnectionLost,
    Damaged,
    Internal,
    LogTruncated,
    MessagesLost,
    RmqError,
    ShuttingDown,
)
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from support.batches import every_codec
from support.threaded_broker import STORE_ID, FakeBroker

BODY = Manner(("body",))
OFFSET_AND_BODY = Manner(("queue_offset", "body"))


@pytest.fixture
def broker(fake_broker: FakeBroker) -> FakeBroker:
    """One queue with 10 batches of 10 messages, whose bodies are their offsets."""
    fake_broker.create("orders")
    for first in range(0, 100, 10):
        fake_broker.append("orders", 0, Rows([b"%d" % i for i in range(first, first + 10)], 0))
    return fake_broker


def part(broker: FakeBroker, start: int = 0, end: int = 100) -> QueueRange:
    return QueueRange(broker.address, StoreIds(STORE_ID), "orders", 1, 0, start, end)


def fetched(asked: QueueRange) -> list[int]:
    found: list[int] = []
    for batch in rows_of(asked, OFFSET_AND_BODY):
        offsets, bodies = (column.to_pylist() for column in batch.columns)
        assert [int(body) for body in bodies] == offsets
        found += offsets
    return found


def pulls(broker: FakeBroker) -> list[int]:
    return [payload[3][0][2] for op, payload in broker.requests if op is Op.PULL]


@pytest.mark.parametrize(
    ("start", "end"), [(0, 100), (0, 1), (99, 100), (5, 95), (10, 20), (13, 17), (19, 21), (50, 50)]
)
@pytest.mark.parametrize("batches_a_pull", [1, 3, 512])
def test_every_offset_of_a_range_comes_once_and_in_order(
    broker: FakeBroker, start: int, end: int, batches_a_pull: int
) -> None:
    broker.max_pull_batches = batches_a_pull

    assert fetched(part(broker, start, end)) == list(range(start, end))


def test_small_answers_are_gathered_into_one_record_batch(broker: FakeBroker) -> None:
    broker.max_pull_batches = 1

    assert [batch.num_rows for batch in rows_of(part(broker), BODY)] == [100]
    assert pulls(broker) == list(range(0, 100, 10))


def test_a_long_range_comes_in_several_record_batches(fake_broker: FakeBroker) -> None:
    fake_broker.create("orders")
    for _ in range(10):
        fake_broker.append("orders", 0, Rows([b""] * 4096, 0))

    sizes = [batch.num_rows for batch in rows_of(part(fake_broker, 1, 40_959), Manner(("queue_offset",)))]

    assert sum(sizes) == 40_958
    assert all(size >= ENOUGH_ROWS - 1 for size in sizes[:-1])


def test_no_more_is_asked_for_than_the_range_seems_to_need(broker: FakeBroker) -> None:
    fetched(part(broker, 0, 10))
    fetched(replace(part(broker), end=100))

    asked = [payload[2] for op, payload in broker.requests if op is Op.PULL]
    assert asked and all(size < MAX_PULL // 8 for size in asked)


def test_nothing_is_joined_committed_or_waited_for(broker: FakeBroker) -> None:
    fetched(part(broker))

    assert {op for op, _ in broker.requests} == {Op.HELLO, Op.PULL}
    assert all(payload[:2] == [None, 0] for op, payload in broker.requests if op is Op.PULL)


def test_the_connection_is_closed_when_the_reader_stops_early(broker: FakeBroker) -> None:
    rows = rows_of(part(broker), BODY)
    next(rows)
    assert broker.wait_for_connections(1)

    rows.close()  # type: ignore[attr-defined]  # a generator: this is what Spark does behind a limit

    assert broker.wait_for_connections(0)


def test_reading_again_gives_the_same_rows(broker: FakeBroker) -> None:
    assert fetched(part(broker, 5, 55)) == fetched(part(broker, 5, 55))


def refuse(answer: Any) -> Any:
    raise Internal("the broker has a defect, see log id 7")


def hang_up(answer: Any) -> Any:
    raise OSError


def stopping(answer: Any) -> Any:
    raise ShuttingDown("the broker is stopping")


def nothing(answer: Any) -> Any:
    return []


def edit(change: Callable[[bytearray], object]) -> Callable[[Any], Any]:
    def apply(answer: Any) -> Any:
        data = bytearray(answer[0].batches)
        change(data)
        return [answer[0]._replace(batches=bytes(data))]

    return apply


def flip(data: bytearray) -> None:
    data[-9] ^= 1


def cut(data: bytearray) -> None:
    del data[-8:]


@pytest.mark.parametrize("fault", [hang_up, stopping])
def test_a_connection_that_the_broker_ended_meanwhile_is_made_anew(
    broker: FakeBroker, fault: Callable[[Any], Any]
) -> None:
    broker.max_pull_batches = 1
    broker.fail_next(Op.PULL, lambda answer: answer, fault)

    assert fetched(part(broker)) == list(range(100))


@pytest.mark.parametrize(
    ("faults", "error", "sentence"),
    [
        ([refuse], Internal, "offset 0, .*log id 7"),
        ([hang_up], ConnectionLost, "offset 0, .*(closed the connection|was lost)"),
        ([edit(flip)], BadBatch, "offset 90, .*checksum"),
        ([edit(cut)], BadBatch, "offset 90, .*announces"),
        ([nothing], LogTruncated, "offset 0, .*the queue ends at 0; it went to 100"),
        ([edit(bytearray.clear)], LogTruncated, "offset 0, .*the queue ends at 100; it went to 100"),
    ],
)
def test_what_cannot_be_read_fails_and_names_the_place(
    broker: FakeBroker, faults: list[Callable[[Any], Any]], error: type[RmqError], sentence: str
) -> None:
    broker.fail_next(Op.PULL, *faults)

    with pytest.raises(error, match=rf"^topic orders, queue 0, offset \d+, broker {broker.address}: ") as caught:
        fetched(part(broker))

    assert re.search(sentence, str(caught.value))


def test_a_missing_batch_is_a_gap_and_fails(broker: FakeBroker) -> None:
    del broker.topics["orders"][0].batches[3]

    with pytest.raises(Damaged, match="the next batch holds 40 to 50, so offset 30 is missing"):
        fetched(part(broker))


def test_a_batch_that_comes_twice_fails(broker: FakeBroker) -> None:
    batches = broker.topics["orders"][0].batches
    broker.fail_next(Op.PULL, lambda answer: [answer[0]._replace(batches=batches[0] + batches[0])])

    with pytest.raises(Damaged, match="offset 10 is missing"):
        fetched(part(broker))


def test_messages_that_retention_removed_fail_the_task(broker: FakeBroker) -> None:
    broker.topics["orders"][0].min_offset = 30

    with pytest.raises(MessagesLost, match=r"queue 0, offset 20.*from offset 20 to 30.*the queue holds 30 to 100"):
        fetched(part(broker, 20))


def test_an_end_that_is_no_longer_reached_fails_the_task(broker: FakeBroker) -> None:
    with pytest.raises(LogTruncated, match="the queue ends at 100; it went to 120"):
        fetched(part(broker, 0, 120))


def test_a_topic_that_was_made_again_fails_the_task(broker: FakeBroker) -> None:
    with pytest.raises(LogTruncated, match="deleted and made again"):
        fetched(replace(part(broker), generation=2))


def test_another_store_at_the_same_address_fails_the_task(broker: FakeBroker) -> None:
    with pytest.raises(LogTruncated, match="another store"):
        fetched(replace(part(broker), stores=StoreIds(5)))


def test_a_batch_of_another_queue_fails_the_task(broker: FakeBroker) -> None:
    broker.create("other")
    broker.append("other", 0, Rows([b"x"], 0))
    theirs = broker.topics["other"][0].batches[0]
    broker.fail_next(Op.PULL, lambda answer: [answer[0]._replace(batches=theirs)])

    with pytest.raises(Damaged, match="a batch of other, queue 0"):
        fetched(part(broker))


@every_codec
def test_compressed_batches_give_the_same_rows(fake_broker: FakeBroker, name: str) -> None:
    fake_broker.create("orders")
    for first in range(0, 100, 10):
        bodies = [b"%0100d" % i for i in range(first, first + 10)]
        fake_broker.append("orders", 0, Rows(bodies, 0), CODECS.by_name(name) if first % 20 else None)

    assert fetched(part(fake_broker, 5, 95)) == list(range(5, 95))


def test_what_unpacks_to_much_comes_in_several_record_batches_of_one_answer(fake_broker: FakeBroker) -> None:
    """Arrow holds 2 GiB in one column, and a task not even that: an answer of 8 MiB may unpack to more."""
    fake_broker.create("orders")
    for i in range(40):
        fake_broker.append("orders", 0, Rows([b"%d" % i + bytes(1 << 20)], 0), CODECS.by_name("zlib"))

    found = list(rows_of(part(fake_broker, 3, 38), OFFSET_AND_BODY))

    assert [batch.num_rows for batch in found] == [16, 16, 3]
    assert [int(body.as_py().rstrip(b"\0")) for batch in found for body in batch.column(1)] == list(range(3, 38))
    assert pulls(fake_broker) == [3, 20, 35], "what was left of an answer is not asked for again"
    assert 16 << 20 <= MOST_BYTES < found[0].nbytes + MAX_BODY
