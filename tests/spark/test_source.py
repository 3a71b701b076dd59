"""
The source as Spark's users see it, in a real session.

The schema of the source is that of any scan, in the words of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rmq.client.scan import options
from rmq.client.scan.arrow import ARROW_TYPES
from rmq.spark.source import COLUMNS, RmqDataSource, ddl
from rmq.wire.batch.batch import Rows
from rmq.wire.batch.compression import CODECS
from rmq.wire.errors import ConfigError
from rmq.wire.protocol.ops.core import Op

from rigs.faulty_broker import FakeBroker
from rigs.real_broker import RealBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

slow = pytest.mark.slow
BORN_AT = 1_750_000_000_123_456


def loaded(spark: SparkSession, broker: RealBroker | FakeBroker, topic: str, **options: str) -> DataFrame:
    return spark.read.format("rmq").options(broker=broker.address, topic=topic, **options).load()


def refused(action: Any) -> str:
    with pytest.raises(Exception) as caught:  # what Spark wraps errors in differs by where they happen
        action()
    return str(caught.value)


@pytest.mark.spark
def test_the_columns_are_those_that_spark_makes_of_the_schema() -> None:
    from pyspark.sql import types
    from pyspark.sql.pandas.types import to_arrow_schema

    text = types.StringType()
    kinds: dict[str, types.DataType] = {
        "string": text,
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "binary": types.BinaryType(),
        "timestamp": types.TimestampType(),
        "array<string>": types.ArrayType(text),
        "map<string,string>": types.MapType(text, text),
    }
    fields = [types.StructField(name, kinds[kind]) for name, kind in COLUMNS.items()]

    wanted = to_arrow_schema(types.StructType(fields), timezone="UTC")

    assert wanted.equals(pa.schema(list(ARROW_TYPES.items())))


@pytest.mark.spark
def test_a_schema_of_other_columns_is_refused_with_those_there_are() -> None:
    from pyspark.sql import types

    source = RmqDataSource({"broker": "h:1", "topic": "t"})

    for field in (
        types.StructField("queue_id", types.LongType()),
        types.StructField("offset", types.LongType()),
        types.StructField("queue_id", types.IntegerType(), nullable=False),
    ):
        with pytest.raises(ConfigError, match=f"has no column `{field.name} .*; it has topic string, queue_id int"):
            source.reader(types.StructType([field]))


@pytest.mark.spark
@pytest.mark.parametrize("name", ["columns", "COLUMNS"])
def test_a_schema_and_the_option_columns_may_not_contradict_each_other(name: str) -> None:
    from pyspark.sql import types

    source = RmqDataSource({"broker": "h:1", "topic": "t", name: "queue_id,tag"})
    queue_id, tag = types.StructField("queue_id", types.IntegerType()), types.StructField("tag", types.StringType())

    source.reader(types.StructType([queue_id, tag]))
    for fields in ([queue_id], [tag, queue_id]):
        with pytest.raises(ConfigError, match=r"names queue_id, tag, and the schema .*: leave one of them out"):
            source.reader(types.StructType(fields))


@pytest.mark.spark
@slow
def test_the_order_in_a_queue_is_kept_compressed_or_not(spark: SparkSession, real_broker: RealBroker) -> None:
    real_broker.create("ordered")
    for first in range(0, 40_000, 4000):
        codec = CODECS.by_name("zlib") if first % 8000 else None
        real_broker.append("ordered", 0, Rows([b"%d" % i for i in range(first, first + 4000)], 0), codec)

    parts = loaded(spark, real_broker, "ordered", maxRecordsPerPartition="20000").rdd.glom().collect()

    assert len(parts) > 1
    assert [int(row.body) for part in parts for row in part] == list(range(40_000))


@pytest.mark.spark
@slow
def test_a_limit_reads_no_further_than_it_needs(spark: SparkSession, fake_broker: FakeBroker) -> None:
    fake_broker.create("many")
    fake_broker.max_pull_batches = 4
    for _ in range(100):
        fake_broker.append("many", 0, Rows([b"x"] * 4096, 0))

    assert len(loaded(spark, fake_broker, "many").limit(5).collect()) == 5

    # All of it would be 25 pulls. How soon Spark stops, and what lies in buffers by then, is not ours to say; one pull
    # is under way while the last is converted.
    assert len(pulls(fake_broker)) < 13


@pytest.mark.spark
@slow
def test_a_users_schema_chooses_columns(spark: SparkSession, real_broker: RealBroker) -> None:
    real_broker.create("narrow")
    real_broker.append("narrow", 0, Rows([b"x"], 0, index_keys=[("k",)]))
    reader = spark.read.format("rmq").options(broker=real_broker.address, topic="narrow")

    assert [tuple(row) for row in reader.schema("index_keys array<string>, queue_id int").load().collect()] == [
        (["k"], 0)
    ]


@pytest.mark.spark
@slow
def test_a_view_in_sql_reads_the_topic(spark: SparkSession, real_broker: RealBroker) -> None:
    real_broker.create("viewed")
    real_broker.append("viewed", 0, Rows([b"x"] * 7, 0, tags=["a"] * 7))
    options = f"OPTIONS (broker '{real_broker.address}', topic 'viewed')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW viewed USING rmq {options}")

    assert spark.sql("SELECT count(*) FROM viewed WHERE tag = 'a'").first() == (7,)


@pytest.mark.spark
@slow
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topic": "t"}, 'the rmq source needs the option "broker": add .option("broker", "127.0.0.1:10911")'),
        ({"broker": "127.0.0.1:1"}, 'the rmq source needs the option "topic"'),
        ({"broker": "127.0.0.1:1", "topic": "t", "startingOffest": "1"}, 'did you mean "startingOffsets"?'),
        (
            {"broker": "127.0.0.1:1", "topic": "t", "endingOffsets": "now"},
            'the option "endingOffsets" is "latest" or offsets',
        ),
    ],
)
def test_a_mistake_in_an_option_is_told_at_load(spark: SparkSession, options: dict[str, str], sentence: str) -> None:
    assert sentence in refused(spark.read.format("rmq").options(**options).load)


def pulls(broker: FakeBroker) -> list[tuple[int, int]]:
    return [(payload[3][0][1], payload[3][0][2]) for op, payload in broker.requests if op is Op.PULL]


@pytest.mark.spark
@slow
def test_a_fault_that_stays_is_told_with_its_place(spark: SparkSession, fake_broker: FakeBroker) -> None:
    fake_broker.create("broken")
    fake_broker.append("broken", 0, Rows([b"x"] * 10, 0))
    del fake_broker.topics["broken"][0].batches[:]

    said = refused(loaded(spark, fake_broker, "broken").count)

    assert f"topic broken, queue 0, offset 0, broker {fake_broker.address}: the queue ends at 10" in said


def test_the_schema_is_the_one_that_users_rely_on() -> None:
    assert ddl(COLUMNS) == (
        "topic string, queue_id int, queue_offset bigint, message_id string, key string, tag string, "
        "index_keys array<string>, body binary, properties map<string,string>, born_at timestamp, "
        "stored_at timestamp, attempt int"
    )


def test_the_columns_are_those_of_any_scan() -> None:
    assert tuple(COLUMNS) == options.COLUMNS


def test_a_schema_has_the_columns_it_is_asked_for_in_their_order() -> None:
    assert ddl(("body", "queue_id")) == "body binary, queue_id int"
