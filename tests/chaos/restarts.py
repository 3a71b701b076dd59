"""
Rolling restarts of real consumers, by SIGTERM and with SIGKILL while they drain; then a message that kills for certain.

    python tests/chaos/restarts.py --stops 20 --kills 20

One consumer at a time has the queue, each of another kind: with asyncio or without, called or asking. Each is signalled
while it works on a message. Those that are only asked to stop must finish it, end with 0 and give the queue back at
once; those that are killed as well, as a supervisor does that waits too briefly, must not be taken for crashed. Every
message is finished once, in order. A group whose listener ends its process is stopped after five of them all the same.

Everything stays on this machine, every process is ended by its id, and every wait has a limit. `make chaos` runs 20 of
each, the tests a few.
"""

# ruff: noqa: E402  # as a script, this has to say first where its helpers are

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))

from rmq import consumer as with_asyncio
from rmq.client import Admin, Message, Producer
from rmq.consumer import ConsumeStatus, sync
from rmq.consumer import sync as without

from rigs.processes import BrokerProcess, Running, with_tests

TOPIC, GROUP, DEADLY = "orders", "restarts", "deadly"
OPTIONS = ("-o", "grace_s=1.5", "-o", "min_free_bytes=0", "-o", "flush=sync")
CALL_S = 0.3  # of those that are asked to stop
LONG_S = 300.0  # of those that are killed
CRASH_LIMIT = 5
PATIENCE_S = 30.0


# ---- a consumer's process


def note(what: str, offset: int) -> None:
    """Write a line that is read before anything else happens."""
    print(what, offset, flush=True)


async def run_asyncio(address: str, takes_s: float) -> None:
    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        note("begin", messages[0].queue_offset)
        await asyncio.sleep(takes_s)
        note("end", messages[0].queue_offset)
        return ConsumeStatus.SUCCESS

    async with with_asyncio.Consumer(address, group=GROUP, listener=listener, topics={TOPIC: "*"}) as consumer:
        await consumer.run()


async def poll_asyncio(address: str, takes_s: float) -> None:
    async with with_asyncio.PullConsumer(address, group=GROUP, topics={TOPIC: "*"}, batch=1) as consumer:
        async for batch in consumer:
            note("begin", batch[0].queue_offset)
            await asyncio.sleep(takes_s)
            note("end", batch[0].queue_offset)


def run_blocking(address: str, takes_s: float) -> None:
    def listener(messages: Any, context: Any) -> ConsumeStatus:
        note("begin", messages[0].queue_offset)
        threading.Event().wait(takes_s)
        note("end", messages[0].queue_offset)
        return ConsumeStatus.SUCCESS

    with without.Consumer(address, group=GROUP, listener=listener, topics={TOPIC: "*"}) as consumer:
        consumer.run()


def poll_blocking(address: str, takes_s: float) -> None:
    with sync.PullConsumer(address, group=GROUP, topics={TOPIC: "*"}, batch=1) as consumer:
        for batch in consumer:
            note("begin", batch[0].queue_offset)
            threading.Event().wait(takes_s)
            note("end", batch[0].queue_offset)


async def run_deadly(address: str, takes_s: float) -> None:
    """Ends its process at the first message; says so when the queue was stopped instead."""

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        note("begin", messages[0].queue_offset)
        os.kill(os.getpid(), signal.SIGKILL)
        return ConsumeStatus.SUCCESS

    async with with_asyncio.Consumer(address, group=DEADLY, listener=listener, topics={TOPIC: "*"}) as consumer:
        running = asyncio.create_task(consumer.run())
        while not consumer.stopped_queues and not running.done():
            await asyncio.sleep(0.02)
        print(*consumer.stopped_queues.values(), flush=True)
        await running


KINDS: dict[str, Callable[[str, float], Any]] = {
    "run": run_asyncio, "poll": poll_asyncio, "run-blocking": run_blocking, "poll-blocking": poll_blocking,
}  # fmt: skip


