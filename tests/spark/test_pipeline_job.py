"""``examples/pipeline/job.py`` on a real session: exact numbers on seeded orders, and every planted fault by name."""

from __future__ import annotations

import json
import statistics
import zlib
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pipeline import job
from pipeline.audit import Fault, GroupAudit, Place, QueueAudit
from pipeline.facts import Facts, GroupFacts
from pipeline.orders import STATES, Planted, two_days, with_faults
from pipeline.report import DeadLetter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MESSAGE = (
    "topic string, queue_id int, queue_offset bigint, message_id string, tag string, index_keys array<string>, "
    "body binary, properties map<string,string>, born_at timestamp, stored_at timestamp, attempt int"
)
NOW = datetime(2026, 11, 16, tzinfo=UTC)
QUEUES = 4


def message(queue_id: int, queue_offset: int, body: bytes, tag: str | None = None) -> tuple[Any, ...]:
    return "orders", queue_id, queue_offset, f"{queue_id}-{queue_offset}", tag, [], body, [], NOW, NOW, 1


def frame(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    """Messages as the source gives them; by way of Arrow, which needs no worker."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = to_arrow_schema(StructType.fromDDL(MESSAGE), timezone="UTC")
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    table = pa.table(
        [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)], schema
    )
    return spark.createDataFrame(table)


@dataclass(frozen=True)
class Shop:
    """Seeded orders with faults, archived, and where each event lies."""

    archive: DataFrame
    planted: Planted
    places: dict[str, list[Place]]
    ends: dict[int, int]


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    sent, planted = with_faults(two_days(300, 7))
    ends: Counter[int] = Counter()
    places: dict[str, list[Place]] = {}
    rows = []
    for event in sent:
        queue_id = zlib.crc32(event.order_id.encode()) % QUEUES
        places.setdefault(event.event_id, []).append(Place(queue_id, ends[queue_id]))
        rows.append(message(queue_id, ends[queue_id], event.body(), event.state))
        ends[queue_id] += 1
    folder = tmp_path_factory.mktemp("archive") / "parquet"
    return Shop(job.archived(spark, frame(spark, rows), folder), planted, places, dict(ends))


def test_figures_are_those_that_a_plain_count_of_the_events_gives(shop: Shop) -> None:
    events = two_days(300, 7)
    reached = {event.event_id: event.at for event in events}
    times = [
        (at - reached[f"{event_id.split('/')[0]}/created"]).total_seconds()
        for event_id, at in reached.items()
        if event_id.endswith("/paid")
    ]
    by_hour = Counter((event.at.replace(minute=0, second=0, microsecond=0), event.state) for event in events)

    assert job.count(shop.archive) == (len(events) + 1, len(events) + 1, 300)
    hours = job.orders_per_hour(shop.archive)
    assert {(hour, state): n for hour, row in hours for state, n in zip(STATES, row, strict=True) if n} == by_hour
    assert [hour for hour, _ in hours] == [min(by_hour)[0] + timedelta(hours=at) for at in range(47)]
    paid = job.paid_times(shop.archive)
    assert paid.orders == len(times)
    assert paid.median_s == pytest.approx(statistics.median(times), abs=1e-9)
    assert paid.p95_s == pytest.approx(statistics.quantiles(times, n=20, method="inclusive")[18], abs=1e-9)
    assert paid.longest_s == max(times)
    edges = [0, 60, 120, 300, 600, 1200, 3600, 7200, float("inf")]
    assert [n for _, n in paid.histogram] == [
        sum(edges[at] <= time < edges[at + 1] for time in times) for at in range(len(edges) - 1)
    ]


def test_the_audit_names_the_repeat_and_the_swap_and_nothing_else(shop: Shop) -> None:
    held = {queue_id: (0, end) for queue_id, end in shop.ends.items()}
    first, again = shop.places[shop.planted.repeated]
    early, late = shop.planted.swapped

    faults = {fault.kind: fault for fault in job.audit_orders(shop.archive)}
    queues = job.audit_queues(shop.archive, held)

    assert set(faults) == {"repeat", "out of order"}
    assert faults["repeat"] == Fault(
        "repeat", shop.planted.repeated.split("/")[0], f"paid came again: first at {first}, again at {again}"
    )
    assert faults["out of order"].order_id == early.split("/")[0]
    assert faults["out of order"].text.startswith(
        f"shipped ({shop.places[early][0]}) came before packed ({shop.places[late][0]}): came as created -> paid"
    )
    assert queues == tuple(
        QueueAudit(queue_id, 0, end, end, event_repeats=int(queue_id == first.queue_id))
        for queue_id, end in sorted(shop.ends.items())
    )


def test_the_archive_is_parted_by_day_and_state_and_has_one_file_in_each(shop: Shop) -> None:
    files = [Path(name.removeprefix("file://")) for name in shop.archive.inputFiles()]

    folders = [file.parent.relative_to(file.parents[2]).parts for file in files]
    assert len(set(folders)) == len(folders)
    assert {day for day, _ in folders} == {"day=2026-03-02", "day=2026-03-03"}
    assert {state for _, state in folders} == {f"state={state}" for state in STATES}


def test_messages_that_cannot_be_read_are_archived_and_counted_and_gaps_and_repeated_offsets_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    good = two_days(1, 1)[0].body()
    rows = [message(0, 3, good), message(0, 4, b"{half"), message(0, 4, b"\xff\x00"), message(0, 7, b'{"state": "x"}')]

    archive = job.archived(spark, frame(spark, rows), tmp_path / "parquet")

    assert job.count(archive) == (4, 1, 1)
    assert job.audit_queues(archive, {0: (2, 8), 1: (5, 6), 2: (9, 9)}) == (
        QueueAudit(0, 2, 8, 4, ((2, 3), (5, 7)), (4,)),
        QueueAudit(1, 5, 6, 0, ((5, 6),)),
        QueueAudit(2, 9, 9, 0),
    )


def test_an_empty_topic_has_an_empty_report(spark: SparkSession, tmp_path: Path) -> None:
    archive = job.archived(spark, frame(spark, []), tmp_path / "parquet")

    assert job.count(archive) == (0, 0, 0)
    assert job.orders_per_hour(archive) == ()
    assert job.paid_times(archive).orders == 0
    assert sum(n for _, n in job.paid_times(archive).histogram) == 0
    assert job.audit_orders(archive) == ()


def test_what_a_group_did_is_read_from_its_notes(spark: SparkSession, tmp_path: Path) -> None:
    tags = ["created", "paid", "paid", "shipped", "paid", "created"]
    rows = [message(0, offset, b"{}", tag) for offset, tag in enumerate(tags)]
    archive = job.archived(spark, frame(spark, rows), tmp_path / "parquet")
    # group, offset, epoch, number, attempt, ok: "a" retries 1, buries 2, gets 3 before 2, and finishes 0 twice.
    notes = [
        ("a", 0, 1, 1, 1, True), ("a", 1, 1, 2, 1, False), ("a", 1, 1, 3, 2, True), ("a", 3, 1, 4, 1, True),
        ("a", 2, 1, 5, 1, False), ("a", 0, 2, 1, 1, True), ("b", 1, 1, 1, 1, True), ("b", 2, 1, 2, 1, True),
    ]  # fmt: skip
    names = ("consumer_group", "queue_offset", "epoch", "number", "attempt", "ok")
    lines = [json.dumps({"queue_id": 0, **dict(zip(names, note, strict=True))}) for note in notes]
    (tmp_path / "notes.jsonl").write_text("\n".join(lines) + "\n")
    deliveries = spark.read.schema(job.DELIVERY).json(str(tmp_path / "notes.jsonl"))
    groups = {
        "a": GroupFacts({0: 5}, 5, 1, "%DLQ%a"),
        "b": GroupFacts({0: 6}, 6, 0, None),
        "c": GroupFacts({0: 0}, 0, 6, None),
    }

    found = job.audit_groups(
        {"a": "*", "b": "paid || lost", "c": "*"},
        Facts("orders", {0: (0, 6)}, groups),
        archive=archive,
        deliveries=deliveries,
        letters=[DeadLetter("a", "?", Place(0, 2), "no")],
    )

    assert found == (
        GroupAudit("a", 5, 1, wanted=5, consumed=3, repeated=1, retried=1, dead_lettered=1, disordered=1),
        GroupAudit("b", 6, 0, wanted=3, consumed=2, repeated=0, retried=0, dead_lettered=0, disordered=0),
        GroupAudit("c", 0, 6, wanted=0, consumed=0, repeated=0, retried=0, dead_lettered=0, disordered=0),
    )
    assert [group.unaccounted for group in found] == [1, 1, 0]
