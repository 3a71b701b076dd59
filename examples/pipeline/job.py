"""
The Spark job: the topic becomes Parquet, and the Parquet becomes a report.

Everything that looks at all rows is done by Spark, without a function of Python in it: rows stay in Java. What comes
back is small: counts, and the few orders and offsets that are not as they should be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .audit import Fault, GroupAudit, Place, QueueAudit, audit_order, audit_queue, legal_paths
from .consume import DELIVERIES
from .facts import Facts
from .orders import NEXT_STATES, STATES
from .report import BUCKETS, LONGER, DeadLetter, PaidTimes, Report

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EVENT: Final = "event_id string, order_id string, state string, at timestamp, amount_cents bigint, country string"
DELIVERY: Final = (
    "consumer_group string, queue_id int, queue_offset bigint, epoch bigint, number bigint, attempt int, ok boolean"
)
PATHS: Final = legal_paths(NEXT_STATES, "created")


def make_report(
    spark: SparkSession,
    broker: str,
    facts: Facts,
    groups: Mapping[str, str],
    *,
    folder: Path,
    say: Callable[[str], None],
) -> Report:
    """Archive the topic as it is in ``facts`` and report on the archive; ``groups`` have the tags they want."""
    archive = archived(spark, read_topic(spark, broker, facts), folder / "parquet")
    messages = archive.count()
    say(f"{messages} messages are in {folder / 'parquet'}")
    deliveries = spark.read.schema(DELIVERY).json(str(folder / DELIVERIES))
    letters = dead_letters(spark, broker, facts)
    events = archive.where("order_id is not null and state is not null and at is not null")
    say("orders are counted")
    hours, paid = orders_per_hour(events), paid_times(events)
    say("the audit is done")
    return Report(
        topic=facts.topic,
        messages=messages,
        unreadable=messages - events.count(),
        orders=events.select("order_id").distinct().count(),
        hours=hours,
        paid=paid,
        queues=audit_queues(archive, facts.held),
        faults=audit_orders(events),
        groups=tuple(
            audit_group(name, tags, facts, archive=archive, deliveries=deliveries, letters=letters)
            for name, tags in groups.items()
        ),
        dead_letters=letters,
    )


# From the topic to Parquet


def read_topic(spark: SparkSession, broker: str, facts: Facts) -> DataFrame:
    """The messages up to where the queues ended when the broker was asked, so that both halves speak of the same."""
    ends = {queue_id: end for queue_id, (_, end) in facts.held.items()}
    options = {"broker": broker, "topic": facts.topic, "endOffset": json.dumps(ends)}
    return spark.read.format("rmq").options(**options).load()


def archived(spark: SparkSession, messages: DataFrame, folder: Path) -> DataFrame:
    """Write messages with what their bodies say, parted by day and state; returns what can be read there."""
    from pyspark.sql import functions as F

    events = messages.withColumn("event", F.from_json(F.col("body").cast("string"), EVENT)).select(
        "topic", "queue_id", "queue_offset", "message_id", "tag", "keys", "born_at", "stored_at", "event.*",
        F.to_date("event.at").alias("day"),
    )  # fmt: skip
    # Brought together first: else each task writes a small file into each folder.
    events.repartition("day", "state").write.mode("overwrite").partitionBy("day", "state").parquet(str(folder))
    # A column that names folders has its type guessed from them, and there may be none.
    return spark.read.schema(events.schema).parquet(str(folder))


def dead_letters(spark: SparkSession, broker: str, facts: Facts) -> tuple[DeadLetter, ...]:
    """The messages of the topic that groups gave up."""
    from pyspark.sql import functions as F

    found = []
    for group, known in facts.groups.items():
        if known.dead_letters is None:
            continue
        letters = spark.read.format("rmq").options(broker=broker, topic=known.dead_letters).load()
        property_ = F.col("properties").getItem
        rows = (
            letters.where(property_("RMQ_ORIGIN_TOPIC") == facts.topic)
            .select(
                F.coalesce(F.get_json_object(F.col("body").cast("string"), "$.event_id"), F.lit("?")).alias("event_id"),
                property_("RMQ_ORIGIN_QUEUE").cast("int").alias("queue_id"),
                property_("RMQ_ORIGIN_OFFSET").cast("bigint").alias("queue_offset"),
                property_("RMQ_ATTEMPTS").cast("int").alias("attempts"),
                property_("RMQ_DEAD_REASON").alias("reason"),
            )
            .orderBy("queue_id", "queue_offset")
        )
        found += [
            DeadLetter(group, row.event_id, Place(row.queue_id, row.queue_offset), row.attempts, row.reason)
            for row in rows.collect()
        ]
    return tuple(found)


# Figures


def orders_per_hour(events: DataFrame) -> tuple[tuple[datetime, tuple[int, ...]], ...]:
    """How many orders reached each state in each hour, from the first hour to the last without a gap."""
    from pyspark.sql import functions as F

    # As a number: a timestamp that is collected is told in the time zone of this process.
    hour = F.floor(F.unix_seconds("at") / 3600).alias("hour")
    rows = events.groupBy(hour, "state").agg(F.countDistinct("order_id").alias("orders")).collect()
    counts = {(row.hour, row.state): row.orders for row in rows}
    hours = [at for at, _ in counts]
    return tuple(
        (datetime.fromtimestamp(0, UTC) + timedelta(hours=at), tuple(counts.get((at, state), 0) for state in STATES))
        for at in (range(min(hours), max(hours) + 1) if hours else ())
    )


def paid_times(events: DataFrame) -> PaidTimes:
    """The time from created to paid; of an event that came twice the first counts."""
    from pyspark.sql import functions as F

    def when(state: str) -> Column:
        return F.min(F.when(F.col("state") == state, F.unix_micros("at")))

    took = events.groupBy("order_id").agg(((when("paid") - when("created")) / 1e6).alias("s")).where("s is not null")
    edges = [0.0, *(float(edge) for edge, _ in BUCKETS), float("inf")]
    s = F.col("s")
    bars = [F.count_if((s >= low) & (s < high)).alias(f"bar{at}") for at, (low, high) in enumerate(pairwise(edges))]
    row = took.agg(
        F.count(s).alias("orders"), F.percentile(s, F.array(F.lit(0.5), F.lit(0.95))).alias("part"),
        F.max(s).alias("longest"), *bars,
    ).first()  # fmt: skip
    assert row is not None, "an aggregate of everything has a row"
    median, p95 = row["part"] or (0.0, 0.0)
    names = [*(name for _, name in BUCKETS), LONGER]
    histogram = tuple((name, row[f"bar{at}"]) for at, name in enumerate(names))
    return PaidTimes(row["orders"], median, p95, row["longest"] or 0.0, histogram)


# The audit


def audit_queues(archive: DataFrame, held: Mapping[int, tuple[int, int]]) -> tuple[QueueAudit, ...]:
    """The offsets and events of each queue."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by_offset = Window.partitionBy("queue_id").orderBy("queue_offset")
    neighbours = archive.select(
        "queue_id", F.lag("queue_offset").over(by_offset).alias("before"), F.col("queue_offset").alias("after")
    )
    steps: dict[int, list[tuple[int | None, int | None]]] = {queue_id: [] for queue_id in held}
    for row in neighbours.where("before is null or after != before + 1").collect():
        steps[row.queue_id].append((row.before, row.after))
    totals = archive.groupBy("queue_id").agg(
        F.count("*").alias("messages"),
        F.max("queue_offset").alias("last"),
        (F.count("event_id") - F.countDistinct("event_id")).alias("again"),
    )
    found = dict.fromkeys(held, (0, 0))
    for row in totals.collect():
        steps[row.queue_id].append((row.last, None))
        found[row.queue_id] = (row.messages, row.again)
    return tuple(
        audit_queue(queue_id, held[queue_id], found[queue_id][0], steps[queue_id], found[queue_id][1])
        for queue_id in sorted(held)
    )


