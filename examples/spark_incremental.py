"""
Archive a topic batch by batch: each run reads what has come since the last one, and nothing twice.

    python examples/spark_incremental.py 127.0.0.1:10911 orders archive

Needs `pip install 'rmq[spark]'`, and Java 17 or newer (`rmq[java]` has one).

The folder holds the batches, and a file with the offsets at which the next batch begins. The file is replaced after
the batch was written, in one step: a run that ends anywhere in between leaves the file as it was, and the next run
writes the same batch again, over what is there of it. The history of the offsets is saved with them: after the broker
was restored from an older backup, a run ends with an error until `rmq-admin broker accept-history`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmq import Admin
from rmq.client import MessageQueue, starting_offsets
from rmq.spark import one_line, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def ends_of(broker: str, topic: str) -> dict[str, Any]:
    """Where each queue ends now, and the history that these offsets belong to."""
    async with Admin(broker) as admin:
        queues = [MessageQueue(topic, queue.queue_id) for queue in (await admin.topic(topic)).queues]
        return starting_offsets(queues, await admin.ranges(queues))


def next_range(done: dict[str, Any], topic: str, ends: dict[str, Any]) -> dict[str, str]:
    """The options that read from where the last batch ended up to ``ends``."""
    # A queue that was added since then has no offset yet: it is read from its beginning.
    starts = {queue: done["offsets"].get(queue, "earliest") for queue in ends[topic]}
    return {
        "startingOffsets": json.dumps({topic: starts, "@history": done.get("@history")}),
        "endingOffsets": json.dumps({topic: ends[topic]}),
    }


def archive_batch(spark: SparkSession, broker: str, topic: str, folder: Path) -> int:
    """Write what has come since the last batch as the next one; says how many messages that were."""
    progress = folder / "progress.json"
    done: dict[str, Any] = json.loads(progress.read_text()) if progress.exists() else {"batch": 0, "offsets": {}}
    ends = asyncio.run(ends_of(broker, topic))
    messages = (
        spark.read.format("rmq").options(broker=broker, topic=topic).options(**next_range(done, topic, ends)).load()
    )
    batch = folder / f"batch={done['batch']:06d}"
    messages.write.mode("overwrite").parquet(str(batch))
    following = folder / "progress.json.new"
    saved = {"batch": done["batch"] + 1, "offsets": ends[topic], "@history": ends.get("@history")}
    following.write_text(json.dumps(saved))
    os.replace(following, progress)
    return spark.read.schema(messages.schema).parquet(str(batch)).count()


def main(broker: str = "127.0.0.1:10911", topic: str = "orders", folder: str = "archive") -> None:
    """One batch."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    spark = session("archive")
    print(f"{archive_batch(spark, broker, topic, Path(folder))} messages archived")
    spark.stop()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(one_line(error))
