"""
Measures how long a query by key takes: in the index alone, or over TCP.

    python tools/bench/key_query.py             the index alone: files of 10 million hashes, searched in one thread
    python tools/bench/key_query.py --batch 1   the same, for batches of one message
    python tools/bench/key_query.py --broker    a real broker, filled by a producer and asked over TCP

Prints one JSON object, with times in milliseconds. Files lie in a temporary folder (``--directory`` names where).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rmq.bench.processes import BrokerProcess
from rmq.broker.store.files import Files
from rmq.broker.store.key_index import KeyEntry, KeyIndex, KeySearch
from rmq.client import Admin, Connection, Message, Producer
from rmq.wire.errors import RmqError
from rmq.wire.protocol.ops.core import Op

SEGMENT = 1 << 30
GROUP = 1000  # batches that the index gets at once
EVER = 1 << 62


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description="Measure how long a query by key takes.")
    parser.add_argument("--messages", type=int, default=10_000_000, help="each has one key (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1000, help="messages of a batch (default: %(default)s)")
    parser.add_argument("--body", type=int, default=100, help="bytes of a body (default: %(default)s)")
    parser.add_argument("--searches", type=int, default=20, help="how many to time (default: %(default)s)")
    parser.add_argument("--broker", action="store_true", help="ask a real broker instead of the index alone")
    parser.add_argument("--directory", help="where temporary files go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        if options.broker:
            result = asyncio.run(with_broker(options, Path(folder)))
        else:
            result = index_alone(options, Path(folder))
    print(json.dumps(result, indent=2))


def index_alone(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Build the files of random hashes, then search them from a warm page cache."""
    index = KeyIndex(Files(), folder)
    began = time.perf_counter()
    segments, some = build(index, options)
    built = time.perf_counter() - began
    size = sum(path.stat().st_size for path in folder.iterdir())
    wanted = random.sample(some, min(len(some), options.searches))

    def search(value: int) -> int:
        return len(list(index.search(KeySearch(value, 0, EVER, EVER), segments)))

    return {
        "messages": options.messages,
        "batch": options.batch,
        "segments": len(segments),
        "index_mib": round(size / (1 << 20), 1),
        "build_s": round(built, 2),
        "found": times([partial(search, value) for value in wanted]),
        "absent": times([lambda: search(random.getrandbits(32))] * options.searches),
    }


def build(index: KeyIndex, options: argparse.Namespace) -> tuple[list[tuple[int, int]], list[int]]:
    """Index batches of random hashes, as the broker's worker would; returns the segments and some of the hashes."""
    size = 8 * ((240 + options.batch * (options.body + 40)) // 8)
    segments, some = [], []
    start = first = at = 0
    group: list[KeyEntry] = []
    for number in range(options.messages // options.batch):
        hashes = os.urandom(4 * options.batch)
        if number % 97 == 0:
            some.append(int.from_bytes(hashes[:4], "little"))
        group.append(KeyEntry(at, number, hashes))
        at += size
        if len(group) == GROUP or at - start >= SEGMENT:
            index.extend(start, group, first, at)
            first, group = at, []
        if at - start >= SEGMENT:
            segments.append((start, at))
            start = at
    if group:
        index.extend(start, group, first, at)
    if at > start:
        segments.append((start, at))
    index.flush()
    return segments, some


async def with_broker(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start a broker, fill it, ask it."""
    broker = BrokerProcess(folder, "sync")
    try:
        filled = await fill(options, broker.address)
        found = await ask(options, broker.address)
    finally:
        broker.close()
    return {"messages": options.messages, "batch": options.batch, "fill_s": filled, **found}


async def fill(options: argparse.Namespace, address: str) -> float:
    """Send all messages, each with a key of its own: ``k-`` and its number."""
    began, body = time.perf_counter(), bytes(options.body)
    async with Producer(address) as producer:
        for at in range(0, options.messages, options.batch):
            numbers = range(at, min(at + options.batch, options.messages))
            await producer.send_many(
                [Message("orders", body, index_keys=(f"k-{i}",)) for i in numbers], queue_id=at // options.batch % 4
            )
    return round(time.perf_counter() - began, 2)


async def ask(options: argparse.Namespace, address: str) -> dict[str, Any]:
    """Time queries of keys that exist and of some that do not, messages by id, and pings of others meanwhile."""
    spent: dict[str, list[float]] = {"first": [], "found": [], "absent": [], "by_id": [], "ping_meanwhile": []}
    async with Admin(address) as admin, asyncio.TaskGroup() as group:
        pings = group.create_task(ping(address, spent["ping_meanwhile"]))
        for i in range(options.searches + 1):
            number = random.randrange(options.messages)
            began = time.perf_counter()
            found = await admin.query_messages(f"k-{number}")
            spent["found" if i else "first"].append(time.perf_counter() - began)
            if [message.index_keys for message in found.messages] != [(f"k-{number}",)] or found.lag_bytes:
                raise RmqError(f"the key k-{number} was answered with {found}")
            began = time.perf_counter()
            await admin.query_messages(f"absent-{number}")
            spent["absent"].append(time.perf_counter() - began)
            began = time.perf_counter()
            await admin.message(found.messages[0].message_id)
            spent["by_id"].append(time.perf_counter() - began)
        pings.cancel()
    return {name: summary(values) for name, values in spent.items()}


async def ping(address: str, spent: list[float]) -> None:
    """Time pings until cancelled."""
    connection = Connection(address)
    await connection.open(timeout_s=5)
    try:
        while True:
            began = time.perf_counter()
            await connection.request(Op.PING, ())
            spent.append(time.perf_counter() - began)
            await asyncio.sleep(0.001)
    finally:
        await connection.close()


def times(actions: list[Callable[[], object]]) -> dict[str, float]:
    """Run and time actions; also the processor time, which a busy machine does not change."""
    spent, cpu = [], time.thread_time()
    for action in actions:
        began = time.perf_counter()
        action()
        spent.append(time.perf_counter() - began)
    return {**summary(spent), "cpu_ms": round((time.thread_time() - cpu) / len(spent) * 1000, 1)}


def summary(spent: list[float]) -> dict[str, float]:
    """The median, the 99th percentile and the worst, in milliseconds."""
    ordered = sorted(value * 1000 for value in spent)
    places = {"median_ms": len(ordered) // 2, "p99_ms": len(ordered) * 99 // 100, "worst_ms": -1}
    return {name: round(ordered[at], 1) for name, at in places.items()}


if __name__ == "__main__":
    main()
