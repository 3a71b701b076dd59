"""One DataFrame, used again and again: filters, unions, limits and views see the same fixed messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rmq.wire.batch.batch import Rows

from .reading import loaded, places, planned
from rigs.real_broker import RealBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

QUEUES, LENGTH = 3, 200
TAGS = ("created", "paid", "shipped", None)
EVERYTHING = [(queue_id, offset) for queue_id in range(QUEUES) for offset in range(LENGTH)]


@pytest.fixture(scope="module")
def topic(real_broker: RealBroker) -> str:
    """600 messages in three queues; queue and offset are also in the body."""
    real_broker.create("reused", queues=QUEUES)
    for queue_id in range(QUEUES):
        bodies = [b"%d/%d" % (queue_id, offset) for offset in range(LENGTH)]
        tags = [TAGS[offset % 4] for offset in range(LENGTH)]
        real_broker.append("reused", queue_id, Rows(bodies, 0, tags))
    return "reused"


@pytest.fixture
def frame(spark: SparkSession, real_broker: RealBroker, topic: str) -> DataFrame:
    return loaded(spark, real_broker.address, topic)


def test_two_filters_of_one_frame_do_not_meet(frame: DataFrame) -> None:
    first = frame.where("queue_id = 1")
    second = frame.where("queue_offset < 10 AND tag = 'paid'")

    assert places(first) == [(1, offset) for offset in range(LENGTH)]
    assert places(second) == [(queue_id, offset) for queue_id in range(QUEUES) for offset in (1, 5, 9)]
    assert places(first) == [(1, offset) for offset in range(LENGTH)]
    assert places(frame) == EVERYTHING


def test_a_union_of_two_filters_has_the_rows_of_both(frame: DataFrame) -> None:
    both = frame.where("queue_id = 0").union(frame.where("queue_id = 2"))
    once_and_twice = frame.where("queue_id = 0").union(frame)

    assert places(both) == [place for place in EVERYTHING if place[0] != 1]
    assert places(once_and_twice) == [place for place in EVERYTHING if place[0] == 0] + EVERYTHING


def test_a_frame_joined_with_itself_meets_every_message_once(frame: DataFrame) -> None:
    paid = frame.where("tag = 'paid'").select("queue_id", "queue_offset")

    assert frame.join(paid, ["queue_id", "queue_offset"]).count() == QUEUES * LENGTH // 4


def test_filters_push_nothing_down_even_where_spark_would_let_them(spark: SparkSession, frame: DataFrame) -> None:
    # In Spark 4.3 a filter that is pushed down stays on the frame, and whoever uses it next gets fewer rows.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert places(frame.where("queue_id = 1")) == [(1, offset) for offset in range(LENGTH)]
        assert places(frame) == EVERYTHING
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_limit_takes_the_first_rows_and_leaves_the_frame_whole(frame: DataFrame) -> None:
    assert places(frame.limit(5)) == EVERYTHING[:5]
    assert places(frame.limit(0)) == []
    assert [(row.queue_id, row.queue_offset) for row in frame.take(LENGTH + 1)] == EVERYTHING[: LENGTH + 1]
    first = frame.first()
    assert first is not None and bytes(first.body) == b"0/0"
    assert not frame.isEmpty()
    assert frame.count() == len(EVERYTHING)


def test_a_view_in_sql_and_a_cached_frame_are_the_same_messages(spark: SparkSession, frame: DataFrame) -> None:
    frame.createOrReplaceTempView("reused")
    counted = spark.sql("SELECT tag, count(*) AS n FROM reused GROUP BY tag ORDER BY tag").collect()
    cached = frame.cache()
    try:
        again = cached.groupBy("tag").count().orderBy("tag").collect()
    finally:
        cached.unpersist()

    assert [tuple(row) for row in counted] == [tuple(row) for row in again]
    assert [tuple(row) for row in counted] == [(None, 150), ("created", 150), ("paid", 150), ("shipped", 150)]


def test_two_runs_of_one_plan_are_equal_though_the_topic_grows(spark: SparkSession, real_broker: RealBroker) -> None:
    real_broker.create("growing", queues=2)
    for queue_id in range(2):
        real_broker.append("growing", queue_id, Rows([b"%d" % i for i in range(100)], 0))
    frame = loaded(spark, real_broker.address, "growing")

    assert planned(frame) == 2
    real_broker.append("growing", 0, Rows([b"later"] * 50, 0))
    first = frame.collect()
    real_broker.append("growing", 1, Rows([b"later"] * 50, 0))

    assert frame.collect() == first
    assert len(first) == 200
    assert loaded(spark, real_broker.address, "growing").count() == 300


def test_a_write_to_parquet_and_back_keeps_every_column(
    frame: DataFrame, spark: SparkSession, tmp_path: object
) -> None:
    frame.write.parquet(f"{tmp_path}/rows")

    back = spark.read.parquet(f"{tmp_path}/rows")

    assert back.schema == frame.schema
    assert back.orderBy("queue_id", "queue_offset").collect() == frame.collect()
