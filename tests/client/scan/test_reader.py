"""
A range is fetched whole and in order, or the task fails.

Errors say where they happened.

What a scan leaves out, where it was told to, and that it says so.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rmq.client.scan.ranges import naming
from rmq.client.scan.reader import ENOUGH_ROWS, MAX_PULL, MOST_BYTES, Skipped, rows_of
from rmq.engine.native.source import Manner, QueueRange
from rmq.wire.batch import layout
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
    Refused,
    RequestTimeout,
    RmqError,
    ShuttingDown,
    TopicNotFound,
)
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from rigs.batches import every_codec
from rigs.faulty_broker import STORE_ID, FakeBroker

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


@pytest.mark.parametrize("error", [TopicNotFound("gone"), Refused("gone", code=9999), RequestTimeout("gone")])
def test_the_place_comes_first_and_the_kind_stays(error: RmqError) -> None:
    with pytest.raises(type(error), match=r"^queue 7: gone$") as caught, naming("queue 7"):
        raise error

    assert getattr(caught.value, "code", None) == getattr(error, "code", None)
    assert caught.value.__cause__ is error


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(ZeroDivisionError, match=r"^x$"), naming("queue 7"):
        raise ZeroDivisionError("x")


FAILING = Manner(("queue_offset",))
SKIPPING = replace(FAILING, skip_damage=True)


@pytest.fixture
def broker_leaving_out(fake_broker: FakeBroker) -> FakeBroker:
    """One queue with 10 batches of 10 messages, whose tags change with every batch: a, b, c, a, ..."""
    fake_broker.create("orders")
    for number in range(10):
        tags = [None, *["abc"[number % 3]] * 9]
        fake_broker.append("orders", 0, Rows([b"body"] * 10, 0, tags=tags))
    return fake_broker


def read(asked: QueueRange, manner: Manner) -> tuple[list[int], list[tuple[int, int]]]:
    """The offsets that came, and the ranges that were reported."""
    reports: list[Skipped] = []
    rows = [row for rows in rows_of(asked, manner, report=reports.append) for row in rows.to_pylist()]
    assert all((report.topic, report.queue_id) == ("orders", 0) and report.reason for report in reports)
    return [row["queue_offset"] for row in rows], [(report.start, report.end) for report in reports]


def spoil(broker_leaving_out: FakeBroker, number: int, change: Callable[[bytearray, layout.Header], None]) -> None:
    batches = broker_leaving_out.topics["orders"][0].batches
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


def test_what_the_broker_finds_damaged_fails_the_scan_or_is_left_out(broker_leaving_out: FakeBroker) -> None:
    def damaged(answer: Any) -> Any:
        return [answer[0]._replace(status=Damaged.code, next_offset=40, batches=b"", text="damaged")]

    broker_leaving_out.max_pull_batches = 1
    faults = [lambda answer: answer] * 3 + [damaged]
    broker_leaving_out.fail_next(Op.PULL, *faults)
    with pytest.raises(Damaged, match=r"queue 0, offset 30, .*damaged"):
        read(part(broker_leaving_out), FAILING)
    broker_leaving_out.fail_next(Op.PULL, *faults)

    found, left_out = read(part(broker_leaving_out), SKIPPING)

    assert found == [*range(30), *range(40, 100)]
    assert left_out == [(30, 40)]


@pytest.mark.parametrize("batches_a_pull", [1, 3, 512])
def test_a_batch_that_changed_on_its_way_fails_the_scan_or_is_left_out_alone(
    broker_leaving_out: FakeBroker, batches_a_pull: int
) -> None:
    broker_leaving_out.max_pull_batches = batches_a_pull
    spoil(broker_leaving_out, 3, body)

    with pytest.raises(BadBatch, match=r"queue 0, offset 30, .*checksum"):
        read(part(broker_leaving_out), FAILING)
    found, left_out = read(part(broker_leaving_out), SKIPPING)

    assert found == [*range(30), *range(40, 100)]
    assert left_out == [(30, 40)]


def test_behind_a_header_that_changed_the_rest_of_the_answer_is_left_out(broker_leaving_out: FakeBroker) -> None:
    broker_leaving_out.max_pull_batches = 4
    spoil(broker_leaving_out, 2, head)

    with pytest.raises(BadBatch, match=r"queue 0, offset 20, .*the header's checksum"):
        read(part(broker_leaving_out), FAILING)

    assert read(part(broker_leaving_out), SKIPPING) == ([*range(20), *range(40, 100)], [(20, 40)])


def test_an_answer_that_neither_can_be_read_nor_says_where_to_go_on_fails_in_any_case(
    broker_leaving_out: FakeBroker,
) -> None:
    broker_leaving_out.fail_next(Op.PULL, lambda answer: [answer[0]._replace(batches=b"nonsense", next_offset=0)])

    with pytest.raises(RmqError, match="offset 0"):
        read(part(broker_leaving_out), SKIPPING)


@pytest.mark.parametrize("start", [0, 25, 33])
def test_columns_that_no_broker_stores_fail_the_scan_with_their_offset_or_are_left_out(
    broker_leaving_out: FakeBroker, start: int
) -> None:
    spoil(broker_leaving_out, 3, column)
    wanted = replace(FAILING, columns=("queue_offset", "body"))
    first = max(start, 30)

    with pytest.raises(BadBatch, match=rf"queue 0, offset {first}, "):
        read(part(broker_leaving_out, start), wanted)
    found, left_out = read(part(broker_leaving_out, start), replace(wanted, skip_damage=True))

    assert found == [*range(start, first), *range(40, 100)]
    assert left_out == [(first, 40)]


def test_nothing_is_left_where_all_is_damaged(broker_leaving_out: FakeBroker) -> None:
    spoil(broker_leaving_out, 3, column)

    assert read(part(broker_leaving_out, 32, 38), replace(SKIPPING, columns=("queue_offset", "body"))) == (
        [],
        [(32, 38)],
    )


def test_without_verify_the_content_is_not_judged_by_its_checksum_but_the_header_is(
    broker_leaving_out: FakeBroker,
) -> None:
    spoil(broker_leaving_out, 3, body)
    assert read(part(broker_leaving_out), replace(FAILING, verify=False)) == (list(range(100)), [])
    spoil(broker_leaving_out, 4, head)

    with pytest.raises(BadBatch, match=r"offset 40, .*the header's checksum"):
        read(part(broker_leaving_out), replace(FAILING, verify=False))


def test_what_retention_removed_fails_the_scan_or_is_left_out(broker_leaving_out: FakeBroker) -> None:
    broker_leaving_out.topics["orders"][0].min_offset = 30

    with pytest.raises(MessagesLost, match=r"queue 0, offset 20, .*; failOnDataLoss=false leaves them out$"):
        read(part(broker_leaving_out, 20), SKIPPING)
    assert read(part(broker_leaving_out, 20), replace(FAILING, skip_lost=True)) == (list(range(30, 100)), [(20, 30)])
    assert read(part(broker_leaving_out, 5, 25), replace(FAILING, skip_lost=True)) == ([], [(5, 25)])


def test_what_is_left_out_is_a_warning_of_the_worker(
    broker_leaving_out: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker_leaving_out.topics["orders"][0].min_offset = 30

    with caplog.at_level(logging.WARNING):
        list(rows_of(part(broker_leaving_out, 20), replace(FAILING, skip_lost=True)))

    assert [record.getMessage().split(": ret")[0] for record in caplog.records] == [
        "left out: topic orders, queue 0, offsets 20 to 30"
    ]


@pytest.mark.parametrize("queue_end", [0, 50])
def test_a_topic_that_was_made_again_and_is_shorter_is_told_as_such(
    broker_leaving_out: FakeBroker, queue_end: int
) -> None:
    broker_leaving_out.create("orders")
    broker_leaving_out.generation = 2
    if queue_end:
        broker_leaving_out.append("orders", 0, Rows([b""] * queue_end, 0))

    with pytest.raises(LogTruncated, match=r"offset 60, .*deleted and made again"):
        read(part(broker_leaving_out, 60), FAILING)


@pytest.mark.parametrize("tags", ["zz", "b"])
def test_a_topic_that_was_made_again_is_noticed_although_none_of_its_messages_is_wanted(
    broker_leaving_out: FakeBroker, tags: str
) -> None:
    broker_leaving_out.create("orders")
    broker_leaving_out.generation = 2
    broker_leaving_out.append("orders", 0, Rows([b""] * 200, 0, tags=["a"] * 200))

    with pytest.raises(LogTruncated, match=r"offset 0, .*deleted and made again"):
        read(part(broker_leaving_out), replace(FAILING, tags=tags))


@pytest.mark.parametrize("batches_a_pull", [1, 2, 512])
@pytest.mark.parametrize(("start", "end"), [(0, 100), (5, 95), (12, 31), (39, 41), (91, 100), (20, 21)])
@pytest.mark.parametrize("tags", ["a", "c", "a || c", "b||zz", "zz"])
def test_of_some_tags_exactly_the_messages_with_one_come(
    broker_leaving_out: FakeBroker, tags: str, start: int, end: int, batches_a_pull: int
) -> None:
    broker_leaving_out.max_pull_batches = batches_a_pull
    chosen = {tag.strip() for tag in tags.split("||")}

    found, left_out = read(part(broker_leaving_out, start, end), replace(FAILING, tags=tags))

    assert found == [i for i in range(start, end) if i % 10 and "abc"[i // 10 % 3] in chosen]
    assert left_out == []
    assert {payload[4] for op, payload in broker_leaving_out.requests if op is Op.PULL} == {tags}


def test_what_an_answer_passed_behind_its_last_batch_is_not_asked_for_again(broker_leaving_out: FakeBroker) -> None:
    broker_leaving_out.max_pull_batches = 1

    found, _ = read(part(broker_leaving_out), replace(FAILING, tags="a"))

    assert len(found) == 36
    assert [payload[3][0][2] for op, payload in broker_leaving_out.requests if op is Op.PULL] == [0, 30, 60, 90]
    assert [op for op, _ in broker_leaving_out.requests].count(Op.HELLO) == 1, "one connection is enough"


def test_a_queue_that_ends_before_the_range_fails_the_scan_for_some_tags_too(broker_leaving_out: FakeBroker) -> None:
    with pytest.raises(LogTruncated, match="the queue ends at 100; it went to 120"):
        read(part(broker_leaving_out, 0, 120), replace(FAILING, tags="a"))


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


def test_an_answer_that_names_another_place_to_go_on_is_not_believed(broker_leaving_out: FakeBroker) -> None:
    broker_leaving_out.max_pull_batches = 2
    broker_leaving_out.fail_next(Op.PULL, lambda answer: [answer[0]._replace(next_offset=60)])

    assert read(part(broker_leaving_out), FAILING) == (list(range(100)), [])


def test_an_error_of_the_broker_itself_is_never_left_out(broker_leaving_out: FakeBroker) -> None:
    refusal = ops.PullResult(0, 9999, 50, 0, 100, b"", "no")
    broker_leaving_out.fail_next(Op.PULL, lambda answer: [refusal])

    with pytest.raises(RmqError, match=r"no .the queue holds 0 to 100"):
        read(part(broker_leaving_out), replace(SKIPPING, skip_lost=True))
