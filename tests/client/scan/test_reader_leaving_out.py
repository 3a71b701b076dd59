"""What a scan leaves out, where it was told to, and that it says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rmq.client.scan.ranges import Manner, QueueRange
from rmq.client.scan.reader import Skipped, rows_of
from rmq.wire.batch import layout
from rmq.wire.batch.batch import Rows
from rmq.wire.errors import BadBatch, Damaged, LogTruncated, MessagesLost, RmqError
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from support.threaded_broker import STORE_ID, FakeBroker

FAILING = Manner(("queue_offset",))
SKIPPING = replace(FAILING, skip_damage=True)


@pytest.fixture
def broker(fake_broker: FakeBroker) -> FakeBroker:
    """One queue with 10 batches of 10 messages, whose tags change with every batch: a, b, c, a, ..."""
    fake_broker.create("orders")
    for number in range(10):
        tags = [None, *["abc"[number % 3]] * 9]
        fake_broker.append("orders", 0, Rows([b"body"] * 10, 0, tags=tags))
    return fake_broker


def part(broker: FakeBroker, start: int = 0, end: int = 100) -> QueueRange:
    return QueueRange(broker.address, StoreIds(STORE_ID), "orders", 1, 0, start, end)


def read(asked: QueueRange, manner: Manner) -> tuple[list[int], list[tuple[int, int]]]:
    """The offsets that came, and the ranges that were reported."""
    reports: list[Skipped] = []
    rows = [row for rows in rows_of(asked, manner, report=reports.append) for row in rows.to_pylist()]
    assert all((report.topic, report.queue_id) == ("orders", 0) and report.reason for report in reports)
    return [row["queue_offset"] for row in rows], [(report.start, report.end) for report in reports]


def spoil(broker: FakeBroker, number: int, change: Callable[[bytearray, layout.Header], None]) -> None:
    batches = broker.topics["orders"][0].batches
    data = bytearray(batches[number])
    change(data, layout.parse_header(bytes(data)))
    batches[number] = bytes(data)


def body(data: bytearray, header: layout.Header) -> None:
    data[header.content_size - 1] ^= 1


def head(data: bytearray, header: layout.Header) -> None:
    data[33] ^= 1  # the time it was stored, which nothing but the checksum of the header protects


def column(data: bytearray, header: layout.Header) -> None:
    """A length that is wrong although both checksums are right: no broker stores it."""
    data[header.header_size + 3] ^= 1
    layout.seal(data, header.content_size)
    stamp = layout.Stamp(1, header.physical_offset, header.base_offset, header.stored_at, 0, 0, 1, 0, layout.KIND_DATA)
    data[: layout.BROKER_PART] = layout.stamp(data, header.header_size, stamp)


def test_what_the_broker_finds_damaged_fails_the_scan_or_is_left_out(broker: FakeBroker) -> None:
    def damaged(answer: Any) -> Any:
        return [answer[0]._replace(status=Damaged.code, next_offset=40, batches=b"", text="damaged")]

    broker.max_pull_batches = 1
    faults = [lambda answer: answer] * 3 + [damaged]
    broker.fail_next(Op.PULL, *faults)
    with pytest.raises(Damaged, match=r"queue 0, offset 30, .*damaged"):
        read(part(broker), FAILING)
    broker.fail_next(Op.PULL, *faults)

    found, left_out = read(part(broker), SKIPPING)

    assert found == [*range(30), *range(40, 100)]
    assert left_out == [(30, 40)]


@pytest.mark.parametrize("batches_a_pull", [1, 3, 512])
def test_a_batch_that_changed_on_its_way_fails_the_scan_or_is_left_out_alone(
    broker: FakeBroker, batches_a_pull: int
) -> None:
    broker.max_pull_batches = batches_a_pull
    spoil(broker, 3, body)

    with pytest.raises(BadBatch, match=r"queue 0, offset 30, .*checksum"):
        read(part(broker), FAILING)
    found, left_out = read(part(broker), SKIPPING)

    assert found == [*range(30), *range(40, 100)]
    assert left_out == [(30, 40)]


def test_behind_a_header_that_changed_the_rest_of_the_answer_is_left_out(broker: FakeBroker) -> None:
    broker.max_pull_batches = 4
    spoil(broker, 2, head)

    with pytest.raises(BadBatch, match=r"queue 0, offset 20, .*the header's checksum"):
        read(part(broker), FAILING)

    assert read(part(broker), SKIPPING) == ([*range(20), *range(40, 100)], [(20, 40)])


def test_an_answer_that_neither_can_be_read_nor_says_where_to_go_on_fails_in_any_case(broker: FakeBroker) -> None:
    broker.fail_next(Op.PULL, lambda answer: [answer[0]._replace(batches=b"nonsense", next_offset=0)])

    with pytest.raises(RmqError, match="offset 0"):
        read(part(broker), SKIPPING)


@pytest.mark.parametrize("start", [0, 25, 33])
def test_columns_that_no_broker_stores_fail_the_scan_with_their_offset_or_are_left_out(
    broker: FakeBroker, start: int
) -> None:
    spoil(broker, 3, column)
    wanted = replace(FAILING, columns=("queue_offset", "body"))
    first = max(start, 30)

    with pytest.raises(BadBatch, match=rf"queue 0, offset {first}, "):
        read(part(broker, start), wanted)
    found, left_out = read(part(broker, start), replace(wanted, skip_damage=True))

    assert found == [*range(start, first), *range(40, 100)]
    assert left_out == [(first, 40)]


def test_nothing_is_left_where_all_is_damaged(broker: FakeBroker) -> None:
    spoil(broker, 3, column)

    assert read(part(broker, 32, 38), replace(SKIPPING, columns=("queue_offset", "body"))) == ([], [(32, 38)])


def test_without_verify_the_content_is_not_judged_by_its_checksum_but_the_header_is(broker: FakeBroker) -> None:
    spoil(broker, 3, body)
    assert read(part(broker), replace(FAILING, verify=False)) == (list(range(100)), [])
    spoil(broker, 4, head)

    with pytest.raises(BadBatch, match=r"offset 40, .*the header's checksum"):
        read(part(broker), replace(FAILING, verify=False))


def test_what_retention_removed_fails_the_scan_or_is_left_out(broker: FakeBroker) -> None:
    broker.topics["orders"][0].min_offset = 30

    with pytest.raises(MessagesLost, match=r"queue 0, offset 20, .*; failOnDataLoss=false leaves them out$"):
        read(part(broker, 20), SKIPPING)
    assert read(part(broker, 20), replace(FAILING, skip_lost=True)) == (list(range(30, 100)), [(20, 30)])
    assert read(part(broker, 5, 25), replace(FAILING, skip_lost=True)) == ([], [(5, 25)])


def test_what_is_left_out_is_a_warning_of_the_worker(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.topics["orders"][0].min_offset = 30

    with caplog.at_level(logging.WARNING):
        list(rows_of(part(broker, 20), replace(FAILING, skip_lost=True)))

    assert [record.getMessage().split(": ret")[0] for record in caplog.records] == [
        "left out: topic orders, queue 0, offsets 20 to 30"
    ]


@pytest.mark.parametrize("queue_end", [0, 50])
def test_a_topic_that_was_made_again_and_is_shorter_is_told_as_such(broker: FakeBroker, queue_end: int) -> None:
    broker.create("orders")
    broker.generation = 2
    if queue_end:
        broker.append("orders", 0, Rows([b""] * queue_end, 0))

    with pytest.raises(LogTruncated, match=r"offset 60, .*deleted and made again"):
        read(part(broker, 60), FAILING)


@pytest.mark.parametrize("tags", ["zz", "b"])
def test_a_topic_that_was_made_again_is_noticed_although_none_of_its_messages_is_wanted(
    broker: FakeBroker, tags: str
) -> None:
    broker.create("orders")
    broker.generation = 2
    broker.append("orders", 0, Rows([b""] * 200, 0, tags=["a"] * 200))

    with pytest.raises(LogTruncated, match=r"offset 0, .*deleted and made again"):
        read(part(broker), replace(FAILING, tags=tags))


@pytest.mark.parametrize("batches_a_pull", [1, 2, 512])
@pytest.mark.parametrize(("start", "end"), [(0, 100), (5, 95), (12, 31), (39, 41), (91, 100), (20, 21)])
@pytest.mark.parametrize("tags", ["a", "c", "a || c", "b||zz", "zz"])
def test_of_some_tags_exactly_the_messages_with_one_come(
    broker: FakeBroker, tags: str, start: int, end: int, batches_a_pull: int
) -> None:
    broker.max_pull_batches = batches_a_pull
    chosen = {tag.strip() for tag in tags.split("||")}

    found, left_out = read(part(broker, start, end), replace(FAILING, tags=tags))

    assert found == [i for i in range(start, end) if i % 10 and "abc"[i // 10 % 3] in chosen]
    assert left_out == []
    assert {payload[4] for op, payload in broker.requests if op is Op.PULL} == {tags}


def test_what_an_answer_passed_behind_its_last_batch_is_not_asked_for_again(broker: FakeBroker) -> None:
    broker.max_pull_batches = 1

    found, _ = read(part(broker), replace(FAILING, tags="a"))

    assert len(found) == 36
    assert [payload[3][0][2] for op, payload in broker.requests if op is Op.PULL] == [0, 30, 60, 90]
    assert [op for op, _ in broker.requests].count(Op.HELLO) == 1, "one connection is enough"


def test_a_queue_that_ends_before_the_range_fails_the_scan_for_some_tags_too(broker: FakeBroker) -> None:
    with pytest.raises(LogTruncated, match="the queue ends at 100; it went to 120"):
        read(part(broker, 0, 120), replace(FAILING, tags="a"))


def test_the_next_answer_is_asked_for_before_the_rows_of_the_last_are_taken(fake_broker: FakeBroker) -> None:
    fake_broker.create("orders")
    for _ in range(10):
        fake_broker.append("orders", 0, Rows([bytes(1000)] * 4000, 0))
    rows = rows_of(QueueRange(fake_broker.address, StoreIds(STORE_ID), "orders", 1, 0, 0, 40_000), FAILING)

    taken = next(rows).num_rows
    assert fake_broker.wait_for_requests(Op.PULL, 3)
    asked = [payload[3][0][2] for op, payload in fake_broker.requests if op is Op.PULL]

    assert asked == [0, taken // 2, taken], "a record batch of two answers, and the next one is on its way"
    assert taken + sum(batch.num_rows for batch in rows) == 40_000


def test_an_answer_that_names_another_place_to_go_on_is_not_believed(broker: FakeBroker) -> None:
    broker.max_pull_batches = 2
    broker.fail_next(Op.PULL, lambda answer: [answer[0]._replace(next_offset=60)])

    assert read(part(broker), FAILING) == (list(range(100)), [])


def test_an_error_of_the_broker_itself_is_never_left_out(broker: FakeBroker) -> None:
    refusal = ops.PullResult(0, 9999, 50, 0, 100, b"", "no")
    broker.fail_next(Op.PULL, lambda answer: [refusal])

    with pytest.raises(RmqError, match=r"no .the queue holds 0 to 100"):
        read(part(broker), replace(SKIPPING, skip_lost=True))
