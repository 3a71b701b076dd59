"""What a DataFrame holds is what was sent and what consumers see: a real session, a real broker, every column."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from rmq.client import Message, Producer
from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus
from rmq.wire.batch.batch import Rows
from rmq.wire.batch.compression import CODECS
from rmq.wire.model import StoredMessage

from .reading import bodies, loaded, places
from rigs.real_broker import RealBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_10000 = 253_402_300_800_000_000
CODEC_NAMES = (None, "zlib", "lz4", "zstd")
TAGS = (None, "paid", "größe", "注文", "x" * 255)


def rows_by_place(frame: DataFrame) -> list[Row]:
    return frame.orderBy("queue_id", "queue_offset").collect()


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def some_rows(chance: random.Random, count: int) -> Rows:
    """A batch in which every column is used somewhere and left out elsewhere."""
    return Rows(
        [chance.randbytes(chance.choice((0, 1, 7, 100, 3000))) for _ in range(count)],
        [chance.choice((0, 1, 1_750_000_000_123_456, chance.randrange(4 * 10**15))) for _ in range(count)],
        [chance.choice(TAGS) for _ in range(count)] if chance.random() < 0.8 else None,
        [tuple(f"k{chance.randrange(9)}é" for _ in range(chance.randrange(4))) for _ in range(count)],
        [chance.choice((None, "order-1")) for _ in range(count)],
        [{f"p{i}": chance.choice(("", "ü", "v" * 300)) for i in range(chance.randrange(4))} for _ in range(count)],
        [chance.randrange(3) for _ in range(count)],
    )


def test_every_column_is_as_sent_in_every_codec_and_in_the_order_of_its_queue(
    spark: SparkSession, real_broker: RealBroker
) -> None:
    chance = random.Random(5)
    real_broker.create("columns", queues=4)
    sent: list[tuple[Any, ...]] = []
    for queue_id, codec in enumerate(CODEC_NAMES):
        offset = 0
        for count in (1, 300, 64, 1, 700):
            rows = some_rows(chance, count)
            real_broker.append("columns", queue_id, rows, codec and CODECS.by_name(codec))
            assert not isinstance(rows.born_at, int) and rows.index_keys is not None and rows.properties is not None
            assert rows.attempts is not None
            for i in range(count):
                tag = rows.tags[i] if rows.tags else None
                about = (
                    tag,
                    tuple(rows.index_keys[i]),
                    dict(rows.properties[i]),
                    at(rows.born_at[i]),
                    1 + rows.attempts[i],
                )
                sent.append((queue_id, offset + i, rows.bodies[i], *about))
            offset += count

    # As Spark gives them: partitions in the order of queues, and rows in that of offsets, with nothing sorted here.
    frame = loaded(spark, real_broker.address, "columns")
    got = [
        (
            *(row.queue_id, row.queue_offset, bytes(row.body)),
            *(row.tag, tuple(row["index_keys"]), row.properties, utc(row.born_at), row.attempt),
        )
        for row in frame.collect()
    ]

    assert got == sent
    assert {row.topic for row in frame.select("topic").distinct().collect()} == {"columns"}


def utc(time: datetime) -> datetime:
    return time.astimezone(UTC)


def test_a_data_frame_and_a_consumer_see_the_same_messages(spark: SparkSession, real_broker: RealBroker) -> None:
    real_broker.create("both", queues=3)
    consumed = asyncio.run(_sent_and_consumed(real_broker.address))

    rows = rows_by_place(loaded(spark, real_broker.address, "both"))

    assert len(rows) == 120
    for row, message in zip(rows, consumed, strict=True):
        assert row.key == message.key
        assert (row.queue_id, row.queue_offset, row.message_id) == (
            message.queue_id, message.queue_offset, message.message_id,
        )  # fmt: skip
        assert (bytes(row.body), row.tag, tuple(row["index_keys"])) == (message.body, message.tag, message.index_keys)
        assert row.properties == dict(message.properties)
        assert (utc(row.born_at), utc(row.stored_at)) == (message.born_at, message.stored_at)
        assert row.attempt == message.attempt == 1


async def _sent_and_consumed(address: str) -> list[StoredMessage]:
    async with Producer(address, compression="zlib") as producer:
        for i in range(120):
            message = Message("both", b"%d" % i, tag=f"t{i % 3}", index_keys=(f"k{i}",), properties={"i": str(i)})
            await producer.send(message, key=f"order-{i % 7}")
    found: list[StoredMessage] = []
    everything = asyncio.Event()

    async def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        found.extend(messages)
        if len(found) == 120:
            everything.set()
        return ConsumeStatus.SUCCESS

    async with Consumer(address, topics={"both": "*"}, group="other", listener=listener):
        await asyncio.wait_for(everything.wait(), 30)
    return sorted(found, key=lambda message: (message.queue_id, message.queue_offset))


def test_bodies_of_no_bytes_and_of_four_mebibytes(spark: SparkSession, real_broker: RealBroker) -> None:
    large = random.Random(1).randbytes(4 << 20)
    sent = [b"", large, b"", b"x", bytes(4 << 20), b""]
    real_broker.create("sizes")
    for i, body in enumerate(sent):
        real_broker.append("sizes", 0, Rows([body], 0), CODECS.by_name("zlib") if i == 4 else None)

    assert bodies(loaded(spark, real_broker.address, "sizes")) == sent


def test_the_earliest_and_the_latest_time_that_can_be_stored(spark: SparkSession, real_broker: RealBroker) -> None:
    times = [0, 1, 999_999, YEAR_10000 - 1]
    real_broker.create("times")
    real_broker.append("times", 0, Rows([b""] * 4, times))

    # As numbers: Python's own conversion by Spark goes through floats and time zones.
    frame = loaded(spark, real_broker.address, "times").selectExpr("unix_micros(born_at)", "born_at <= stored_at")

    assert [tuple(row) for row in frame.collect()] == [(time, time < YEAR_10000 - 1) for time in times]


def test_an_empty_topic_gives_an_empty_frame_with_all_columns(spark: SparkSession, real_broker: RealBroker) -> None:
    real_broker.create("nothing", queues=3)

    frame = loaded(spark, real_broker.address, "nothing")

    assert (frame.count(), frame.collect(), len(frame.columns)) == (0, [], 12)
    assert frame.groupBy("tag").count().collect() == []


def test_queues_without_messages_beside_others_are_no_trouble(spark: SparkSession, real_broker: RealBroker) -> None:
    real_broker.create("sparse", queues=5)
    real_broker.append("sparse", 3, Rows([b"a", b"b"], 0))

    assert places(loaded(spark, real_broker.address, "sparse")) == [(3, 0), (3, 1)]


def test_the_dead_letters_of_a_group_can_be_read_and_joined_with_their_origin(
    spark: SparkSession, real_broker: RealBroker
) -> None:
    real_broker.create("orders", queues=2)
    asyncio.run(_consumed_with_poison(real_broker.address))

    dead = loaded(spark, real_broker.address, "%DLQ%billing")
    orders = loaded(spark, real_broker.address, "orders")
    told = dead.selectExpr(
        "index_keys AS dead_keys", "body AS dead_body",
        "cast(properties['RMQ_ORIGIN_QUEUE'] AS int) AS queue_id",
        "cast(properties['RMQ_ORIGIN_OFFSET'] AS bigint) AS queue_offset",
        "properties['RMQ_GROUP'] AS group", "properties['RMQ_ORIGIN_TOPIC'] AS origin",
        "properties['RMQ_DEAD_REASON'] AS reason",
    )  # fmt: skip
    joined = told.join(orders, ["queue_id", "queue_offset"]).orderBy("queue_id", "queue_offset").collect()

    assert [(bytes(row.dead_body), bytes(row.body)) for row in joined] == [(b"bad-3", b"bad-3"), (b"bad-8", b"bad-8")]
    assert [(row.dead_keys, row["index_keys"]) for row in joined] == [(["k3"], ["k3"]), (["k8"], ["k8"])]
    assert {(row.group, row.origin, row.reason[:17]) for row in joined} == {("billing", "orders", "delivery 2 failed")}


async def _consumed_with_poison(address: str) -> None:
    async with Producer(address) as producer:
        for i in range(10):
            body = b"bad-%d" % i if i in (3, 8) else b"good"
            await producer.send(Message("orders", body, index_keys=(f"k{i}",)), queue_id=int(i > 5))
    done: set[str] = set()
    everything = asyncio.Event()

    async def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        if any(message.body.startswith(b"bad") for message in messages):
            return ConsumeStatus.SUSPEND
        done.update(key for message in messages for key in message.index_keys)
        if len(done) == 8:
            everything.set()
        return ConsumeStatus.SUCCESS

    settings: dict[str, Any] = {"max_attempts": 2, "batch": 1, "suspend_s": 0.01}
    async with Consumer(address, topics={"orders": "*"}, group="billing", listener=listener, **settings):
        await asyncio.wait_for(everything.wait(), 30)
