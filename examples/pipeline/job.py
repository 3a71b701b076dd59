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
from .facts import Facts, GroupFacts
from .orders import NEXT_STATES, STATES
from .report import BUCKETS, LONGER, DeadLetter, PaidTimes, Report

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EVENT: Final = "event_id string, order_id string, state string, at timestamp, amount_cents bigint, country string"
DELIVERY: Final = (
    "consumer_group string, queue_id int, queue_offset bigint, epoch bigint, number bigint, attempt int, ok boolean"
)
READABLE: Final = "order_id is not null and state is not null and at is not null"
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
    messages, readable, orders = count(archive)
    say(f"{messages} messages of {orders} orders are in {folder / 'parquet'}")
    events = archive.where(READABLE)
    hours, paid = orders_per_hour(events), paid_times(events)
    say("the orders are counted, the audit begins")
    queues, faults = audit_queues(archive, facts.held), audit_orders(events)
    deliveries = spark.read.schema(DELIVERY).json(str(folder / DELIVERIES))
    letters = dead_letters(spark, broker, facts)
    return Report(
        topic=facts.topic,
        messages=messages,
        unreadable=messages - readable,
        orders=orders,
        hours=hours,
        paid=paid,
        queues=queues,
        faults=faults,
        groups=audit_groups(groups, facts, archive=archive, deliveries=deliveries, letters=letters),
        dead_letters=letters,
    )


# From the topic to Parquet


def read_topic(spark: SparkSession, broker: str, facts: Facts) -> DataFrame:
    """The messages that the queues held when the broker was asked, so that both halves speak of the same."""
    starts = {queue_id: start for queue_id, (start, _) in facts.held.items()}
    ends = {queue_id: end for queue_id, (_, end) in facts.held.items()}
    return (
        spark.read.format("rmq")
        .options(broker=broker, topic=facts.topic)
        .option("startingOffsets", json.dumps({facts.topic: starts}))
        .option("endingOffsets", json.dumps({facts.topic: ends}))
        .load()
    )


def archived(spark: SparkSession, messages: DataFrame, folder: Path) -> DataFrame:
    """Write messages with what their bodies say, parted by day and state; returns what can be read there."""
    from pyspark.sql import functions as F

    events = messages.withColumn("event", F.from_json(F.col("body").cast("string"), EVENT)).select(
        "topic", "queue_id", "queue_offset", "message_id", "tag", "index_keys", "born_at", "stored_at", "event.*",
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
                property_("RMQ_DEAD_REASON").alias("reason"),
            )
            .orderBy("queue_id", "queue_offset")
        )
        found += [
            DeadLetter(group, row.event_id, Place(row.queue_id, row.queue_offset), row.reason) for row in rows.collect()
        ]
    return tuple(found)


# Figures


def count(archive: DataFrame) -> tuple[int, int, int]:
    """How many messages there are, how many of them can be read, and of how many orders those are."""
    from pyspark.sql import functions as F

    readable = F.expr(READABLE)
    row = archive.agg(
        F.count("*").alias("messages"),
        F.count_if(readable).alias("readable"),
        F.countDistinct(F.when(readable, F.col("order_id"))).alias("orders"),
    ).first()
    assert row is not None, "an aggregate of everything has a row"
    return row["messages"], row["readable"], row["orders"]


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


def audit_groups(
    groups: Mapping[str, str],
    facts: Facts,
    *,
    archive: DataFrame,
    deliveries: DataFrame,
    letters: Sequence[DeadLetter],
) -> tuple[GroupAudit, ...]:
    """What each group noted, against what the broker and the archive say; ``groups`` have the tags they want."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    start = Window.unboundedPreceding
    as_it_came = Window.partitionBy("consumer_group", "queue_id").orderBy("epoch", "number")
    of_message = Window.partitionBy("consumer_group", "queue_id", "queue_offset").orderBy("epoch", "number")
    place = F.struct("queue_id", "queue_offset")
    noted = (
        deliveries.withColumn("highest", F.max("queue_offset").over(as_it_came.rowsBetween(start, -1)))
        .withColumn("time", F.row_number().over(of_message))
        .groupBy("consumer_group")
        .agg(
            F.countDistinct(F.when(F.col("ok"), place)).alias("consumed"),
            F.count_if(F.col("ok")).alias("finished"),
            F.countDistinct(F.when(F.col("attempt") > 1, place)).alias("retried"),
            F.count_if((F.col("time") == 1) & (F.col("highest") > F.col("queue_offset"))).alias("disordered"),
        )
    )
    by_group = {row["consumer_group"]: row.asDict() for row in noted.collect()}
    nothing = {"consumed": 0, "finished": 0, "retried": 0, "disordered": 0}
    wanted = archive.agg(
        *(F.count_if(_passed(facts.groups[name], tags)).alias(name) for name, tags in groups.items())
    ).first()
    assert wanted is not None, "an aggregate of everything has a row"
    return tuple(
        GroupAudit(
            group=name,
            passed=facts.groups[name].passed,
            lag=facts.groups[name].lag,
            wanted=wanted[name],
            consumed=found["consumed"],
            repeated=found["finished"] - found["consumed"],
            retried=found["retried"],
            dead_lettered=sum(letter.group == name for letter in letters),
            disordered=found["disordered"],
        )
        for name in groups
        for found in [by_group.get(name, nothing)]
    )


def _passed(group: GroupFacts, tags: str) -> Column:
    """Whether a message has a tag that a group wants, and lies below what the group has committed."""
    from pyspark.sql import functions as F

    committed = F.create_map(*(F.lit(value) for pair in group.committed.items() for value in pair))
    below = F.col("queue_offset") < committed[F.col("queue_id")]
    return below if tags == "*" else below & F.col("tag").isin([tag.strip() for tag in tags.split("||")])
