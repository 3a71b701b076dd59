"""The shortest ways to read a topic with Spark in a test, and to see why it was refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def loaded(spark: SparkSession, address: str, topic: str, **options: object) -> DataFrame:
    """What a user gets of ``load()``."""
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("rmq").options(broker=address, topic=topic, **given).load()


def planned(frame: DataFrame) -> int:
    """Freeze the ranges of a frame without reading any; how many partitions there are."""
    return frame.rdd.getNumPartitions()


def places(frame: DataFrame) -> list[tuple[int, int]]:
    """Queue and offset of every row, as Spark gives them."""
    return [(row[0], row[1]) for row in frame.select("queue_id", "queue_offset").collect()]


def bodies(frame: DataFrame) -> list[bytes]:
    """The bodies by queue and offset."""
    return [bytes(row.body) for row in frame.orderBy("topic", "queue_id", "queue_offset").collect()]


def refused(action: Callable[[], Any]) -> str:
    """What Spark says of an action that fails; what it wraps errors in differs by where they happen."""
    with pytest.raises(Exception) as caught:
        action()
    return str(caught.value)
