"""
``kill -9``, again and again, of a real broker under load; nothing acknowledged may be lost, and order must hold.

    python tests/chaos/kills.py --cycles 25

A producer process notes each message when it is acknowledged, an ordered consumer what it processed. Both live through
all kills. After each, with the broker up again, the whole log is read and compared with what was acknowledged before
the kill. Everything stays on this machine, and ends within ``--limit`` seconds. `make chaos` runs it.
"""

# ruff: noqa: E402  # as a script, this has to say first where its helpers are

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

TESTS = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))

from rmq.engine.native.connection import Connection

from chaos.producing import ProducerProcess
from rigs.processes import BrokerProcess, ConsumerProcess, Running
from simulation.broker import read_rows

TOPIC = "orders"
KEYS = 24
PAUSE_S = 0.02  # of each key, so that reading everything after each kill stays quick
SEGMENT_BYTES = 16 << 10
OPTIONS = ("-o", f"segment_bytes={SEGMENT_BYTES}", "-o", "flush=sync", "-o", "min_free_bytes=0")

Stored = dict[str, list[int]]  # the numbers of a key, in the order of its queue


def acknowledged_by(producer: ProducerProcess) -> Stored:
    """Return what was acknowledged so far."""
    found: Stored = defaultdict(list)
    for one in producer.acknowledged():
        found[one.key].append(one.number)
    return found


# ---- what the broker holds


async def stored_by(address: str) -> Stored:
    """Every number of every key, as the log has them; what comes while this reads is left out."""
    found: Stored = defaultdict(list)
    connection = Connection(address, client="chaos")
    await connection.open(timeout_s=10)
    try:
        rows = await read_rows(connection, [TOPIC])
    finally:
        await connection.close()
    ends: Counter[int] = Counter()
    for row in rows:
        assert row.offset == ends[row.queue.queue_id], f"{row.queue} skips from {ends[row.queue.queue_id]}"
        ends[row.queue.queue_id] += 1
        key, number = row.body.decode().split()
        found[key].append(int(number))
    return found


def check_stored(stored: Stored, acknowledged: Stored) -> None:
    """Once, in order, and all that was acknowledged."""
    for key, numbers in stored.items():
        assert numbers == list(range(len(numbers))), f"{key}: not each number once and in order: {_odd(numbers)}"
    for key, numbers in acknowledged.items():
        assert len(stored[key]) >= len(numbers), f"{key}: {numbers[len(stored[key]) :][:5]} were acknowledged, now gone"


def _odd(numbers: list[int]) -> str:
    at = next(i for i, number in enumerate(numbers) if i != number)
    return f"... {numbers[max(at - 3, 0) : at + 3]} ..."


def check_consumed(messages: list[dict[str, Any]]) -> Stored:
    """No queue skipped anything; re-deliveries are runs. Returns what was seen of each key, each number once."""
    next_offset: dict[int, int] = defaultdict(int)
    seen: dict[str, set[int]] = defaultdict(set)
    for message in messages:
        queue_id, offset = message["queue_id"], message["queue_offset"]
        assert offset <= next_offset[queue_id], f"queue {queue_id} skipped from {next_offset[queue_id]} to {offset}"
        next_offset[queue_id] = offset + 1
        key, number = message["body"].split()
        seen[key].add(int(number))
    return {key: sorted(numbers) for key, numbers in seen.items()}


# ---- the run


async def run(cycles: int, seed: int, limit_s: float) -> None:
    """All cycles; raises at the first promise that is broken."""
    chance = Random(seed)
    with tempfile.TemporaryDirectory(prefix="rmq-chaos-") as folder, ExitStack() as stack:
        data = Path(folder, "data")
        broker = stack.enter_context(BrokerProcess(data, "127.0.0.1:0", *OPTIONS))
        address = broker.address
        producer = stack.enter_context(ProducerProcess(address, TOPIC, KEYS, PAUSE_S))
        consumer = stack.enter_context(ConsumerProcess(address, TOPIC, "--group", "chaos"))
        async with asyncio.timeout(limit_s):
            for cycle in range(1, cycles + 1):
                await _more(producer, chance.randint(20, 800))
                acknowledged = acknowledged_by(producer)
                broker.kill()
                if cycle % 5 == 0:  # a start that is killed as well
                    await _kill_a_start(data, address, chance.random() * 0.6)
                broker = stack.enter_context(BrokerProcess(data, address, *OPTIONS))
                stored = await stored_by(address)
                check_stored(stored, acknowledged)
                check_consumed(consumer.messages)
                print(
                    f"kill {cycle}/{cycles}: {_count(acknowledged)} acknowledged before it, {_count(stored)} stored, "
                    f"{len(consumer.lines)} consumed, {len(list((data / 'commitlog').iterdir()))} segments",
                    flush=True,
                )
            await _more(producer, 200)
            assert await asyncio.to_thread(producer.stop) == 0, producer.errors[-5:]
            acknowledged, stored = acknowledged_by(producer), await stored_by(address)
            check_stored(stored, acknowledged)
            await asyncio.to_thread(
                consumer.wait_for, lambda lines: len(set(lines)) >= _count(stored), "everything consumed", 60.0
            )
        seen = check_consumed(consumer.messages)
        assert seen == stored, "not all that is stored was consumed"
    print(f"{cycles} kills: {_count(acknowledged)} acknowledged messages are there, once and in order; all consumed")


async def _more(producer: ProducerProcess, count: int) -> None:
    """Wait until so many more were acknowledged."""
    goal = len(producer.lines) + count
    await asyncio.to_thread(producer.wait_for, lambda lines: len(lines) >= goal, f"{goal} acknowledged", 60.0)


async def _kill_a_start(data: Path, address: str, after_s: float) -> None:
    with Running("rmq.cli.rmq_broker", "start", "--listen", address, "--data-dir", str(data), *OPTIONS) as starting:
        await asyncio.sleep(after_s)
        starting.kill()


def _count(numbers: Stored) -> int:
    return sum(map(len, numbers.values()))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="kill -9 a real broker under load, again and again")
    parser.add_argument("--cycles", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for all of it")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}, {chosen.cycles} cycles", flush=True)
    asyncio.run(run(chosen.cycles, chosen.seed, chosen.limit))


if __name__ == "__main__":
    main()
