"""``rmq-bench``: how fast it is here, through the public API and with every check on."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from rmq.wire.names import MAX_QUEUES

from . import exit_codes
from .bench_load import Load, Result
from .child import child, line_of, own_broker
from .command import Command, Failure, Group, run, version_option
from .options import json_option, log_options
from .progress import progress
from .reach import require_broker
from .render import to_json

if TYPE_CHECKING:
    from rmq.client import Producer
    from rmq.consumer import ConsumeContext
    from rmq.wire.model import ConsumeStatus, StoredMessage

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _load_options(callback: Callable[..., Any]) -> Callable[..., Any]:
    options: list[Decorator] = [
        click.option("--messages", type=click.IntRange(1), default=1_000_000, show_default=True, help="How many."),
        click.option("--size", type=click.IntRange(1, 1 << 22), default=100, show_default=True, help="Bytes of each."),
        click.option("--batch", type=click.IntRange(1), default=500, show_default=True, help="Messages a send call."),
        click.option(
            "--queues", type=click.IntRange(1, MAX_QUEUES), default=8, show_default=True, help="Queues of the topic."
        ),
        click.option("--in-flight", type=click.IntRange(1), default=64, show_default=True, help="Send calls at once."),
        click.option("--flush", type=click.Choice(["sync", "async"]), help="How its own broker acknowledges."),
        click.option(
            "--broker",
            metavar="HOST:PORT",
            help="A broker that runs already; without, one is started for the run.",
        ),
    ]
    for option in reversed(options):
        callback = option(callback)
    return callback


@click.group(
    cls=Group,
    examples="""
    rmq-bench produce
    rmq-bench end-to-end --messages 200000 --size 1024 --flush async
    rmq-bench produce --broker 127.0.0.1:10911 --json
    rmq-bench failover
    """,
)
@version_option
def command() -> None:
    """
    Measure this machine: messages and megabytes a second, and how long a take-over lasts.

    Everything goes through the public API, every check is on, and no two messages are alike. Numbers of different
    machines say little about each other.
    """


@command.command(
    cls=Command,
    examples="""
    rmq-bench produce
    rmq-bench produce --messages 5000000 --batch 2000 --flush async --json
    """,
)
@_load_options
@json_option
@log_options("warning")
def produce(as_json: bool, **options: Any) -> None:
    """One process sends; the clock stops with the last receipt."""
    click.echo(_shown(run(_produce(**options)), as_json))


@command.command(
    cls=Command,
    examples="""
    rmq-bench end-to-end
    rmq-bench end-to-end --messages 200000 --queues 16 --json
    """,
)
@_load_options
@json_option
@log_options("warning")
def end_to_end(as_json: bool, **options: Any) -> None:
    """
    One process sends while another consumes in order, message by message.

    The rate is messages / (last one consumed - first one sent).
    """
    click.echo(_shown(run(_end_to_end(**options)), as_json))


@command.command(cls=Command, hidden=True)
@click.option("--broker", required=True)
@click.option("--topic", required=True)
@click.option("--warm-up", type=int, required=True)
@click.option("--messages", type=int, required=True)
@log_options("warning")
def consume_all(broker: str, topic: str, warm_up: int, messages: int) -> None:
    """The consuming process of end-to-end."""
    run(_consume_all(broker, topic, Counter(warm_up, messages)))


@command.command(
    cls=Command,
    examples="""
    rmq-bench failover
    rmq-bench failover --repeats 3 --queues 16 --members 5 --json
    """,
)
@click.option("--repeats", type=click.IntRange(1), default=10, show_default=True, help="How often each is measured.")
@click.option("--queues", type=click.IntRange(2, 1024), default=8, show_default=True, help="Queues of the topic.")
@click.option("--members", type=click.IntRange(2, 64), default=3, show_default=True, help="Consumers at once, at most.")
@click.option("--rate", type=click.IntRange(1), default=1000, show_default=True, help="Messages sent a second.")
@json_option
@log_options("error")
def failover(as_json: bool, queues: int, members: int, **options: int) -> None:
    """
    Consumers are killed, stopped and added under load; how long are their queues without one?

    Everything is at default settings, with a broker of its own. Each repeat lets a consumer join, stops the oldest
    (SIGTERM), lets one join, and kills the oldest (SIGKILL).
    """
    from .bench_failover import measure
    from .bench_figures import as_table

    if members > queues:
        raise click.UsageError("--members must not be more than --queues: the rest would have nothing to do.")
    figures = run(measure(queues=queues, members=members, **options))
    about = {"benchmark": "failover", "queues": queues, "members": members, **options}
    if as_json:
        click.echo(to_json({**about, "figures": [figure.as_object() for figure in figures]}))
    else:
        click.echo("failover: " + ", ".join(f"{name} {value}" for name, value in list(about.items())[1:]))
        click.echo(as_table(figures), nl=False)


@command.command(cls=Command, hidden=True)
@click.option("--broker", required=True)
@log_options("error")
def failover_member(broker: str) -> None:
    """A consuming process of failover."""
    from .bench_failover import take_part

    run(take_part(broker))


def _shown(result: Result, as_json: bool) -> str:
    return to_json(result.as_object()) if as_json else str(result)


async def _produce(*, broker: str | None, queues: int, flush: str | None, **load: int) -> Result:
    from rmq.client import Producer

    async with _ground(broker, queues, flush, **load) as (address, work, about), Producer(address) as producer:
        work.prepare()
        began = time.perf_counter()
        await _send_all(producer, work)
        return Result("produce", work, time.perf_counter() - began, about)


async def _end_to_end(*, broker: str | None, queues: int, flush: str | None, **load: int) -> Result:
    from rmq.client import Producer

    async with AsyncExitStack() as stack:
        address, work, about = await stack.enter_async_context(_ground(broker, queues, flush, **load))
        work.prepare()
        what = ("--topic", work.topic, "--warm-up", str(queues), "--messages", str(work.messages))
        consumer = await stack.enter_async_context(
            child("rmq.cli.rmq_bench", "consume-all", "--broker", address, *what)
        )
        producer = await stack.enter_async_context(Producer(address))
        for queue_id in range(queues):
            await producer.send_bodies(work.topic, [b"warm-up"], queue_id=queue_id)
        await line_of(consumer, 60.0)  # it owns every queue
        began = time.monotonic()
        await _send_all(producer, work)
        done = json.loads(await line_of(consumer, 600.0))
    if done["bytes"] != work.messages * work.size:
        raise Failure(f"{done['bytes']} bytes arrived instead of {work.messages * work.size}", exit_codes.FAILURE)
    # The monotonic clock is the machine's, not the process's.
    return Result("end-to-end", work, done["last_at"] - began, about)


@asynccontextmanager
async def _ground(
    broker: str | None, queues: int, flush: str | None, **load: int
) -> AsyncIterator[tuple[str, Load, dict[str, Any]]]:
    """A broker with a new topic: its address, the load, and what to say about both."""
    from rmq.client import Admin

    if broker is not None and flush is not None:
        raise click.UsageError("--flush is for the broker that rmq-bench starts itself; it does not go with --broker.")
    if broker is not None:
        await require_broker(broker)
    async with AsyncExitStack() as stack:
        mode = flush or "sync"
        address = broker if broker is not None else await stack.enter_async_context(own_broker("--flush", mode))
        work = Load(f"bench-{secrets.token_hex(4)}", **load)
        async with Admin(address) as admin:
            await admin.create_topic(work.topic, queues)
        yield address, work, {"queues": queues, "flush": None if broker else mode}


async def _send_all(producer: Producer, work: Load) -> None:
    batches, sent = work.batches(), 0

    async def send_in_turn() -> None:
        nonlocal sent
        for bodies in batches:  # shared: each list is taken once
            await producer.send_bodies(work.topic, bodies)
            sent += len(bodies)

    async with progress("sending", work.messages, lambda: sent), asyncio.TaskGroup() as tasks:
        for _ in range(work.in_flight):
            tasks.create_task(send_in_turn())


class Counter:
    """The listener of the consuming process: first the warm-up, then the messages that count."""

    def __init__(self, warm_up: int, messages: int) -> None:
        from rmq.wire.model import ConsumeStatus

        self.warm = asyncio.Event()
        self.done = asyncio.Event()
        self.bytes = 0
        self.last_at = 0.0
        self._warm_up = warm_up
        self._left = messages
        self._success = ConsumeStatus.SUCCESS

    async def __call__(self, messages: Sequence[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Count."""
        if self._warm_up:
            self._count_warm_up(len(messages))
            return self._success
        for message in messages:
            self.bytes += len(message.body)
        self._left -= len(messages)
        if self._left <= 0:
            self.last_at = time.monotonic()
            self.done.set()
        return self._success

    def _count_warm_up(self, count: int) -> None:
        self._warm_up -= count
        if self._warm_up <= 0:
            self.warm.set()


async def _consume_all(broker: str, topic: str, counter: Counter) -> None:
    from rmq.consumer import Consumer

    async with Consumer(broker, group="bench", listener=counter, orderly=True, topics={topic: "*"}):
        await counter.warm.wait()
        click.echo("warm")
        await counter.done.wait()
    click.echo(to_json({"bytes": counter.bytes, "last_at": counter.last_at}))


def main() -> None:
    """Run the command."""
    command(prog_name="rmq-bench")


if __name__ == "__main__":
    main()
