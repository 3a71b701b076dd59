"""
Measures how fast Spark reads a topic, compared with Parquet and with a reader that yields tuples.

    make bench-spark                                 all of it: 5 million messages, 5 rounds, a topic of 4 GB
    make bench-spark ARGS=--quick                    a tenth of that, in about two minutes
    python tools/bench/spark_scan.py --messages 1000000 --rounds 3 --big-gb 0

A real broker process is filled over TCP: 8 queues, bodies of 100 seeded random bytes, 8 tags, one key
each. Spark writes Parquet from that very DataFrame with its default codec. Then each round scans all of them to the
`noop` sink, one after the other, in an order that turns round by round: a machine that gets slower meanwhile makes all
of them slower. Ratios are the medians of the ratios of the rounds. Progress goes to standard error, the result, as
Markdown, to standard output, and as JSON to the file that ``--json`` names.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from rmq.bench.processes import BrokerProcess
from rmq.engine.native.blocking import BlockingConnection
from rmq.spark import session
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.errors import OK
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES = 8
TAGS = [f"tag-{number}" for number in range(8)]
BATCH = 1000  # messages of a batch: what producers make of messages that come quickly
BODY = 100
BIG_BODY = 2000
DISTINCT = 500  # bodies in the topic of repeated ones
TUPLE_QUEUES = 2  # of 8 are read by the reader of tuples, whose rate does not depend on it: it is slow enough so
META = "topic,queue_id,queue_offset,message_id,tag,index_keys,properties,born_at,stored_at,attempt"
VARIANTS = (("unique", "unique", None), ("repeated", "repeated", None), ("no_body", "unique", META))
WORKER_LIMIT_MB = 400


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description="Measure how fast Spark reads a topic.")
    parser.add_argument("--messages", type=int, default=5_000_000, help="of each topic (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of scans, after one to warm up (default: %(default)s)")
    parser.add_argument("--big-gb", type=float, default=4.0, help="bodies of the big topic, 0: none (default: 4)")
    parser.add_argument("--quick", action="store_true", help="500,000 messages, 3 rounds, 0.4 GB")
    parser.add_argument("--directory", help="where temporary files go")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    if options.quick:
        options.messages, options.rounds, options.big_gb = 500_000, 3, 0.4
    with tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=options.directory) as folder:
        figures = measure(options, Path(folder))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2))
    print(markdown(figures))


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures, from a broker in ``folder`` and one session of Spark."""
    with broker(folder / "broker") as address:
        filled = fill(options, address)
        say("starting Spark")
        spark = session(
            "bench", master="local[2]", conf={"spark.driver.memory": "4g", "spark.sql.session.timeZone": "UTC"}
        )
        try:
            spark.dataSource.register(TupleSource)
            figures: dict[str, Any] = {"facts": facts(spark, options), **filled}
            for name, topic, columns in VARIANTS:
                scans = prepare(spark, {"broker": address, "topic": topic}, columns, folder / f"{topic}.parquet")
                figures[name] = rounds(name, scans, options)
            if options.big_gb:
                figures["big"] = big(spark, address, options)
        finally:
            spark.stop()
    return figures


