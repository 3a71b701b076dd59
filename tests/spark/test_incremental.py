"""``examples/spark_incremental.py``, quoted in docs/spark.md: nothing is missed, and nothing is archived twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq.broker.offline.backup import restore
from rmq.engine.native.blocking import BlockingConnection
from rmq.spark import one_line
from rmq.wire.batch.batch import Rows
from rmq.wire.protocol.ops import topics
from rmq.wire.protocol.ops.core import Op
from spark_incremental import archive_batch

from rigs.real_broker import RealBroker

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
        connection.request(Op.GROW_TOPIC, topics.GrowTopic("increments", 3))
    send(real_broker, 2, b"e")
    assert run() == 3

    saved = json.loads((tmp_path / "progress.json").read_text())
    assert (saved["batch"], saved["offsets"]) == (3, {"0": 3, "1": 1, "2": 1})
    assert saved["@history"].keys() == {"store", "epochs"}
    assert archived(spark, tmp_path) == ["0: 0/0 a", "0: 0/1 b", "2: 0/2 c", "2: 1/0 d", "2: 2/0 e"]


def test_after_a_restore_the_archive_stops_with_one_line_until_it_is_accepted_and_then_misses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    live, data, folder = tmp_path / "live", tmp_path / "restored", tmp_path / "archive"
    folder.mkdir()

    def run(broker: RealBroker) -> int:
        return archive_batch(spark, broker.address, "increments", folder)

    with RealBroker(live) as broker:
        broker.create("increments", 1)
        send(broker, 0, b"a", b"b")
    backup = shutil.copytree(live, tmp_path / "backup")
    with RealBroker(live) as broker:
        send(broker, 0, b"c")
        assert run(broker) == 3
    restore(backup, data)

    with RealBroker(data) as broker:
        send(broker, 0, b"C", b"D")
        with pytest.raises(Exception) as caught:
            run(broker)
        assert one_line(caught.value) == (
            f"broker {broker.address}: this store is a copy: increments/0 is what the reader has read up to offset 2, "
            "not 3; `rmq-admin broker accept-history` lets readers continue at 2"
        )
        with BlockingConnection(broker.address) as connection:
            connection.request(Op.ACCEPT_HISTORY, ())
        assert run(broker) == 2
        assert run(broker) == 0
    assert archived(spark, folder) == ["0: 0/0 a", "0: 0/1 b", "0: 0/2 c", "1: 0/2 C", "1: 0/3 D"]
