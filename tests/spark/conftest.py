"""One Java for all Spark tests (it takes seconds to start), and the brokers they read from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from rigs.faulty_broker import FakeBroker
from rigs.real_broker import RealBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


QUICK_JAVA = "-XX:TieredStopAtLevel=1"  # tests end before code that is compiled with more care pays


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, and up to three attempts for a task, as in a cluster."""
    from rmq.spark import session

    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JAVA)
    settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    started = session("tests", master="local[2,3]", conf=settings)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def real_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealBroker]:
    with RealBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def fake_broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        yield running
