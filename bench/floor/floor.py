"""
Measures the least that a message loop in Python costs on this machine, which our broker is compared with.

- The *floor* packs, sends, appends and unpacks the same batches as a broker, on uvloop and msgpack, and nothing else:
  no check, no CRC, no recovery, no index on disk.
- The *bare socket-to-file loop* does not even know messages: one process sends the bytes of all bodies by a blocking
  socket, another writes them to a file as they come and acknowledges once, at the end.
- ``fdatasync`` alone, and the round trip of an empty msgpack frame.

Each function starts its processes, warms up, measures once and removes all that it made.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from ..options import Load
from ..processes import START_S, BenchError, Child, free_bytes, scratch, worker
from .client import warm

Rate = Callable[[Load], float]  # messages a second

SERVER = "rmq.bench.floor.server"
CLIENT = "rmq.bench.floor.client"
SYNCED = 1 << 29  # bytes that are written to time fdatasync
SPARE = 1 << 28  # bytes of the disk that are never touched


def produce(load: Load) -> float:
    """Messages a second: bodies made before the clock are packed, sent, appended to a file and answered."""
    with _room(load) as folder, _server("log", path=str(folder / "log"), queues=load.queues) as ports:
        return _rate("produce", ports, load)


def consume(load: Load) -> float:
    """Messages a second: a backlog is pulled and unpacked, and an ``async def`` listener awaited for each message."""
    with _room(load) as folder, _server("log", path=str(folder / "log"), queues=load.queues) as ports:
        return _rate("consume", ports, load)


def socket_to_file(load: Load) -> float:
    """Messages a second: their bytes through a blocking socket into a file, and one acknowledgement at the end."""
    sizes = [each.messages * each.size for each in (warm(load), load)]
    with _room(load) as folder, _server("drain", path=str(folder / "log"), sizes=sizes) as ports:
        return _rate("pour", ports, load)


def fdatasync_ms(size: int = 50_000, times: int = 200) -> float:
    """Milliseconds to append one batch to a file and flush it: the median of so many, of fewer where it is large."""
    took = []
    times = max(3, min(times, SYNCED // size))
    with scratch() as folder, open(folder / "log", "ab", buffering=0) as file:
        for _ in range(times):
            batch = os.urandom(size)
            began = perf_counter()
            file.write(batch)
            os.fdatasync(file.fileno())
            took.append(perf_counter() - began)
    return median(took) * 1e3


def echo_ms(times: int = 5_000) -> float:
    """Milliseconds of a round trip of an empty msgpack frame between two processes, one at a time: the median."""
    with _server("echo") as ports, worker(CLIENT, what="echo", ports=ports, times=times) as client:
        client.go()
        return float(client.reply()["took"]) * 1e3


@contextmanager
def _room(load: Load) -> Iterator[Path]:
    """A directory with room for the load."""
    with scratch() as folder:
        needed = (load.messages + warm(load).messages) * (load.size + 64) + SPARE
        if free_bytes(folder) < needed:
            raise BenchError(f"the floor needs {needed / 1e9:.1f} GB of disk in {folder.parent}")
        yield folder


@contextmanager
def _server(what: str, **orders: Any) -> Iterator[dict[str, int]]:
    """The ports of a server of ours."""
    child = Child(f"{what} server", [sys.executable, "-m", SERVER, json.dumps({"what": what, **orders})])
    try:
        yield child.reply(START_S)["ports"]
    finally:
        child.close()


def _rate(what: str, ports: dict[str, int], load: Load) -> float:
    with worker(CLIENT, what=what, ports=ports, load=load.as_object()) as client:
        client.go()
        done = client.reply()
    if done["messages"] != load.messages:
        raise BenchError(f"the floor counted {done['messages']} messages of {load.messages}")
    return load.messages / float(done["took"])