# ---- the topics


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run a broker process, and give its address."""
    process = BrokerProcess(folder, "sync")
    try:
        yield process.address
    finally:
        process.close()


def fill(options: argparse.Namespace, address: str) -> dict[str, Any]:
    """Make the topics and send what they hold: batches as a producer makes them, encoded here since that is quicker."""
    rates = {}
    with BlockingConnection(address, client="bench") as connection:
        for topic, make, count, size in topics(options):
            connection.request(Op.CREATE_TOPIC, ops.CreateTopic(topic, QUEUES))
            began = time.perf_counter()
            for at in range(0, count, BATCH * QUEUES):
                firsts = range(at, min(at + BATCH * QUEUES, count), BATCH)
                batches = [
                    ops.OutgoingBatch(
                        queue_id, batch(topic, queue_id, make, range(first, min(first + BATCH, count)), size)
                    )
                    for queue_id, first in enumerate(firsts)
                ]
                for result in decode_list(ops.SendResult, connection.request(Op.SEND, ops.Send(batches))):
                    if result.status != OK:
                        raise SystemExit(f"the broker refused a batch: {result.text}")
                if at // (BATCH * QUEUES) % 100 == 0:
                    say(f"filling {topic}: {at:,} of {count:,}")
            rates[topic] = {"messages": count, "body": size, "filled_per_s": count / (time.perf_counter() - began)}
    return {"topics": rates}


Make = Callable[[range, int], list[bytes]]


def topics(options: argparse.Namespace) -> list[tuple[str, Make, int, int]]:
    """Names, how bodies are made, how many and how long."""
    listed: list[tuple[str, Make, int, int]] = [
        ("unique", unique_bodies, options.messages, BODY),
        ("repeated", repeated_bodies, options.messages, BODY),
    ]
    if options.big_gb:
        listed.append(("big", unique_bodies, int(options.big_gb * 1e9) // BIG_BODY, BIG_BODY))
    return listed


def unique_bodies(numbers: range, size: int) -> list[bytes]:
    """Random bytes of a seed: no two are the same, and none can be compressed."""
    noise = random.Random(numbers.start).randbytes(size * len(numbers))
    return [noise[i * size : (i + 1) * size] for i in range(len(numbers))]


def repeated_bodies(numbers: range, size: int) -> list[bytes]:
    """Some few bodies again and again, chosen by chance."""
    some = unique_bodies(range(DISTINCT), size)
    return random.Random(numbers.start).choices(some, k=len(numbers))


def batch(topic: str, queue_id: int, make: Make, numbers: range, size: int) -> bytes:
    """Messages with a tag of eight and a key of their own each."""
    born_at = 1_700_000_000_000_000
    rows = Rows(
        make(numbers, size),
        range(born_at + numbers.start, born_at + numbers.stop),
        tags=[TAGS[i % len(TAGS)] for i in numbers],
        index_keys=[(f"key-{i}",) for i in numbers],
    )
    return bytes(encode(topic, queue_id, rows))


# ---- the scans

Scan = Callable[[], float]


def prepare(spark: SparkSession, asked: dict[str, str], columns: str | None, parquet: Path) -> dict[str, Scan]:
    """The scans of a topic to compare; Parquet is written the first time it is needed."""
    asked = asked | ({"columns": columns} if columns else {})
    ours = spark.read.format("rmq").options(**asked).load()
    if not parquet.exists():
        say(f"writing {asked['topic']} as Parquet")
        ours.write.parquet(str(parquet))
    theirs = spark.read.parquet(str(parquet))
    scans = {"rmq": timed(ours), "parquet": timed(theirs.select(*columns.split(",")) if columns else theirs)}
    if asked["topic"] == "unique" and columns is None:
        few = asked | {"queues": ",".join(map(str, range(TUPLE_QUEUES)))}
        scans["tuples"] = timed(spark.read.format("rmq_tuples").options(**few).load())
    return scans


def timed(frame: DataFrame) -> Scan:
    """The seconds that a full scan takes."""

    def scan() -> float:
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began

    return scan


def rounds(name: str, scans: dict[str, Scan], options: argparse.Namespace) -> dict[str, Any]:
    """Scan all of them in turns; the seconds of each, and the machine's load meanwhile."""
    say(f"{name}: warming up")
    for scan in scans.values():
        scan()
    took: dict[str, list[float]] = {which: [] for which in scans}
    loads = []
    for number in range(options.rounds):
        order = list(scans) if number % 2 == 0 else list(scans)[::-1]
        for which in order:
            took[which].append(scans[which]())
        loads.append(os.getloadavg()[0])
        shown = ", ".join(
            f"{which} {rows_read(which, options.messages) / took[which][-1] / 1e6:.2f}" for which in scans
        )
        say(f"{name}: round {number + 1} of {options.rounds}: {shown} million rows/s (load {loads[-1]:.1f})")
    return {"messages": options.messages, "seconds": took, "load": loads}


def rows_read(which: str, messages: int) -> int:
    """Return how many rows a scan gives."""
    return messages * TUPLE_QUEUES // QUEUES if which == "tuples" else messages


class TupleSource(DataSource):
    """Reads the same rows by the same plan and pulls, but yields a tuple for each, as a plain Python reader would."""

    @classmethod
    def name(cls) -> str:
        return "rmq_tuples"

    def schema(self) -> str:
        from rmq.spark.source import RmqDataSource

        return RmqDataSource(dict(self.options)).schema()

    def reader(self, schema: Any) -> DataSourceReader:
        from rmq.spark.source import RmqDataSource

        return TupleReader(RmqDataSource(dict(self.options)).reader(schema))


class TupleReader(DataSourceReader):
    """Takes messages out of batches one by one."""

    def __init__(self, ours: DataSourceReader) -> None:
        self._ours = ours

    def partitions(self) -> list[InputPartition]:
        return list(self._ours.partitions())

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        from rmq.client.scan.reader import MAX_PULL
        from rmq.engine.native.source import Manner, source_of
        from rmq.wire.batch.batch import read_all

        part = partition.value
        source, at = source_of(part, Manner(())), part.start
        while at < part.end:
            source.ask(at, MAX_PULL)
            for batch in read_all(source.answer().batches, stores=part.stores):
                for message in batch.messages(at):
                    if message.queue_offset >= part.end:
                        break
                    yield (
                        message.topic, message.queue_id, message.queue_offset, message.message_id, message.key,
                        message.tag, list(message.index_keys), message.body, message.properties, message.born_at,
                        message.stored_at, message.attempt,
                    )  # fmt: skip
                at = batch.header.end_offset
        source.close()


# ---- memory


