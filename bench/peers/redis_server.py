"""Redis streams: a server with an append-only file, and ``redis-benchmark`` beside its Python client."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..options import Load
from ..processes import WORK_S, BenchError
from .client import STREAM, WARM_UP
from .peer import Peer, missing_client, missing_server
from .server import LOCAL, Server, asked, found, free_port, run_server

PIPELINE = 100  # requests that redis-benchmark sends at once on each of its 50 connections
DURABILITY = {
    "everysec": "fsync every second",
    "always": "fsync before answers",
}


def peer(fsync: str) -> Peer:
    """Redis with this ``appendfsync``."""
    no_server = missing_server("redis-server", "redis-server")
    return Peer(
        name="redis",
        durability=DURABILITY[fsync],
        why_not=no_server or missing_client("redis", "hiredis"),
        client="rmq.bench.peers.redis_client",
        start=partial(start, fsync=fsync),
        native=benchmark,
        native_why_not=no_server or missing_server("redis-benchmark", "redis-tools"),
    )


def configuration(port: int, folder: Path, fsync: str) -> str:
    """The whole of its settings: nothing of the machine's own is read. The file is never rewritten while we measure."""
    settings = {
        "bind": LOCAL,
        "port": port,
        "dir": folder,
        "daemonize": "no",
        "save": '""',
        "appendonly": "yes",
        "appendfsync": fsync,
        "auto-aof-rewrite-percentage": 0,
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())


@contextmanager
def start(folder: Path, fsync: str) -> Iterator[Server]:
    """A server that runs."""
    port = free_port()
    settings = folder / "redis.conf"
    settings.write_text(configuration(port, folder, fsync))
    with run_server(
        "redis-server", [found("redis-server"), str(settings)], port, folder, ask=b"PING\r\n", answer=b"+PONG"
    ) as server:
        yield server


def benchmark(load: Load, server: Server) -> float:
    """What ``redis-benchmark`` says of as many XADD, after a warm-up; its bodies are all the same."""
    redis_benchmark(server, load, "warm-up", min(load.messages, WARM_UP))
    rate = redis_benchmark(server, load, STREAM, load.messages)
    stored = int(asked(server.port, f"XLEN {STREAM}\r\n".encode()).strip(b":\r\n"))
    if stored < load.messages:
        raise BenchError(f"redis has {stored} messages of redis-benchmark instead of {load.messages}")
    return rate


def redis_benchmark(server: Server, load: Load, stream: str, messages: int) -> float:
    """Requests a second."""
    command = [found("redis-benchmark"), "-h", LOCAL, "-p", str(server.port), "-P", str(PIPELINE), "-n", str(messages)]
    xadd = ["XADD", stream, "*", "body", "x" * load.size]
    done = subprocess.run([*command, "--csv", *xadd], capture_output=True, text=True, timeout=WORK_S, check=False)
    if done.returncode:
        raise BenchError(f"redis-benchmark failed: {done.stderr.strip()}")
    return requests_per_second(done.stdout)


def requests_per_second(text: str) -> float:
    """The rate in the table that ``redis-benchmark --csv`` prints."""
    rows = list(csv.DictReader(text.splitlines()))
    if len(rows) != 1 or "rps" not in rows[0]:
        raise BenchError(f"redis-benchmark said something else than its rate: {text.strip()[:200]!r}")
    return float(rows[0]["rps"])
