"""``examples/spark_incremental.py``, quoted in docs/spark.md: nothing is missed, and nothing is archived twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq.client.blocking import BlockingConnection
from rmq.wire import topic_ops
from rmq.wire.batch import Rows
from rmq.wire.ops import Op
from spark_incremental import archive_batch

from support.real_broker import RealBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def send(broker: RealBroker, queue_id: int, *bodies: bytes) -> None:
    broker.append("increments", queue_id, Rows(list(bodies), [1_750_000_000_000_000] * len(bodies)))


def archived(spark: SparkSession, folder: Path) -> list[str]:
    rows = spark.read.parquet(str(folder)).select("batch", "queue_id", "queue_offset", "body").collect()
    return sorted(f"{row.batch}: {row.queue_id}/{row.queue_offset} {bytes(row.body).decode()}" for row in rows)


def test_each_run_archives_what_came_since_the_last_one_also_after_a_crash_and_with_a_new_queue(
    spark: SparkSession, real_broker: RealBroker, tmp_path: Path
) -> None:
    def run() -> int:
        return archive_batch(spark, real_broker.address, "increments", tmp_path)

    real_broker.create("increments", 2)
    send(real_broker, 0, b"a", b"b")
    assert run() == 2
    assert run() == 0
    before = (tmp_path / "progress.json").read_text()
    send(real_broker, 0, b"c")
    send(real_broker, 1, b"d")
    assert run() == 2

    (tmp_path / "progress.json").write_text(before)  # as if it had ended before the progress was saved
    with BlockingConnection(real_broker.address) as connection:
        connection.request(Op.GROW_TOPIC, topic_ops.GrowTopic("increments", 3))
    send(real_broker, 2, b"e")
    assert run() == 3

    assert json.loads((tmp_path / "progress.json").read_text()) == {"batch": 3, "offsets": {"0": 3, "1": 1, "2": 1}}
    assert archived(spark, tmp_path) == ["0: 0/0 a", "0: 0/1 b", "2: 0/2 c", "2: 1/0 d", "2: 2/0 e"]
