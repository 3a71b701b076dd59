"""
The clients of a load as processes: topics of their own, all ready before the first one starts.

Times are on the machine's monotonic clock, which every process shares.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import uvloop

from rmq.client import Admin, Producer
from rmq.wire.model import MessageQueue

from .options import Load, Options
from .processes import START_S, BenchError, Child, free_bytes, free_memory, scratch, worker_process
from .workers.sending import prepared, send_all, warm_up

OVERHEAD = 64  # bytes that a message takes in addition to its body, at most: its key, its share of a header, its index
OBJECT = 200  # bytes that a message takes in memory in addition to its body, about
HELD = 2  # times that a client may hold its messages: as they were made, and on their way
SPARE = 256 << 20  # bytes that a disk should have left over


@dataclass(frozen=True)
class Ground:
    """A broker with two new topics, one for what is measured and one to warm up with."""

    address: str
    queues: int
    topic: str

    @property
    def warm_topic(self) -> str:
        """The topic of what is sent and consumed before any clock runs."""
        return f"{self.topic}-warm"

    def ends(self) -> list[int]:
        """Return the end of each queue, which is also its number of messages."""
        return uvloop.run(self._ends())

    async def _ends(self) -> list[int]:
        async with Admin(self.address) as admin:
            held = await admin.ranges(MessageQueue(self.topic, number) for number in range(self.queues))
        return [queue.max_offset for queue in held]

    def fill_warm_up(self, load: Load) -> int:
        """Send what consumers warm up with; return how many messages."""
        small = warm_up(load)

        async def fill() -> None:
            async with Producer(self.address) as producer:
                await send_all([producer], *prepared("bodies", self.warm_topic, small), small.in_flight)

        uvloop.run(fill())
        return small.messages


@contextmanager
def new_ground(options: Options, load: Load, flush: str | None = None) -> Iterator[Ground]:
    """Give a ground for one sample."""
    topic = f"bench-{secrets.token_hex(4)}"
    with new_topics(options, (topic, f"{topic}-warm"), load.queues, flush) as address:
        yield Ground(address, load.queues, topic)


@contextmanager
def new_topics(options: Options, topics: Sequence[str], queues: int, flush: str | None = None) -> Iterator[str]:
    """Create topics in the broker of one sample, and give its address; a broker that keeps running loses them again."""

    async def create(address: str) -> None:
        async with Admin(address) as admin:
            for topic in topics:
                await admin.create_topic(topic, queues)

    async def delete(address: str) -> None:
        async with Admin(address) as admin:
            for topic in topics:
                await admin.delete_topic(topic)

    with options.ground(flush) as address:
        uvloop.run(create(address))
        try:
            yield address
        finally:
            if options.broker is not None:
                uvloop.run(delete(address))


def durability(options: Options) -> str:
    """Return the flush mode that is measured: a broker that already runs has its own."""
    if options.broker is None:
        return options.flush
    return str(uvloop.run(_flush_of(options.broker)))


async def _flush_of(address: str) -> Any:
    async with Admin(address) as admin:
        return (await admin.config())["flush"]


def no_room(load: Load, copies: int = 1) -> str:
    """Return why the disk or the memory has no room for the load, empty if both have."""
    with scratch() as folder:
        rooms = {
            "disk": (free_bytes(folder), copies * load.messages * (load.size + OVERHEAD) + SPARE),
            "machine": (free_memory(), HELD * load.messages * (load.size + OBJECT)),
        }
    for of, (free, needed) in rooms.items():
        if free < needed:
            what = "MB of memory" if of == "machine" else "MB"
            return f"the {of} has {free / 1e6:,.0f} {what} left, and {needed / 1e6:,.0f} are needed"
    return ""


@contextmanager
def crew(module: str, orders: Sequence[Mapping[str, Any]]) -> Iterator[list[Child]]:
    """Start a client for each of the orders; all are ready to begin."""
    with ExitStack() as stack:
        children = [stack.enter_context(worker_process(module, **each)) for each in orders]
        for child in children:
            child.reply(START_S)
        yield children


@dataclass(frozen=True)
class Sent:
    """When the first call of all producers began, when the last one ended, and when the last key was found."""

    began: float
    ended: float
    indexed: float


@dataclass(frozen=True)
class Received:
    """When the first of all consumers was let begin, and when the last message came."""

    began: float
    last_at: float


@contextmanager
def senders(ground: Ground, load: Load, style: str) -> Iterator[list[Child]]:
    """Start the processes that send; all are ready to begin."""
    if load.producers > load.messages:
        raise BenchError(f"{load.producers} producers of {load.messages} messages: some would have nothing to send")
    about = {"address": ground.address, "topic": ground.topic, "warm_topic": ground.warm_topic, "style": style}
    parts = range(load.producers)
    with crew(
        "rmq.bench.workers.sending", [{**about, "load": load.share(n).as_object(), "part": n} for n in parts]
    ) as ready:
        yield ready


@contextmanager
def receivers(ground: Ground, load: Load, style: str, *, warm: int, paused: bool) -> Iterator[list[Child]]:
    """Start the processes that consume as one new group; all are ready to begin."""
    if load.consumers > load.queues:
        raise BenchError(f"{load.consumers} consumers of {load.queues} queues: some would have nothing to do")
    about = {
        "address": ground.address, "style": style, "topic": ground.topic, "messages": load.messages,
        "warm_topic": ground.warm_topic, "warm_messages": warm, "group": f"bench-{secrets.token_hex(4)}",
        "queues": load.queues, "consumers": load.consumers, "paused": paused,
    }  # fmt: skip
    with crew("rmq.bench.workers.receiving", [{**about, "part": number} for number in range(load.consumers)]) as ready:
        yield ready


def begin(children: Sequence[Child]) -> None:
    """Send all of them the start signal."""
    for child in children:
        child.go()


def send(children: Sequence[Child]) -> Sent:
    """Start producers and wait for the last of them."""
    begin(children)
    replies = [child.reply() for child in children]
    return Sent(
        min(each["began"] for each in replies),
        max(each["ended"] for each in replies),
        max(each["indexed"] for each in replies),
    )


def receive(children: Sequence[Child], load: Load, ends: Sequence[int]) -> Received:
    """Send the ends of the queues to consumers that have begun, and wait until they are there."""
    for child in children:
        child.send(ends=list(ends))
    return gathered([child.reply() for child in children], load)


def gathered(replies: Sequence[Mapping[str, Any]], load: Load) -> Received:
    """Combine what consumers report; together they must have got all of the load, and nothing else."""
    count, size = (sum(each[name] for each in replies) for name in ("count", "bytes"))
    if (count, size) != (load.messages, load.messages * load.size):
        raise BenchError(
            f"{count} messages of {size} bytes came instead of {load.messages} of {load.messages * load.size}"
        )
    return Received(min(each["began"] for each in replies), max(each["last_at"] for each in replies))


def check_stored(ground: Ground, load: Load) -> list[int]:
    """Return the ends of the queues; everything that was sent must be stored."""
    ends = ground.ends()
    if sum(ends) != load.messages:
        raise BenchError(f"{sum(ends)} messages are stored instead of {load.messages}")
    return ends
