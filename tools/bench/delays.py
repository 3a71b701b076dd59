"""
Measures what deferred messages cost a producer and a broker, next to the same messages without a delay.

    make bench-delays                                all of it: 1 million messages, 5 pairs, both flush modes
    make bench-delays ARGS=--quick                   5,000 messages, 1 pair, in some seconds
    python tools/bench/delays.py --messages 200000 --pairs 3

Each run has a real broker process of its own, on an empty directory. *fill* sends all messages in batches of 500 with
``send_bodies``, bodies of 100 bytes that all differ, 64 calls at once; the delayed ones wait for the longest level.
*then* sends as many once more without a delay, while the others wait. *singles* sends batches of one message, the
delayed ones each with an exact time of its own, spread over an hour. After each the resident memory of the broker is
read. Runs with and without a delay take turns, and which of the two begins changes from pair to pair, so that a machine
that gets slower slows both. Progress goes to standard error, the result, as Markdown, to standard output, and as JSON
to the file that ``--json`` names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from rmq.bench.options import Load
from rmq.bench.processes import BrokerProcess, own_broker
from rmq.bench.workers.sending import send_all
from rmq.client import Admin, Connection, Producer
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op

TOPIC = "delays"
QUEUES = 8
BATCH = 500
BODY = 100
LEVEL = 18  # two hours: nothing becomes due meanwhile
FIRST_S, SPREAD_S = 7200, 3600  # exact times lie so far away, and apart
FRAME = 64  # batches of one message in a request
IN_FLIGHT = 8  # such requests at once
VARIANTS = ("plain", "delayed")
FLUSHES = ("sync", "async")
TABLES = (
    ("Messages a second", "delayed / without", "rate", ",.0f", "", " while these wait"),
    ("Processor time of the broker, us a message", "delayed / without", "cpu_us", ".3f", "", " while these wait"),
    ("Resident memory of the broker, MiB", "more", "mib", ".1f", "after ", ""),
)


class VariantRun(NamedTuple):
    """The result of one run of one variant: messages a second, MiB, us of the broker's processor a message."""

    fill_rate: float
    fill_mib: float
    fill_cpu_us: float
    then_rate: float = 0.0
    then_mib: float = 0.0
    then_cpu_us: float = 0.0


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description="Measure what deferred messages cost.")
    parser.add_argument("--messages", type=int, default=1_000_000, help="of each run (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="runs with and without (default: %(default)s)")
    parser.add_argument("--single-pairs", type=int, default=1, help="of batches of one message (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="5,000 messages, 1 pair")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    if options.quick:
        options.messages, options.pairs, options.single_pairs = 5_000, 1, 1
    figures = uvloop.run(measure(options))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2))
    print(markdown(figures))


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures: by part, then by variant, the runs one after the other."""
    load = Load(options.messages, BODY, BATCH, QUEUES)
    parts = [(flush, options.pairs, partial(batches_run, load, flush)) for flush in FLUSHES]
    parts.append(("singles", options.single_pairs, partial(singles_run, load)))
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    for part, pairs, run in parts:
        runs[part] = {name: [] for name in VARIANTS}
        for pair in range(pairs):
            for name in VARIANTS if pair % 2 == 0 else VARIANTS[::-1]:
                found = await run(is_delayed=name == "delayed")
                runs[part][name].append(found._asdict())
                say(f"{part}, pair {pair + 1} of {pairs}, {name}: {found}")
    about = {"messages": options.messages, "pairs": options.pairs, "single_pairs": options.single_pairs}
    return {**about, "machine": machine(), "runs": runs}


async def batches_run(load: Load, flush: str, *, is_delayed: bool) -> VariantRun:
    """Fill a broker with batches by the public API, then send as many without a delay."""
    with own_broker(flush) as broker:
        async with Admin(broker.address) as admin, Producer(broker.address) as producer:
            await admin.create_topic(TOPIC, QUEUES)
            figures: list[float] = []
            for level in (LEVEL if is_delayed else 0, 0):
                send = partial(send_batch, level)
                figures += await measured(broker, load, send_all([producer], load.bodies(), send, load.in_flight))
                await check_waiting(admin, load.messages if is_delayed else 0)
    return VariantRun(*figures)


async def send_batch(delay_level: int, producer: Producer, bodies: list[bytes]) -> None:
    """Send one batch."""
    await producer.send_bodies(TOPIC, bodies, delay_level=delay_level)


async def singles_run(load: Load, *, is_delayed: bool) -> VariantRun:
    """Fill a broker with batches of one message; a producer would merge them, since nothing sets them apart."""
    with own_broker("async") as broker:
        async with Admin(broker.address) as admin:
            await admin.create_topic(TOPIC, QUEUES)
            connection = Connection(broker.address)
            await connection.open(timeout_s=5)
            try:
                figures = await measured(broker, load, request_all(connection, requests(load, is_delayed)))
            finally:
                await connection.close()
            await check_waiting(admin, load.messages if is_delayed else 0)
    return VariantRun(*figures)


async def measured(broker: BrokerProcess, load: Load, work: Awaitable[None]) -> tuple[float, float, float]:
    """Messages a second of this work; what the broker then has of memory, in MiB, and used of its processor, in us."""
    began, began_cpu = time.perf_counter(), cpu_s(broker.pid)
    await work
    rate = round(load.messages / (time.perf_counter() - began))
    cpu_us = round((cpu_s(broker.pid) - began_cpu) / load.messages * 1e6, 3)
    return rate, round(broker.memory_mb() * 1e6 / (1 << 20), 1), cpu_us


def requests(load: Load, is_delayed: bool) -> Iterator[ops.Send]:
    """Requests of batches of one message."""
    chance = random.Random(6)
    now = time.time_ns() // 1000
    first, last = now + FIRST_S * 1_000_000, now + (FIRST_S + SPREAD_S) * 1_000_000
    bodies = (body for some in load.bodies() for body in some)
    number = 0
    while frame := list(islice(bodies, FRAME)):
        batches = []
        for body in frame:
            due = chance.randrange(first, last) if is_delayed else 0
            batch = bytes(encode(TOPIC, number % QUEUES, Rows([body], now), deliver_at=due))
            batches.append(ops.OutgoingBatch(number % QUEUES, batch))
            number += 1
        yield ops.Send(batches)


async def request_all(connection: Connection, frames: Iterator[ops.Send]) -> None:
    """Send the requests, some at once."""

    async def request_in_turn() -> None:
        for frame in frames:  # shared: each is taken once
            results = decode_list(ops.SendResult, await connection.request(Op.SEND, frame, timeout_s=60))
            if any(result.status for result in results):
                raise SystemExit(f"the broker refused a batch: {results}")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(request_in_turn())


async def check_waiting(admin: Admin, messages: int) -> None:
    """Check that so many messages are deferred."""
    found = await admin.list_deferred(limit=1)
    if found.total_messages != messages:
        raise SystemExit(f"{found.total_messages} messages are deferred instead of {messages}")


def cpu_s(pid: int) -> float:
    """The processor time that a process has used, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine() -> str:
    """Where this was measured."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def markdown(figures: dict[str, Any]) -> str:
    """The figures as tables: the median of each, and its spread."""
    runs = figures["runs"]
    lines: list[str] = []
    for what, compared, field, form, after, others in TABLES:
        lines += [f"| {what} | flush | without delay | delayed | {compared} |", "|---|---|---|---|---|"]
        for flush in FLUSHES:
            lines.append(line(runs[flush], flush, f"fill_{field}", f"{after}these", form))
            lines.append(line(runs[flush], flush, f"then_{field}", f"{after}as many others{others}", form))
        if field != "rate":
            lines.append(line(runs["singles"], "async", f"fill_{field}", f"{after}these in batches of one", ".1f"))
        lines.append("")
    sizes = f"{figures['messages']:,} messages, pairs: {figures['pairs']}, of batches of one: {figures['single_pairs']}"
    return "\n".join([*lines, f"{sizes}; {figures['machine']}."])


def line(by: dict[str, list[dict[str, float]]], flush: str, field: str, what: str, form: str) -> str:
    """A line of a table; pairs are compared pair by pair: memory by how much more it is, else by the ratio."""
    plain, delayed = ([run[field] for run in by[name]] for name in VARIANTS)
    pairs = list(zip(delayed, plain, strict=True))
    if field.endswith("_mib"):
        compared = spread([late - now for late, now in pairs], "+.1f")
    else:
        compared = spread([late / now if now else math.nan for late, now in pairs], ".2f")  # nan: under a clock's tick
    return f"| {what} | {flush} | {spread(plain, form)} | {spread(delayed, form)} | {compared} |"


def spread(values: list[float], form: str) -> str:
    """The median, and from where to where the values go."""
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"**{statistics.median(values):{form}}** ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
