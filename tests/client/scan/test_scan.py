"""A scan is planned with a few questions, and then frozen."""

from __future__ import annotations

import json
import re

import pytest

from rmq.client.scan.options import ScanOptions
from rmq.client.scan.plan import plan
from rmq.client.scan.ranges import QueueRange
from rmq.wire.batch.batch import Rows
from rmq.wire.errors import ConfigError, ConnectionLost, OffsetOutOfRange, QueueNotFound, TopicNotFound
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from support.threaded_broker import STORE_ID, STORED_AT, FakeBroker

AFTER = str(STORED_AT // 1000 + 1)


@pytest.fixture
def broker(fake_broker: FakeBroker) -> FakeBroker:
    """Queues with 10, 0 and 5 messages."""
    fake_broker.create("orders", queues=3)
    fake_broker.append("orders", 0, Rows([b"x"] * 10, 0))
    fake_broker.append("orders", 2, Rows([b"y"] * 5, 0))
    return fake_broker


def options(at: FakeBroker, /, **given: str) -> ScanOptions:
    chosen = {} if "topicPattern" in given else {"topic": "orders"}
    return ScanOptions.parse({"broker": at.address, **chosen, **given})


def planned(at: FakeBroker, /, **given: str) -> list[tuple[str, int, int, int]]:
    return [(part.topic, part.queue_id, part.start, part.end) for part in plan(options(at, **given))]


def asked(broker: FakeBroker) -> list[Op]:
    return [op for op, _ in broker.requests]


def test_each_queue_that_holds_messages_is_a_range_that_knows_everything(broker: FakeBroker) -> None:
    assert plan(options(broker)) == [
        QueueRange(broker.address, StoreIds(STORE_ID), "orders", 1, 0, 0, 10),
        QueueRange(broker.address, StoreIds(STORE_ID), "orders", 1, 2, 0, 5),
    ]


def test_one_connection_and_two_requests_make_the_plan(broker: FakeBroker) -> None:
    plan(options(broker))

    assert asked(broker) == [Op.HELLO, Op.ROUTE, Op.RANGES]
    assert broker.wait_for_connections(0)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"queues": "2"}, [(2, 0, 5)]),
        ({"queues": "1"}, []),
        (
            {"startingOffsets": '{"orders":{"0":3,"1":0,"2":-2}}', "endingOffsets": '{"orders":{"0":7,"1":0,"2":5}}'},
            [(0, 3, 7), (2, 0, 5)],
        ),
        ({"maxRecordsPerPartition": "5"}, [(0, 0, 5), (0, 5, 10), (2, 0, 5)]),
        ({"minPartitions": "3"}, [(0, 0, 5), (0, 5, 10), (2, 0, 5)]),
        ({"startingTimestamp": AFTER}, []),
        ({"startingTimestamp": "0"}, [(0, 0, 10), (2, 0, 5)]),
        ({"endingTimestamp": AFTER}, [(0, 0, 10), (2, 0, 5)]),
        ({"endingTimestamp": "0"}, []),
        ({"startingTimestamp": "0", "endingTimestamp": AFTER}, [(0, 0, 10), (2, 0, 5)]),
    ],
)
def test_options_choose_the_ranges(
    broker: FakeBroker, given: dict[str, str], found: list[tuple[int, int, int]]
) -> None:
    assert planned(broker, **given) == [("orders", *part) for part in found]


def test_times_are_asked_for_once_and_after_what_there_is(broker: FakeBroker) -> None:
    planned(broker, startingTimestamp="0", endingTimestamp=AFTER)

    assert asked(broker) == [Op.HELLO, Op.ROUTE, Op.RANGES, Op.OFFSETS_AT, Op.OFFSETS_AT]


def test_several_topics_are_read_in_the_order_they_are_named(broker: FakeBroker) -> None:
    broker.create("a", queues=2)
    broker.append("a", 1, Rows([b"z"], 0))

    assert planned(broker, topic="orders,a") == [("orders", 0, 0, 10), ("orders", 2, 0, 5), ("a", 1, 0, 1)]
    assert planned(broker, topic="a,orders", queues="1") == [("a", 1, 0, 1)]


