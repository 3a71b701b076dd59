"""
The story of rmq in one run: ``make demo``.

A thousand order events go through two consumers of one ordered group. One of them is killed with ``kill -9`` in the
middle; the other takes its queues over. At the end every order's events have been seen in order, and Spark counts as
many messages as were sent. Everything runs as the real commands, on a free port and in a folder that goes away.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ORDERS, STEPS, QUEUES = 100, 10, 4
EVENTS = ORDERS * STEPS
PATIENCE_S = 60.0
BIN = Path(sys.executable).parent


def main() -> None:
    """Set up, tell the story, and say how long each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-spark", action="store_true", help="leave the Spark count out")
    spark_wanted = not parser.parse_args().no_spark
    began = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-demo-", ignore_cleanup_errors=True))
        spark = stack.enter_context(spark_session()) if spark_wanted else None
        address = stack.enter_context(broker(folder))
        say(f"broker ready on {address}")
        run("rmq-admin", "topic", "create", "orders", "--queues", str(QUEUES), "--broker", address)
        if spark is not None:
            say(f"Spark {spark.result(PATIENCE_S).version} ready")
        set_up_s = time.monotonic() - began
        say(f"set-up took {set_up_s:.1f} s\n")
        began = time.monotonic()
        tell(address)
        if spark is not None:
            count_with_spark(spark.result(), address)
        story_s = time.monotonic() - began
    say(f"\nset-up {set_up_s:.1f} s, story {story_s:.1f} s: every promise held")


