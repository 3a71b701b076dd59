"""Every option of the source, in a real session against a real broker."""

from __future__ import annotations

import json
import socket
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq.wire.batch.batch import Rows

from .reading import bodies, loaded, places, planned, refused
from rigs.cutting_proxy import CuttingProxy
from rigs.real_broker import RealBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LENGTH = 30
TAGS = ("created", "paid", None)


@pytest.fixture(scope="module")
def broker(real_broker: RealBroker) -> RealBroker:
    """Topics opt-a (two queues) and opt-b (one), of 30 messages a queue in three batches."""
    for topic, queues in (("opt-a", 2), ("opt-b", 1)):
        real_broker.create(topic, queues)
        for queue_id in range(queues):
            for first in range(0, LENGTH, 10):
                numbers = range(first, first + 10)
                rows = Rows([b"%d" % i for i in numbers], 0, [TAGS[i % 3] for i in numbers])
                real_broker.append(topic, queue_id, rows)
    return real_broker


def read(spark: SparkSession, broker: RealBroker, **options: object) -> DataFrame:
    """The topic opt-a."""
    return loaded(spark, broker.address, "opt-a", **options)


def topics(frame: DataFrame) -> list[tuple[str, int]]:
    return [(row[0], row[1]) for row in frame.groupBy("topic").count().orderBy("topic").collect()]


def test_topic_names_several(spark: SparkSession, broker: RealBroker) -> None:
    assert topics(loaded(spark, broker.address, "opt-b, opt-a")) == [("opt-a", 2 * LENGTH), ("opt-b", LENGTH)]


def test_topic_pattern_names_those_that_match_as_a_whole(spark: SparkSession, broker: RealBroker) -> None:
    reader = spark.read.format("rmq").option("broker", broker.address)

    assert topics(reader.option("topicPattern", "opt-.").load()) == [("opt-a", 2 * LENGTH), ("opt-b", LENGTH)]
    assert "opt-" in refused(reader.option("topicPattern", "opt-").load().count)


def test_starting_and_ending_offsets_are_exact_per_queue(spark: SparkSession, broker: RealBroker) -> None:
    starting = json.dumps({"opt-a": {"0": 12, "1": "earliest"}})
    ending = json.dumps({"opt-a": {"0": 15, "1": 2}})

    frame = read(spark, broker, startingOffsets=starting, endingOffsets=ending)

    assert places(frame) == [(0, 12), (0, 13), (0, 14), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffsets": "latest"}, 'the option "startingOffsets" cannot be "latest"'),
        ({"endingOffset": "latest"}, 'did you mean "endingOffsets"?'),
        ({"startOffset": "3"}, 'it is "startingOffsets" now'),
        ({"path": "/tmp"}, 'takes the option "broker" or "path", not both'),
        ({"columns": "body,size"}, "the option \"columns\" names 'size'"),
        ({"timeout": "soon"}, 'the option "timeout" is a number of seconds'),
    ],
)
def test_a_mistake_is_told_at_load(
    spark: SparkSession, broker: RealBroker, options: dict[str, str], sentence: str
) -> None:
    assert sentence in refused(lambda: read(spark, broker, **options))


def test_offsets_name_every_queue_and_no_other(spark: SparkSession, broker: RealBroker) -> None:
    few = refused(read(spark, broker, startingOffsets=json.dumps({"opt-a": {"0": 1}})).count)
    many = refused(read(spark, broker, endingOffsets=json.dumps({"opt-a": {"0": 1, "1": 1, "7": 1}})).count)

    assert "startingOffsets" in few and "1" in few
    assert "endingOffsets" in many and "7" in many


def test_timestamps_choose_by_the_time_of_storing(spark: SparkSession, broker: RealBroker) -> None:
    stored = [row.stored_at.astimezone(UTC) for row in read(spark, broker, queues="0").collect()]
    starting, ending = stored[10].isoformat(), stored[20].isoformat()

    frame = read(spark, broker, startingTimestamp=starting, endingTimestamp=ending, queues="0")

    assert places(frame) == [(0, offset) for offset in range(10, 20)]
    assert read(spark, broker, endingTimestamp="2001-01-01T00:00:00Z").count() == 0