def test_offsets_are_by_topic(broker: FakeBroker) -> None:
    broker.create("a")
    broker.append("a", 0, Rows([b"z"] * 4, 0))
    starts = json.dumps({"a": {"0": 3}, "orders": {"0": 9, "1": 0, "2": 5}})

    assert planned(broker, topic="a,orders", startingOffsets=starts) == [("a", 0, 3, 4), ("orders", 0, 9, 10)]


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("orders", ["orders"]),
        ("order", []),
        ("rders", []),
        ("orders.*", ["orders", "orders_eu"]),
        (".*", ["orders", "orders_eu"]),
        ("a|orders_eu", ["orders_eu"]),
        (".*%.*", ["%DLQ%billing"]),
    ],
)
def test_a_pattern_has_to_match_whole_names_and_finds_copies_only_when_it_names_them(
    broker: FakeBroker, pattern: str, topics: list[str]
) -> None:
    for topic in ("orders_eu", "%DLQ%billing"):
        broker.create(topic)
        broker.append(topic, 0, Rows([b"z"], 0))
    if not topics:
        with pytest.raises(TopicNotFound, match=r"no topic matches; there are %DLQ%billing, orders, orders_eu"):
            planned(broker, topicPattern=pattern)
        return

    found = planned(broker, topicPattern=pattern)

    assert sorted({topic for topic, *_ in found}) == topics


def test_a_pattern_sees_all_pages_of_topics(broker: FakeBroker) -> None:
    for i in range(5):
        broker.create(f"t{i}")
        broker.append(f"t{i}", 0, Rows([b"z"], 0))
    broker.topics_a_page = 2

    assert [topic for topic, *_ in planned(broker, topicPattern=r"t\d")] == [f"t{i}" for i in range(5)]


def test_many_queues_are_asked_for_in_several_requests(broker: FakeBroker) -> None:
    broker.create("wide", queues=ops.MAX_ENTRIES + 1)
    broker.append("wide", ops.MAX_ENTRIES, Rows([b"z"], 0))

    assert planned(broker, topic="wide") == [("wide", ops.MAX_ENTRIES, 0, 1)]
    assert asked(broker) == [Op.HELLO, Op.ROUTE, Op.RANGES, Op.RANGES]


def test_an_empty_topic_has_no_ranges(broker: FakeBroker) -> None:
    broker.create("empty", queues=2)

    assert plan(options(broker, topic="empty")) == []


def test_a_missing_topic_is_told_with_those_that_exist(broker: FakeBroker) -> None:
    with pytest.raises(TopicNotFound, match=rf"broker {broker.address}: there is no topic order; there are orders"):
        planned(broker, topic="order")


def test_a_broker_without_topics_says_so(fake_broker: FakeBroker) -> None:
    with pytest.raises(TopicNotFound, match="there is no topic at all"):
        planned(fake_broker)


def test_a_queue_that_does_not_exist_is_named(broker: FakeBroker) -> None:
    with pytest.raises(QueueNotFound, match="topic orders has no queue 7; the topic has the queues 0, 1, 2"):
        planned(broker, queues="0,7")


def test_missing_and_extra_queues_of_offsets_are_named(broker: FakeBroker) -> None:
    with pytest.raises(ConfigError, match=r"but 0, 1, 2 are read: 1, 2 missing and 7 too many"):
        planned(broker, startingOffsets='{"orders": {"0": 1, "7": 1}}')


def test_missing_and_extra_topics_of_offsets_are_named(broker: FakeBroker) -> None:
    with pytest.raises(ConfigError, match=r"names the topics other, but orders are read: orders missing and other too"):
        planned(broker, endingOffsets='{"other": {"0": 1}}')


def test_deleted_messages_that_were_asked_for_are_an_error(broker: FakeBroker) -> None:
    broker.topics["orders"][0].min_offset = 4
    starts = '{"orders": {"0": 2, "1": 0, "2": 0}}'

    with pytest.raises(OffsetOutOfRange, match=r"topic orders, queue 0: the messages from offset 2 to 4 are deleted"):
        planned(broker, startingOffsets=starts)
    assert planned(broker, startingOffsets=starts, failOnDataLoss="false")[0] == ("orders", 0, 2, 10)


def test_no_broker_is_told_with_the_topic(broker: FakeBroker) -> None:
    with pytest.raises(ConnectionLost, match=r"topic orders, broker 127\.0\.0\.1:1: no broker at 127\.0\.0\.1:1"):
        planned(broker, broker="127.0.0.1:1")
    with pytest.raises(ConnectionLost, match=rf"topics {re.escape('a.*')}, broker 127\.0\.0\.1:1: no broker"):
        planned(broker, broker="127.0.0.1:1", topicPattern="a.*")


def test_a_refusal_of_one_queue_is_told_with_it(broker: FakeBroker) -> None:
    def gone(answer: list[ops.Range]) -> list[ops.Range]:
        return [*answer[:2], ops.Range(TopicNotFound.code, text="the topic 'orders' does not exist")]

    broker.fail_next(Op.RANGES, gone)

    with pytest.raises(TopicNotFound, match="queue 2 of topic orders: the topic 'orders' does not exist"):
        planned(broker)
