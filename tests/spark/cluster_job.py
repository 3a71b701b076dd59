"""
Reads a topic on a cluster of two executors, which are processes of their own, and prints what it found as JSON.

Before that, it does so twice where a package is missing: the file that ``MISSING`` names tells ``sitecustomize.py``,
which is beside it, what executors cannot import.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rmq.spark import one_line, session

SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.task.maxFailures": "1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both executors are there before anything is read
    "spark.sql.session.timeZone": "UTC",
}


def executor_of_rows(rows: Iterator[Any]) -> Iterator[tuple[int, int, str, list[Any]]]:
    """The rows, with the process and the command of the executor that has them; runs beside the read, in its task."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    command = Path(f"/proc/{executor}/cmdline").read_text()
    kind = "executor" if "CoarseGrainedExecutorBackend" in command else command
    for row in rows:
        yield os.getpid(), executor, kind, [*row[:5], bytes(row.body).hex(), str(row.born_at), str(row.stored_at)]


def main(master: str, broker: str, topic: str) -> None:
    """Print the reasons of the reads that fail, and the rows of the one that does not."""
    missing = Path(os.environ["MISSING"])
    spark = session("cluster", master=master, conf=SETTINGS)
    said: dict[str, Any] = {}
    for package in ("rmq", "pyarrow"):
        missing.write_text(package)
        try:
            spark.read.format("rmq").options(broker=broker, topic=topic).load().count()
        except Exception as error:
            said[package] = [one_line(error), str(error)]
    missing.write_text("")
    frame = spark.read.format("rmq").options(broker=broker, topic=topic).load()
    said["parts"] = frame.rdd.mapPartitions(executor_of_rows).glom().collect()
    print(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