class ConsumerProcess(Running):
    """This file as a consumer."""

    def __init__(self, address: str, kind: str, takes_s: float = 0.0) -> None:
        super().__init__("chaos.restarts", "--consume", kind, address, str(takes_s), env=with_tests())

    def until_begun(self) -> None:
        """Wait until it works on a message."""
        self.wait_for(lambda lines: any(line.startswith("begin") for line in lines), "a call")


# ---- the run


class Group:
    """One consumer after the other, and what they said."""

    def __init__(self, address: str, stack: ExitStack) -> None:
        self._address, self._stack = address, stack
        self.lines: list[str] = []
        self._started = 0

    def begin(self, takes_s: float) -> ConsumerProcess:
        """The next consumer, of the next kind, when it works on a message."""
        kind = list(KINDS)[self._started % len(KINDS)]
        self._started += 1
        process = self._stack.enter_context(ConsumerProcess(self._address, kind, takes_s))
        process.until_begun()
        return process

    def ended(self, process: ConsumerProcess) -> None:
        """Take over what a consumer said."""
        assert process.errors == [], process.errors
        self.lines += process.lines

    def check_order(self) -> int:
        """Every message was finished once and in order, and begun again only if it was not; how many were."""
        done = 0
        for line in self.lines:
            what, offset = line.split()
            assert int(offset) == done, f"{line}, when {done} messages were finished"
            done += what == "end"
        return done


async def run(stops: int, kills: int) -> None:
    """So many restarts of either kind, and then a crash loop; raises what is not as it should be."""
    with tempfile.TemporaryDirectory(prefix="rmq-restarts-") as name, ExitStack() as stack:
        broker = await asyncio.to_thread(
            lambda: stack.enter_context(BrokerProcess(Path(name), "127.0.0.1:0", *OPTIONS))
        )
        async with Admin(broker.address) as admin, Producer(broker.address) as producer:
            await admin.create_topic(TOPIC, 1)
            await producer.send_many([Message(TOPIC, b"%d" % i) for i in range(4 * stops + 10)], queue_id=0)
            group = Group(broker.address, stack)
            for _ in range(stops):
                await _stop(admin, group)
            for _ in range(kills):
                await _kill_while_draining(admin, group)
            await _stop(admin, group)
            done = group.check_order()
            assert done > stops
            print(
                f"{stops} stops and {kills} kills while draining: {done} messages, each once and in order", flush=True
            )
            deaths = await asyncio.to_thread(_crash_loop, broker.address, stack)
            assert deaths == CRASH_LIMIT
            print(f"a listener that ends its process was stopped after {deaths} of them", flush=True)


async def _stop(admin: Admin, group: Group) -> None:
    process = await asyncio.to_thread(group.begin, CALL_S)
    assert await asyncio.to_thread(process.stop) == 0, process.errors[-15:]
    assert await admin.lock_status(GROUP) == [], "it ended and holds its queue"
    group.ended(process)


async def _kill_while_draining(admin: Admin, group: Group) -> None:
    process = await asyncio.to_thread(group.begin, LONG_S)
    process.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        while [row.state for row in await admin.lock_status(GROUP) if row.topic == TOPIC] != ["held, leaving"]:
            await asyncio.sleep(0.02)
    await asyncio.to_thread(process.kill)
    group.ended(process)


def _crash_loop(address: str, stack: ExitStack) -> int:
    """Let a listener end one process after the other; how many it took until its queue was stopped."""
    for deaths in range(2 * CRASH_LIMIT):
        process = stack.enter_context(ConsumerProcess(address, "deadly"))
        process.wait_for(bool, "a call, or the end of them")
        if process.lines[0].startswith("CRASH_LOOP"):
            assert process.stop() == 0, process.errors[-15:]
            return deaths
        process.wait()
    raise AssertionError("a crash loop was not stopped")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="rolling restarts of real consumers, and a crash loop")
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--consume", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.consume is None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that every process is ended first
        return asyncio.run(run(chosen.stops, chosen.kills))
    kind, address, takes_s = chosen.consume
    consuming = {**KINDS, "deadly": run_deadly}[kind](address, float(takes_s))
    if consuming is not None:
        asyncio.run(consuming)
    return None


if __name__ == "__main__":
    main()