def test_queues_leave_the_others_out(spark: SparkSession, broker: RealBroker) -> None:
    assert {queue_id for queue_id, _ in places(read(spark, broker, queues="1"))} == {1}
    assert "9" in refused(read(spark, broker, queues="0,9").count)


def test_tags_are_filtered_exactly(spark: SparkSession, broker: RealBroker) -> None:
    frame = read(spark, broker, tags="paid || shipped")

    assert places(frame) == [(queue_id, offset) for queue_id in range(2) for offset in range(1, LENGTH, 3)]
    assert read(spark, broker, tags="shipped").collect() == []


def test_partitions_are_as_many_and_as_long_as_asked(spark: SparkSession, broker: RealBroker) -> None:
    many = read(spark, broker, minPartitions=8)
    short = read(spark, broker, maxRecordsPerPartition=7)

    assert planned(read(spark, broker)) == 2
    assert planned(many) >= 8
    assert max(len(part) for part in short.rdd.glom().collect()) <= 7
    assert places(many) == places(short) == [(queue_id, offset) for queue_id in range(2) for offset in range(LENGTH)]


def test_columns_are_those_named_in_their_order(spark: SparkSession, broker: RealBroker) -> None:
    frame = read(spark, broker, columns="queue_offset,tag", queues="0")

    assert frame.columns == ["queue_offset", "tag"]
    assert [tuple(row) for row in frame.take(4)] == [(0, "created"), (1, "paid"), (2, None), (3, "created")]


def test_timeout_bounds_the_silence_of_a_broker(spark: SparkSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        said = refused(loaded(spark, address, "t", timeout=0.5).count)

    assert f"the broker at {address} did not answer HELLO within 0.5 s" in said


def test_verify_finds_a_byte_that_changed_on_the_way(spark: SparkSession, real_broker: RealBroker) -> None:
    real_broker.create("verified")
    real_broker.append("verified", 0, Rows([b"as it was sent"], 0))

    with CuttingProxy(real_broker.address, change=lambda piece: piece.replace(b"as it was", b"as it is?")) as proxy:
        said = refused(loaded(spark, proxy.address, "verified").count)
        unverified = bodies(loaded(spark, proxy.address, "verified", verify="false"))

    assert f"topic verified, queue 0, offset 0, broker {proxy.address}" in said
    assert unverified == [b"as it is? sent"]
    assert bodies(loaded(spark, real_broker.address, "verified")) == [b"as it was sent"]


def test_a_stopped_broker_is_read_by_path_and_its_damage_fails_or_is_skipped(
    spark: SparkSession, tmp_path: Path
) -> None:
    def by_path(**options: str) -> DataFrame:
        return spark.read.format("rmq").options(path=str(tmp_path), topic="kept", **options).load()

    with RealBroker(tmp_path) as broker:
        broker.create("kept", queues=2)
        for queue_id in range(2):
            for i in range(5):
                broker.append("kept", queue_id, Rows([b"mark-%d-%d" % (queue_id, i), b"second"], 0, ["a", "b"]))
        online = loaded(spark, broker.address, "kept").collect()
        assert str(tmp_path) in refused(by_path().count)  # it is in use

    assert by_path().collect() == online
    assert len(online) == 20

    flip(tmp_path, b"mark-1-3")
    left = [(queue_id, offset) for queue_id in range(2) for offset in range(10) if (queue_id, offset // 2) != (1, 3)]
    assert "topic kept, queue 1, offset 6" in refused(by_path().count)
    assert places(by_path(onDamage="skip")) == left
    with RealBroker(tmp_path) as broker:
        damaged = loaded(spark, broker.address, "kept")
        assert f"topic kept, queue 1, offset 6, broker {broker.address}" in refused(damaged.count)
        assert places(loaded(spark, broker.address, "kept", onDamage="skip")) == left


def flip(folder: Path, body: bytes) -> None:
    """One bit of a stored message rots."""
    for path in sorted((folder / "commitlog").iterdir()):
        data = bytearray(path.read_bytes())
        at = data.find(body)
        if at >= 0:
            data[at] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError(f"{body!r} is not in the log")