def tell(address: str) -> None:
    """Two consumers, a thousand events, one kill; ends the program if a promise was broken."""
    with member("first", address) as first, member("second", address) as second, producer(address) as send:

        def seen() -> int:
            return len({(line["queue_id"], line["queue_offset"]) for line in first.lines + second.lines})

        until("both consumers hold queues", lambda: len({row["owner"] for row in locks(address)}) == 2)
        events = order_events()
        send(itertools.islice(events, EVENTS * 2 // 5))
        until("the first events are consumed", lambda: seen() == EVENTS * 2 // 5)
        say(f"{seen()} events consumed: {len(first.lines)} by the first, {len(second.lines)} by the second")
        say("the lock table, before:\n" + run("rmq-admin", "lock-status", "--broker", address))

        mark = len(second.lines)
        send(itertools.islice(events, EVENTS // 5))
        until("the second is at work", lambda: len(second.lines) > mark)
        killed_at = time.monotonic()
        second.process.send_signal(signal.SIGKILL)
        second.process.wait()
        say("kill -9 of the second, in the middle of its work; the events go on")
        send(events)
        until("all events are consumed", lambda: seen() == EVENTS)
        say(f"{EVENTS} events consumed {time.monotonic() - killed_at:.1f} s after the kill")
        say("the lock table, after:\n" + run("rmq-admin", "lock-status", "--broker", address))
        check_order(first.lines, second.lines)


def order_events() -> Iterator[dict[str, Any]]:
    """Every order's steps, the orders interleaved."""
    for step in range(1, STEPS + 1):
        for order in range(1, ORDERS + 1):
            yield {"order": f"o-{order}", "step": step}


def check_order(*members: list[dict[str, Any]]) -> None:
    """
    Per queue no gap and no step back but to what was not committed; per order the steps 1, 2, 3, ...

    The epoch tells which member had a queue first: it grows with every change of owner.
    """
    lines = sorted(itertools.chain(*members), key=lambda line: (line["queue_id"], line["epoch"]))
    next_offset: dict[int, int] = defaultdict(int)
    next_step: dict[str, int] = defaultdict(lambda: 1)
    again = 0
    for line in lines:
        queue_id, event = line["queue_id"], json.loads(line["body"])
        if line["queue_offset"] < next_offset[queue_id]:
            again += 1
            continue
        promise(line["queue_offset"] == next_offset[queue_id], f"queue {queue_id} has no gap")
        promise(event["step"] == next_step[event["order"]], f"the steps of {event['order']} are in order")
        next_offset[queue_id] += 1
        next_step[event["order"]] += 1
    promise(sum(next_offset.values()) == EVENTS, "every event was seen")
    say(f"order checked: {ORDERS} orders, steps 1 to {STEPS} each, no gap; {again} delivered again after the kill")


def count_with_spark(spark: Any, address: str) -> None:
    """The same topic as a DataFrame."""
    began = time.monotonic()
    topic = spark.read.format("rmq").option("broker", address).option("topic", "orders").load()
    count = topic.count()
    say(f"Spark counts {count} messages ({time.monotonic() - began:.1f} s)")
    promise(count == EVENTS, "Spark counts as many messages as were sent")


class Member:
    """A consumer process and the lines it printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []  # written by the reading thread
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # a killed process may leave half a line
                self.lines.append(json.loads(line))


@contextmanager
def member(name: str, address: str) -> Iterator[Member]:
    """A member of the ordered group."""
    command = ("rmq-consume", "--orderly", "--json", "--topic", "orders", "--group", "billing", "--broker", address)
    with started(*command, stdout=subprocess.PIPE) as process:
        say(f"{name} consumer started (pid {process.pid})")
        yield Member(process)


@contextmanager
def broker(folder: str) -> Iterator[str]:
    """A broker on a free port; yields its address."""
    where = ("--listen", "127.0.0.1:0", "--data-dir", f"{folder}/data", "--log-level", "warning")
    with started("rmq-broker", "start", *where, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready = re.search(r"ready on (\S+?),?\s", process.stdout.readline())
        promise(ready is not None, "the broker starts")
        assert ready is not None
        yield ready[1]


@contextmanager
def producer(address: str) -> Iterator[Callable[[Iterator[dict[str, Any]]], None]]:
    """One producer process; what is yielded sends events through it, in order."""
    command = ("rmq-produce", "--topic", "orders", "--key-field", "order", "--quiet", "--broker", address)
    with started(*command, stdin=subprocess.PIPE) as process:

        def send(events: Iterator[dict[str, Any]]) -> None:
            assert process.stdin is not None
            process.stdin.writelines(json.dumps(event) + "\n" for event in events)
            process.stdin.flush()

        yield send
        assert process.stdin is not None
        process.stdin.close()
        promise(process.wait(PATIENCE_S) == 0, "the producer ends well")


@contextmanager
def started(name: str, *arguments: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A command of ours; stopped at the end, if it still runs."""
    process = subprocess.Popen([*program(name), *arguments], text=True, **more)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def spark_session() -> Iterator[Future[Any]]:
    """Spark takes a while to start: it does so beside the rest of the set-up."""

    def start() -> Any:
        from rmq.spark import session

        return session()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(start)
        try:
            yield future
        finally:
            if future.exception() is None:
                future.result().stop()


def program(name: str) -> list[str]:
    """A command beside this Python, or its module where it was not installed as a script."""
    script = BIN / name
    return [str(script)] if script.exists() else [sys.executable, "-m", f"rmq.cli.{name.replace('-', '_')}"]


def locks(address: str) -> list[dict[str, Any]]:
    """The lock table as data."""
    rows: list[dict[str, Any]] = json.loads(run("rmq-admin", "lock-status", "--json", "--broker", address))
    return rows


def run(name: str, *arguments: str) -> str:
    """A command of ours that ends by itself; what it printed."""
    return subprocess.run([*program(name), *arguments], check=True, text=True, capture_output=True, timeout=30).stdout


def until(what: str, condition: Callable[[], bool]) -> None:
    """Wait for something to come true, but not for ever."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        promise(time.monotonic() < deadline, f"within {PATIENCE_S:.0f} s {what}")
        time.sleep(0.02)


def promise(kept: bool, what: str) -> None:
    """End the program if something is not as it must be."""
    if not kept:
        sys.exit(f"demo: this did not hold: {what}")


def say(text: str) -> None:
    """One step of the story."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
