"""The rounds of the latency benchmark: which processes take part in each, and in which order they begin and end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rmq.client import Admin

from ..load import Load
from ..options import Options
from ..processes import START_S, Child, worker_process

FLOOD = 50_000  # bodies that a flood sends again and again


@dataclass(frozen=True)
class Sizes:
    """How much of each part makes a round."""

    single_s: float = 1.5
    connections: int = 50  # of the parked pulls
    queues: int = 20  # of each of these connections
    drips: int = 160  # messages to parked pulls
    drips_per_s: float = 20
    rate: int = 20_000  # messages a second
    rate_s: float = 4.0
    rate_warm_s: float = 1.0
    pings: int = 300
    pings_per_s: float = 100
    flood_warm_s: float = 0.3
    echoes: int = 5_000
    syncs: int = 200


QUICK = Sizes(
    single_s=0.2, connections=5, drips=10, drips_per_s=50, rate_s=0.2, rate_warm_s=0.1, pings=20, echoes=500, syncs=20
)  # fmt: skip


class Scheduled(NamedTuple):
    """Latencies from when each was due, how late the client itself was, in microseconds; what went on beside it."""

    took_us: list[float]
    behind_us: list[float]
    beside: float = 0.0


class Runs:
    """Each call is a round with processes of its own; values are microseconds."""

    def __init__(self, load: Load, options: Options, sizes: Sizes) -> None:
        self._load = load
        self._options = options
        self._sizes = sizes

    def single(self, flush: str) -> list[float]:
        """Round trips of sends, one at a time."""
        with self._ground(1, self._load.queues, flush) as (address, (topic,)):
            orders = {"address": address, "topic": topic, "size": self._load.size, "seconds": self._sizes.single_s}
            with _clients(("latency_single", orders)) as (sender,):
                sender.go()
                return list(sender.told()["us"])

    def rate(self) -> Scheduled:
        """From when a message was due to the call of its listener, at a steady rate."""
        sizes, queues = self._sizes, self._load.queues
        warm, count = int(sizes.rate * sizes.rate_warm_s), int(sizes.rate * sizes.rate_s)
        with self._ground(1, queues) as (address, topics):
            common = {"address": address, "topics": topics, "queues": queues, "warm": warm, "count": count}
            receives = {**common, "rounds": 1, "ahead": False}
            sends = {**common, "manner": "stream", "size": self._load.size, "per_second": sizes.rate}
            with _clients(("latency_receiver", receives), ("latency_sender", sends)) as (receiver, sender):
                receiver.go()
                sender.go()
                behind = sender.told()["us"]
                return Scheduled(receiver.told()["us"], behind)

    def ping(self) -> Scheduled:
        """From when a ping was due to its answer, and how many messages a second the flood beside it sent."""
        sizes, load = self._sizes, replace(self._load, messages=FLOOD)
        with self._ground(1, load.queues) as (address, (topic,)):
            floods = {"address": address, "topic": topic, "load": load.as_object(), "warm_s": sizes.flood_warm_s}
            pings = {"address": address, "per_second": sizes.pings_per_s, "count": sizes.pings}
            with _clients(("latency_ping", pings), ("latency_flood", floods)) as (pinger, flood):
                pinger.go()
                told = pinger.told()
                flood.go()
                return Scheduled(told["us"], told["behind_us"], flood.told()["rate"])

    def wake(self, rounds: int) -> Generator[list[float], None, None]:
        """
        From when a message was due to the call of its listener, round by round.

        All rounds are of the same processes: pulls end and begin anew meanwhile as they would, without any message.
        """
        sizes = self._sizes
        with self._ground(sizes.connections, sizes.queues) as (address, topics):
            common = {"address": address, "topics": topics, "queues": sizes.queues}
            warm = sizes.connections * sizes.queues
            receives = {**common, "warm": warm, "count": sizes.drips, "rounds": rounds, "ahead": True}
            sends = {
                **common, "manner": "drip", "size": self._load.size, "per_second": sizes.drips_per_s,
                "count": rounds * sizes.drips,
            }  # fmt: skip
            with _clients(("latency_sender", sends), ("latency_receiver", receives)) as (sender, receiver):
                receiver.go()
                sender.go()
                for _ in range(rounds):
                    yield list(receiver.told()["us"])

    @contextmanager
    def _ground(self, topics: int, queues: int, flush: str | None = None) -> Iterator[tuple[str, list[str]]]:
        """A broker with topics of this run; they do not stay in a broker of somebody else."""
        run = secrets.token_hex(4)
        names = [f"bench-latency-{run}-{number}" for number in range(topics)]
        with self._options.ground(flush) as address:
            asyncio.run(_create(address, names, queues))
            try:
                yield address, names
            finally:
                if self._options.broker is not None:
                    asyncio.run(_delete(address, names))


async def _create(address: str, topics: list[str], queues: int) -> None:
    async with Admin(address) as admin:
        for topic in topics:
            await admin.create_topic(topic, queues)


async def _delete(address: str, topics: list[str]) -> None:
    async with Admin(address) as admin:
        for topic in topics:
            await admin.delete_topic(topic)


@contextmanager
def _clients(*orders: tuple[str, dict[str, Any]]) -> Iterator[list[Child]]:
    """Clients that prepare beside each other and are all ready to begin: a module of this package and its orders."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(worker_process(f"rmq.bench.workers.{module}", **told)) for module, told in orders
        ]
        for client in clients:
            client.told(START_S)
        yield clients
