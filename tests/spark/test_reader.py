"""The driver's side: what exists is asked once, and frozen."""

from __future__ import annotations

import pickle

import pytest
from pyspark import cloudpickle

from rmq.client.scan_plan import QueueRange
from rmq.spark.options import ReadOptions
from rmq.spark.reader import TopicReader
from rmq.wire.batch import Rows
from rmq.wire.errors import ConnectionLost, OffsetOutOfRange, QueueNotFound, TopicNotFound
from rmq.wire.ops import Op

from support.threaded_broker import STORE_ID, FakeBroker

pytestmark = pytest.mark.spark


@pytest.fixture
def broker(fake_broker: FakeBroker) -> FakeBroker:
    """Queues with 10, 0 and 5 messages."""
    fake_broker.create("orders", queues=3)
    fake_broker.append("orders", 0, Rows([b"x"] * 10, 0))
    fake_broker.append("orders", 2, Rows([b"y"] * 5, 0))
    return fake_broker


def reader(at: FakeBroker, /, **options: str) -> TopicReader:
    parsed = ReadOptions.parse({"broker": at.address, "topic": "orders", **options})
    return TopicReader(parsed, parsed.columns)


def planned(at: FakeBroker, /, **options: str) -> list[tuple[int, int, int]]:
    parts = [partition.value for partition in reader(at, **options).partitions()]
    return [(part.queue_id, part.start, part.end) for part in parts]


def test_each_queue_that_holds_messages_is_a_partition_that_knows_everything(broker: FakeBroker) -> None:
    first, second = reader(broker).partitions()

    assert first.value == QueueRange(broker.address, STORE_ID, "orders", 1, 0, 0, 10)
    assert second.value == QueueRange(broker.address, STORE_ID, "orders", 1, 2, 0, 5)


def test_one_connection_and_two_requests_make_the_plan(broker: FakeBroker) -> None:
    reader(broker).partitions()

    assert [op for op, _ in broker.requests] == [Op.HELLO, Op.ROUTE, Op.RANGES]


def test_reader_and_partitions_can_be_pickled(broker: FakeBroker) -> None:
    made = pickle.loads(cloudpickle.dumps(reader(broker)))  # as Spark does
    (first, _) = pickle.loads(pickle.dumps(made.partitions()))

    (batch,) = made.read(first)

    assert batch.num_rows == 10


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({"queues": "2"}, [(2, 0, 5)]),
        ({"queues": "1"}, []),
        ({"startOffset": "3", "endOffset": "7"}, [(0, 3, 7), (2, 3, 5)]),
        ({"endOffset": '{"0": 4}'}, [(0, 0, 4), (2, 0, 5)]),
        ({"maxRowsPerPartition": "5"}, [(0, 0, 5), (0, 5, 10), (2, 0, 5)]),
    ],
)
def test_options_choose_the_ranges(
    broker: FakeBroker, options: dict[str, str], ranges: list[tuple[int, int, int]]
) -> None:
    assert planned(broker, **options) == ranges


def test_an_empty_topic_has_no_partitions_and_the_one_that_spark_makes_up_has_no_rows(broker: FakeBroker) -> None:
    from pyspark.sql.datasource import InputPartition

    broker.create("empty")
    made = reader(broker, topic="empty")

    assert made.partitions() == []
    assert list(made.read(InputPartition(None))) == []


def test_a_missing_topic_is_told_with_those_that_exist(broker: FakeBroker) -> None:
    with pytest.raises(
        TopicNotFound, match=rf"topic order, broker {broker.address}: there is no such topic.*has orders"
    ):
        planned(broker, topic="order")


def test_a_broker_without_topics_says_so(fake_broker: FakeBroker) -> None:
    with pytest.raises(TopicNotFound, match="the broker has no topic at all"):
        planned(fake_broker)


@pytest.mark.parametrize("options", [{"queues": "0,7"}, {"startOffset": '{"7": 1}'}, {"endOffset": '{"7": 1}'}])
def test_a_queue_that_does_not_exist_is_named(broker: FakeBroker, options: dict[str, str]) -> None:
    with pytest.raises(QueueNotFound, match=r"there is no queue 7; the topic has the queues \[0, 1, 2\]"):
        planned(broker, **options)


def test_deleted_messages_that_were_asked_for_are_an_error(broker: FakeBroker) -> None:
    broker.topics["orders"][0].min_offset = 4

    with pytest.raises(OffsetOutOfRange, match=r"topic orders, .*queue 0: the messages from 2 to 4 are deleted"):
        planned(broker, startOffset="2")


def test_no_broker_is_told_with_the_topic(broker: FakeBroker) -> None:
    with pytest.raises(ConnectionLost, match=r"topic orders, broker 127\.0\.0\.1:1: no broker at 127\.0\.0\.1:1"):
        planned(broker, broker="127.0.0.1:1")
