"""The two sides of Spark's reader: what is planned on the driver is what a task reads, wherever that runs."""

from __future__ import annotations

import pickle

import pytest
from pyspark import cloudpickle

from rmq.client.scan.options import ScanOptions
from rmq.client.scan.plan import plan
from rmq.spark.batch import TopicReader
from rmq.wire.batch.batch import Rows
from rmq.wire.errors import TopicNotFound

from rigs.faulty_broker import FakeBroker

pytestmark = pytest.mark.spark


@pytest.fixture
def broker(fake_broker: FakeBroker) -> FakeBroker:
    """Queues with 10, 0 and 5 messages."""
    fake_broker.create("orders", queues=3)
    fake_broker.append("orders", 0, Rows([b"x"] * 10, 0))
    fake_broker.append("orders", 2, Rows([b"y"] * 5, 0))
    return fake_broker


def options(at: FakeBroker, /, **given: str) -> ScanOptions:
    return ScanOptions.parse({"broker": at.address, "topic": "orders", **given})


def test_partitions_are_the_ranges_of_the_plan(broker: FakeBroker) -> None:
    asked = options(broker)

    assert [partition.value for partition in TopicReader(asked).partitions()] == plan(asked)


def test_reader_and_partitions_can_be_pickled(broker: FakeBroker) -> None:
    made = pickle.loads(cloudpickle.dumps(TopicReader(options(broker))))  # as Spark does
    (first, _) = pickle.loads(pickle.dumps(made.partitions()))

    (batch,) = made.read(first)

    assert batch.num_rows == 10


def test_two_runs_of_one_plan_give_the_same_rows_though_the_topic_grew(broker: FakeBroker) -> None:
    made = TopicReader(options(broker))
    parts = made.partitions()
    first = [list(made.read(part)) for part in parts]

    broker.append("orders", 0, Rows([b"late"] * 3, 0))

    assert [list(made.read(part)) for part in parts] == first


def test_the_columns_asked_for_are_those_that_come(broker: FakeBroker) -> None:
    made = TopicReader(options(broker, columns="body,queue_id"))

    (batch,) = made.read(made.partitions()[1])

    assert batch.to_pydict() == {"body": [b"y"] * 5, "queue_id": [2] * 5}


def test_an_empty_topic_has_no_partitions_and_the_one_that_spark_makes_up_has_no_rows(broker: FakeBroker) -> None:
    from pyspark.sql.datasource import InputPartition

    broker.create("empty")
    made = TopicReader(options(broker, topic="empty"))

    assert made.partitions() == []
    assert list(made.read(InputPartition(None))) == []


def test_a_missing_topic_is_told(broker: FakeBroker) -> None:
    with pytest.raises(TopicNotFound, match="there is no topic order; there are orders"):
        TopicReader(options(broker, topic="order")).partitions()
