"""Reads that go wrong on the way: every row exactly once, or an error that names topic, queue and offset."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq.wire.batch.batch import Rows

from .reading import bodies, loaded, places, planned, refused
from rigs.cutting_proxy import CuttingProxy, Piece, reading_process
from rigs.real_broker import RealBroker

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES, COUNT, BODY = 40, 500, 1000
EVERYTHING = [(queue_id, offset) for queue_id in range(2) for offset in range(BATCHES * COUNT)]
SOME_ROWS = 9 << 20  # more than the first answer, so that some rows have reached Spark by then
OVERTAKING = (
    *("-o", "segment_bytes=64KiB", "-o", "retention_bytes=128KiB"),
    *("-o", "checkpoint_bytes=64KiB", "-o", "checkpoint_s=1"),
)


@pytest.fixture(scope="module")
def long_topic(real_broker: RealBroker) -> str:
    """Two queues of 20 MB each."""
    real_broker.create("long", queues=2)
    for queue_id in range(2):
        for _ in range(BATCHES):
            real_broker.append("long", queue_id, Rows([os.urandom(BODY) for _ in range(COUNT)], 0))
    return "long"


class CutsTheFirstReader:
    """Ends the first connection that has read some rows, and the one by which its reader tries to go on."""

    def __init__(self) -> None:
        self.cut: list[int] = []

    def __call__(self, piece: Piece) -> bool:
        if not self.cut and piece.sent > SOME_ROWS:
            self.cut.append(reading_process(piece))
            return True
        if len(self.cut) == 1 and not piece.sent and reading_process(piece) == self.cut[0]:
            self.cut.append(self.cut[0])
            return True
        return False


def test_a_task_that_fails_after_some_rows_gives_each_row_once_when_it_is_tried_again(
    spark: SparkSession, real_broker: RealBroker, long_topic: str
) -> None:
    cuts = CutsTheFirstReader()
    with CuttingProxy(real_broker.address, cuts) as proxy:
        frame = loaded(spark, proxy.address, long_topic)

        assert places(frame) == EVERYTHING
    assert len(cuts.cut) == 2


class KillsTheFirstReader:
    """Ends the process that first has read some rows, as the kernel does where memory is short."""

    def __init__(self) -> None:
        self.killed = 0

    def __call__(self, piece: Piece) -> bool:
        if self.killed or piece.sent <= SOME_ROWS:
            return False
        self.killed = reading_process(piece)
        os.kill(self.killed, signal.SIGKILL)
        return False


def test_a_worker_that_is_killed_in_the_middle_costs_no_row_and_repeats_none(
    spark: SparkSession, real_broker: RealBroker, long_topic: str
) -> None:
    kills = KillsTheFirstReader()
    with CuttingProxy(real_broker.address, kills) as proxy:
        frame = loaded(spark, proxy.address, long_topic)

        assert places(frame) == EVERYTHING
    assert kills.killed > 0


def test_a_step_behind_the_read_that_fails_at_first_changes_no_row(
    spark: SparkSession, real_broker: RealBroker, long_topic: str
) -> None:
    def fails_at_first(rows: Iterator[Row]) -> Iterator[Row]:
        from pyspark import TaskContext

        context = TaskContext.get()
        for i, row in enumerate(rows):
            if i == COUNT and context is not None and not context.attemptNumber():
                raise ValueError("only the first attempt fails")
            yield row

    frame = loaded(spark, real_broker.address, long_topic, columns="queue_id,queue_offset")

    assert [tuple(row) for row in frame.rdd.mapPartitions(fails_at_first).collect()] == EVERYTHING


def test_a_broker_that_stays_away_is_told_with_topic_queue_and_offset(
    spark: SparkSession, real_broker: RealBroker, tmp_path: Path
) -> None:
    with RealBroker(tmp_path) as broker:
        broker.create("gone")
        broker.append("gone", 0, Rows([b"x"] * 10, 0))
        frame = loaded(spark, broker.address, "gone")
        planned(frame)

    said = refused(frame.count)

    assert f"topic gone, queue 0, offset 0, broker {broker.address}: no broker at {broker.address}" in said
    assert "start one with `rmq-broker start`" in said


# A topic that is another one by now


def test_a_topic_that_was_deleted_and_made_anew_since_the_plan_is_refused(
    spark: SparkSession, real_broker: RealBroker
) -> None:
    frame = _planned_then_deleted(spark, real_broker, "anew")
    real_broker.create("anew")
    real_broker.append("anew", 0, Rows([b"of the new one"] * 20, 0))

    said = refused(frame.count)

    assert f"topic anew, queue 0, offset 0, broker {real_broker.address}" in said
    assert "the topic was deleted and made again since the scan was planned: read it again" in said
    assert bodies(loaded(spark, real_broker.address, "anew")) == [b"of the new one"] * 20


def test_a_topic_that_was_deleted_and_made_anew_empty_is_refused_likewise(
    spark: SparkSession, real_broker: RealBroker
) -> None:
    frame = _planned_then_deleted(spark, real_broker, "anew-empty")
    real_broker.create("anew-empty")

    said = refused(frame.count)

    assert f"topic anew-empty, queue 0, offset 0, broker {real_broker.address}" in said
    assert "the topic was deleted and made again since the scan was planned: read it again" in said


def test_a_topic_that_was_deleted_since_the_plan_is_refused(spark: SparkSession, real_broker: RealBroker) -> None:
    frame = _planned_then_deleted(spark, real_broker, "deleted")

    assert f"topic deleted, queue 0, offset 0, broker {real_broker.address}" in refused(frame.count)


def _planned_then_deleted(spark: SparkSession, broker: RealBroker, topic: str) -> Any:
    broker.create(topic)
    broker.append(topic, 0, Rows([b"of the old one"] * 10, 0))
    frame = loaded(spark, broker.address, topic)
    assert planned(frame) == 1
    broker.delete(topic)
    return frame


# Retention


@pytest.fixture(scope="module")
def overtaking_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealBroker]:
    """Keeps little: what was planned may be gone when it is read."""
    with RealBroker(tmp_path_factory.mktemp("overtaking"), *OVERTAKING) as running:
        yield running


def test_what_retention_removed_between_plan_and_read_is_an_error_or_skipped_where_told_so(
    spark: SparkSession, overtaking_broker: RealBroker
) -> None:
    broker = overtaking_broker
    broker.create("kept-shortly")
    for _ in range(30):
        broker.append("kept-shortly", 0, Rows([os.urandom(8000)], 0))
    strict = loaded(spark, broker.address, "kept-shortly")
    lenient = loaded(spark, broker.address, "kept-shortly", failOnDataLoss="false")
    assert (planned(strict), planned(lenient)) == (1, 1)

    for _ in range(30):
        broker.append("kept-shortly", 0, Rows([os.urandom(8000)], 0))
    patience = threading.Event()
    for _ in range(400):
        if broker.held("kept-shortly", 0).start:
            break
        patience.wait(0.1)
    first = broker.held("kept-shortly", 0).start
    assert first > 0

    said = refused(strict.count)
    assert f"topic kept-shortly, queue 0, offset 0, broker {broker.address}" in said
    assert f"to {first}" in said
    assert "failOnDataLoss" in said  # how to read what is left
    assert places(lenient) == [(0, offset) for offset in range(first, 30)]
