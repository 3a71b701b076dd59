"""
The whole pipeline: a broker, the producer, three members of two groups, and the job, each a process of its own.

Whatever happens (an error, Ctrl-C, SIGTERM), all of them are ended before this returns.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from .consume import DELIVERIES, GROUPS
from .facts import lag
from .orders import TOPIC

PATIENCE_S: Final = 120.0
MEMBERS: Final = (("billing", "billing-1"), ("billing", "billing-2"), ("mailing", "mailing-1"))


class Interrupted(Exception):
    """It ended before its time; the text says why."""


def run(orders: int, seed: int, queues: int, asked: Path | None) -> None:
    """Run everything; the report and all it was made from are in the folder that is printed."""
    if find_spec("pyspark") is None:  # now, and not when everything else is done
        raise Interrupted("the report needs Spark: pip install '.[spark,java]', or `make pipeline`, which has it")
    folder = _folder(asked)
    done = False
    try:
        with _signals():
            _steps(orders, seed, queues, folder)
        done = True
    finally:
        if not done and asked is None:
            shutil.rmtree(folder, ignore_errors=True)
    print((folder / "report.txt").read_text())
    say(f"the report is in {folder / 'report.html'} (also as report.txt and report.json), the Parquet beside it")


def say(text: str) -> None:
    """A line of progress."""
    print(f"pipeline: {text}", flush=True)


def _steps(orders: int, seed: int, queues: int, folder: Path) -> None:
    began = time.monotonic()
    (folder / DELIVERIES).mkdir()
    with ExitStack() as running:
        address = running.enter_context(_broker(folder))
        say(f"broker ready on {address}")
        shop = ("--orders", str(orders), "--seed", str(seed), "--queues", str(queues))
        members = running.enter_context(ExitStack())
        for group, name in MEMBERS:
            where = ("--broker", address, "--group", group, "--name", name, "--dir", str(folder))
            members.enter_context(_step("consume", *where))
        say(f"{len(MEMBERS)} members of the groups {', '.join(GROUPS)} consume")
        _finish("produce", "--broker", address, *shop)
        for group in GROUPS:
            _wait_for(address, group)
        members.close()
        say("the members have given their queues back")
        _finish("report", "--broker", address, "--dir", str(folder))
    say(f"all ended after {time.monotonic() - began:.0f} s")


def _folder(asked: Path | None) -> Path:
    if asked is None:
        return Path(tempfile.mkdtemp(prefix="rmq-pipeline-"))
    asked.mkdir(parents=True, exist_ok=True)
    if any(asked.iterdir()):
        raise Interrupted(f"{asked} is not empty: name a new folder, so that nothing of yours is mixed up or lost")
    return asked.resolve()


@contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM and a terminal that is closed end this as Ctrl-C does: by way of everything that cleans up."""

    def end(number: int, _frame: object) -> None:
        raise Interrupted(f"ended by {signal.Signals(number).name}")

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
    command = (sys.executable, "-m", "rmq.cli.rmq_broker", "start", "--listen", "127.0.0.1:0")
    data = ("--data-dir", str(folder / "data"), "--log-level", "warning")
    log = folder / "broker.log"
    with log.open("w") as errors, _started(*command, *data, stdout=subprocess.PIPE, stderr=errors) as process:
        assert process.stdout is not None
        ready = re.search(r"ready on (\S+?),?\s", process.stdout.readline())
        if ready is None:
            raise Interrupted(f"the broker did not start: {log.read_text().strip()}")
        yield ready[1]


@contextmanager
def _step(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with _started(sys.executable, str(Path(__file__).parent), name, *arguments) as process:
        yield process


def _finish(name: str, *arguments: str) -> None:
    with _step(name, *arguments) as process:
        if process.wait() != 0:
            raise Interrupted(f"the step {name} failed")


@contextmanager
def _started(*command: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    # In a process group of its own: Ctrl-C reaches this process alone, which then ends the others in their turn.
    process = subprocess.Popen(command, text=True, process_group=0, **more)
    try:
        yield process
    finally:
        _signal_all(process, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            _signal_all(process, signal.SIGKILL)
            process.wait()
        # What it has started itself, which is Java, may take a moment longer.
        deadline = time.monotonic() + 5
        while _signal_all(process, 0) and time.monotonic() < deadline:
            time.sleep(0.05)
        _signal_all(process, signal.SIGKILL)


def _signal_all(process: subprocess.Popen[str], number: int) -> bool:
    """Signal a process and all that it has started; False if there is none of them any more."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def _wait_for(address: str, group: str) -> None:
    """Until a group has nothing more before it."""
    deadline = time.monotonic() + PATIENCE_S
    told = -1
    while left := asyncio.run(lag(address, TOPIC, group)):
        if time.monotonic() > deadline:
            raise Interrupted(f"the group {group} still has {left} messages before it after {PATIENCE_S:.0f} s")
        if left != told:
            say(f"{group} has {left} messages before it")
        told = left
        time.sleep(0.5)
    say(f"{group} has consumed everything")
