"""
Redis streams: a server with an append-only file, its ``redis-benchmark``, and the quickest way that redis-py has.

That is its blocking connection with hiredis, and requests sent ahead. Its ``Pipeline`` costs twice the processor time
for the same requests, its asyncio client four times (what they spend is between us and the connection, not on the
wire), so the requests of a batch are packed and sent by the connection.
"""

from __future__ import annotations

import asyncio
import csv
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rmq.bench.options import Load
from rmq.bench.processes import WORK_S, BenchError, run

from .client import STREAM, WARM_UP, Listener, fetched, work
from .peer import LOCAL, PeerBroker, Server, asked, found, free_port, missing_client, missing_server, run_server

AHEAD = 2000  # messages that wait for their answers; more is not quicker
# A read that blocks gives each message by itself where the producer is slower: a batch gathers in this time instead.
PAUSE_S = 0.005
GROUP, CONSUMER = "group", "consumer"
PIPELINE = 100  # requests that redis-benchmark sends at once on each of its 50 connections
DURABILITY = {
    "everysec": "fsync every second",
    "always": "fsync before answers",
}


def peer(fsync: str) -> PeerBroker:
    """Redis with this ``appendfsync``."""
    no_server = missing_server("redis-server", "redis-server")
    return PeerBroker(
        name="redis",
        durability=DURABILITY[fsync],
        why_not=no_server or missing_client("redis", "hiredis"),
        client="peers.redis_streams",
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
    """Start a server."""
    port = free_port()
    settings = folder / "redis.conf"
    settings.write_text(configuration(port, folder, fsync))
    with run_server(
        "redis-server", [found("redis-server"), str(settings)], port, folder, ask=b"PING\r\n", answer=b"+PONG"
    ) as server:
        yield server


def benchmark(load: Load, server: Server) -> float:
    """Run ``redis-benchmark`` with as many XADD, after a warm-up; its bodies are all the same."""
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


class RedisClient:
    """One connection for the messages; requests about streams go their own way."""

    def __init__(self, port: int) -> None:
        import redis

        self._redis = redis.Redis(host=LOCAL, port=port, protocol=2)
        self._connection: Any = self._redis.connection_pool.get_connection()

    async def create(self, stream: str) -> None:
        """Make the stream by making its group; also where another client did."""
        import redis

        try:
            self._redis.xgroup_create(stream, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def produce(self, stream: str, load: Load, batches: list[list[bytes]]) -> None:
        """Send pipelines of XADD, some of them ahead of their answers."""
        ahead = max(1, min(AHEAD // load.batch, load.in_flight))
        waiting: deque[int] = deque()
        for bodies in batches:
            self._send([("XADD", stream, "*", "body", body) for body in bodies])
            waiting.append(len(bodies))
            if len(waiting) == ahead:
                self._read(waiting.popleft())
        self._read(sum(waiting))

    async def consume(self, stream: str, load: Load, listener: Listener) -> None:
        """Send XREADGROUP of a batch while handling the one before, together with the XACK of the one before that."""
        batch = fetched(load)
        read = ("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", batch, "STREAMS", stream, ">")
        left = load.messages
        handled: list[bytes] = []

        def ask() -> int:
            acknowledge = [("XACK", stream, GROUP, *handled)] if handled else []
            handled.clear()
            self._send([*acknowledge, read])
            return len(acknowledge)

        acknowledgements = ask()
        while left:
            self._read(acknowledgements)
            found = self._connection.read_response()
            entries = found[0][1] if found else []
            left -= len(entries)
            if is_full := left and len(entries) == batch:
                acknowledgements = ask()
            for entry in entries:
                await listener(entry)
            handled += [entry[0] for entry in entries]
            if left and not is_full:
                await asyncio.sleep(PAUSE_S)
                acknowledgements = ask()
        self._redis.xack(stream, GROUP, *handled)

    async def stored(self, stream: str) -> int:
        """Return the length of the stream."""
        return int(self._redis.xlen(stream))

    def _send(self, requests: list[tuple[Any, ...]]) -> None:
        self._connection.send_packed_command(self._connection.pack_commands(requests), check_health=False)

    def _read(self, answers: int) -> None:
        read = self._connection.read_response  # raises what the server refuses
        for _ in range(answers):
            read()


async def main(role: str, port: int, load: dict[str, Any]) -> None:
    """One client."""
    await work(RedisClient(port), role, Load(**load))


if __name__ == "__main__":
    run(main)