def big(spark: SparkSession, address: str, options: argparse.Namespace) -> dict[str, Any]:
    """Scan the big topic and watch the memory of Spark's Python processes."""
    say("big: scanning")
    scan = timed(spark.read.format("rmq").option("broker", address).option("topic", "big").load())
    with watched_workers() as peaks:
        took = scan()
    worst = max(peaks.values(), default=0) / 1e6
    say(f"big: {options.big_gb:g} GB in {took:.1f} s, {len(peaks)} Python processes, at most {worst:.0f} MB each")
    return {"gb": options.big_gb, "seconds": took, "processes": len(peaks), "peak_mb": worst}


@contextmanager
def watched_workers() -> Iterator[dict[int, int]]:
    """The largest resident size, in bytes, that each Python process of Spark has had, by its id."""
    peaks: dict[int, int] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            for pid in workers():
                peaks[pid] = max(peaks.get(pid, 0), peak_of(pid))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peaks
    finally:
        over.set()
        watcher.join()


def workers() -> list[int]:
    """Spark's Python processes below this one."""
    parents, ours = {}, []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
                if b"pyspark" in entry.joinpath("cmdline").read_bytes():
                    ours.append(int(entry.name))
            except OSError:
                continue  # it ended meanwhile

    def is_below(pid: int) -> bool:
        while pid not in (0, os.getpid()):
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return [pid for pid in ours if is_below(pid) and b"python" in cmdline(pid).split(b"\0")[0]]


def cmdline(pid: int) -> bytes:
    """The command of a process, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def peak_of(pid: int) -> int:
    """The largest resident size that a process has had, in bytes."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


# ---- the report


def facts(spark: SparkSession, options: argparse.Namespace) -> dict[str, Any]:
    """Return what the figures depend on."""
    import pyarrow

    cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    java: Any = spark._jvm
    return {
        "cores": os.cpu_count(),
        "cpu": cpu[1] if cpu else platform.machine(),
        "memory_gb": round(memory / 1e9),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "spark": spark.version,
        "pyarrow": pyarrow.__version__,
        "java": java.System.getProperty("java.version"),
        "master": spark.sparkContext.master,
        "rounds": options.rounds,
    }


def ratios(figures: dict[str, Any], over: str) -> list[float]:
    """Divide our rows a second by another's, round by round."""
    messages, ours, theirs = figures["messages"], figures["seconds"]["rmq"], figures["seconds"][over]
    share = messages / rows_read(over, messages)
    return [there / here * share for here, there in zip(ours, theirs, strict=True)]


def markdown(figures: dict[str, Any]) -> str:
    """The figures for people, ratios first."""
    unique = figures["unique"]
    pairs = [
        ("All columns, unique bodies, against Parquet", ratios(unique, "parquet"), "at least 0.45"),
        ("All columns, unique bodies, against tuples", ratios(unique, "tuples"), "at least 4"),
        ("All columns, 500 repeated bodies, against Parquet", ratios(figures["repeated"], "parquet"), ""),
        ("Without `body`, against Parquet without `body`", ratios(figures["no_body"], "parquet"), ""),
    ]
    lines = ["| Rows/s of rmq ÷ rows/s of the other | median | spread | asked for |", "|---|---|---|---|"]
    for what, values, wanted in pairs:
        spread = f"{min(values):.2f} to {max(values):.2f}"
        lines.append(f"| {what} | **{statistics.median(values):.2f}** | {spread} | {wanted} |")
    if "big" in figures:
        big = figures["big"]
        lines += [
            "",
            f"Scan of {big['gb']:g} GB of bodies: at most **{big['peak_mb']:.0f} MB** resident in any of the "
            f"{big['processes']} Python processes of Spark (asked for: below {WORKER_LIMIT_MB}), "
            f"{big['gb'] * 1000 / big['seconds']:.0f} MB/s.",
        ]
    lines += ["", "| Scan | million rows/s, median | spread | load average |", "|---|---|---|---|"]
    for name in ("unique", "repeated", "no_body"):
        for which, seconds in figures[name]["seconds"].items():
            rows = rows_read(which, figures[name]["messages"])
            rates = sorted(rows / value / 1e6 for value in seconds)
            loads = figures[name]["load"]
            lines.append(
                f"| {name.replace('_', ' ')}: {which} | {statistics.median(rates):.2f} | "
                f"{rates[0]:.2f} to {rates[-1]:.2f} | {min(loads):.1f} to {max(loads):.1f} |"
            )
    about = figures["facts"]
    lines += [
        "",
        f"{figures['unique']['messages']:,} messages of {BODY} bytes, {about['rounds']} rounds, `{about['master']}`; "
        f"{about['cores']} cores of {about['cpu']}, {about['memory_gb']} GB, {about['system']}, "
        f"Python {about['python']}, Spark {about['spark']}, pyarrow {about['pyarrow']}, Java {about['java']}.",
    ]
    return "\n".join(lines)


def say(text: str) -> None:
    """Progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
