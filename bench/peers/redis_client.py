"""
The quickest way to Redis streams that redis-py has: its blocking connection with hiredis, and requests sent ahead.

Its ``Pipeline`` costs twice the processor time for the same requests, its asyncio client four times (what they spend
is between us and the connection, not on the wire), so the requests of a batch are packed and sent by the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import redis

from ..options import Load
from ..processes import run
from .client import Listener, fetched, work
from .server import LOCAL

AHEAD = 2000  # messages that wait for their answers; more is not quicker
# A read that blocks gives each message by itself where the producer is slower: a batch gathers in this time instead.
PAUSE_S = 0.005
GROUP, CONSUMER = "group", "consumer"


class RedisClient:
    """One connection for the messages; requests about streams go their own way."""

    def __init__(self, port: int) -> None:
        self._redis = redis.Redis(host=LOCAL, port=port, protocol=2)
        self._connection: Any = self._redis.connection_pool.get_connection()

    async def create(self, stream: str) -> None:
        """Make the stream by making its group; also where another client did."""
        try:
            self._redis.xgroup_create(stream, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def produce(self, stream: str, load: Load, batches: list[list[bytes]]) -> None:
        """Pipelines of XADD, some of them ahead of their answers."""
        ahead = max(1, min(AHEAD // load.batch, load.in_flight))
        waiting: deque[int] = deque()
        for bodies in batches:
            self._send([("XADD", stream, "*", "body", body) for body in bodies])
            waiting.append(len(bodies))
            if len(waiting) == ahead:
                self._read(waiting.popleft())
        self._read(sum(waiting))

    async def consume(self, stream: str, load: Load, listener: Listener) -> None:
        """XREADGROUP of a batch while the one before is handled, together with the XACK of the one before that."""
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
        """As the stream counts."""
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