def audit_orders(events: DataFrame) -> tuple[Fault, ...]:
    """The orders that did not go through their states as they should, judged one by one."""
    from pyspark.sql import functions as F

    came = events.groupBy("order_id").agg(
        F.array_sort(F.collect_list(F.struct("queue_id", "queue_offset", "state"))).alias("events")
    )
    plain = F.concat_ws(" ", "events.state").isin([" ".join(path) for path in PATHS])
    odd = came.where(~plain | (F.size(F.array_distinct("events.queue_id")) > 1)).orderBy("order_id")
    return tuple(
        fault
        for row in odd.collect()
        for fault in audit_order(
            row.order_id, [(event.state, Place(event.queue_id, event.queue_offset)) for event in row.events], PATHS
        )
    )


def audit_group(
    name: str, tags: str, facts: Facts, *, archive: DataFrame, deliveries: DataFrame, letters: Sequence[DeadLetter]
) -> GroupAudit:
    """What a group noted, against what the broker and the archive say."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    known = facts.groups[name]
    committed = F.create_map(*(F.lit(value) for pair in known.committed.items() for value in pair))
    passed = archive.where(F.col("queue_offset") < committed.getItem(F.col("queue_id")))
    if tags != "*":
        passed = passed.where(F.col("tag").isin([tag.strip() for tag in tags.split("||")]))
    as_it_came = Window.partitionBy("queue_id").orderBy("epoch", "number")
    of_message = Window.partitionBy("queue_id", "queue_offset").orderBy("epoch", "number")
    place = F.struct("queue_id", "queue_offset")
    row = (
        deliveries.where(F.col("consumer_group") == name)
        .withColumn("highest", F.max("queue_offset").over(as_it_came.rowsBetween(Window.unboundedPreceding, -1)))
        .withColumn("time", F.row_number().over(of_message))
        .agg(
            F.countDistinct(F.when(F.col("ok"), place)).alias("consumed"),
            F.count_if(F.col("ok")).alias("finished"),
            F.countDistinct(F.when(F.col("attempt") > 1, place)).alias("retried"),
            F.count_if((F.col("time") == 1) & (F.col("highest") > F.col("queue_offset"))).alias("disordered"),
        )
        .first()
    )
    assert row is not None, "an aggregate of everything has a row"
    return GroupAudit(
        group=name,
        passed=known.passed,
        lag=known.lag,
        wanted=passed.count(),
        consumed=row.consumed,
        repeated=row.finished - row.consumed,
        retried=row.retried,
        dead_lettered=sum(letter.group == name for letter in letters),
        disordered=row.disordered,
    )
