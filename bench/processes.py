"""
The processes of a benchmark, both ends: broker and clients are started, given orders, asked for results, always ended.

A client is a module with a ``main``. It gets its orders as JSON, prints ``{"ready": ...}`` when everything is prepared,
waits for a line on standard input (the start signal), does its work and prints its results, each as a line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from rmq.wire.errors import RmqError

from .janitor import JANITOR

READY = re.compile(r"\bready on (\S+?),?\s")
START_S = 60.0
WORK_S = 600.0
STOP_S = 30.0
LEAST = 512 << 20  # bytes of disk that a broker should find: it takes no messages where half of it is left
LOOK_S = 0.5  # how often a wait checks that it can still end


class BenchError(Exception):
    """A benchmark cannot continue; the text is one sentence for the user."""


class Child:
    """A process of ours that prints lines and reads lines."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path | None = None, needs: Child | None = None
    ) -> None:
        self.name = name
        self._needs = needs  # without it there would never be a line
        # A group of its own: Ctrl-C is for the benchmark, which then ends its processes in order.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=folder, process_group=0
        )
        self._unread = b""
        JANITOR.add(self.pid)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def line(self, timeout_s: float) -> str:
        """Return the next line that it prints."""
        assert self.process.stdout is not None
        until = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stdout, selectors.EVENT_READ)
                while not selector.select(max(0.0, min(LOOK_S, until - time.monotonic()))):
                    if self._needs is not None and (code := self._needs.process.poll()) is not None:
                        raise BenchError(f"the {self._needs.name} of this benchmark ended in the middle (code {code})")
                    if time.monotonic() >= until:
                        raise BenchError(f"the {self.name} of this benchmark said nothing for {timeout_s:g} s")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise BenchError(f"the {self.name} of this benchmark ended too early: see above")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode() + "\n"

    def reply(self, timeout_s: float = WORK_S) -> dict[str, Any]:
        """Return the next line, decoded."""
        reply = json.loads(self.line(timeout_s))
        assert isinstance(reply, dict)
        return reply

    def go(self) -> None:
        """Send the start signal."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")

    def send(self, **what: Any) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Ask it to end, and kill it if it does not."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def close(self) -> None:
        """Stop it, and close its streams."""
        self.stop()
        JANITOR.remove(self.pid)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def memory_mb(self, what: str = "VmRSS") -> float:
        """Return its resident memory in units of 10**6 bytes; ``VmHWM``: the maximum so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{what}:\s+(\d+) kB$", status, re.MULTILINE)[1]) * 1024 / 1e6  # type: ignore[index]


_brokers: dict[str, BrokerProcess] = {}  # that run, by their addresses


class BrokerProcess(Child):
    """
    A broker with its own port; ``ready_s`` is how long its start took.

    It logs errors only: benchmarks stop it under its clients and tear the end of its log.
    """

    def __init__(self, data_dir: Path, flush: str = "async", *options: str) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        if (free := free_bytes(data_dir)) < LEAST:
            text = f"the disk of {data_dir.parent} has {free / 1e6:,.0f} MB left, and a broker needs {LEAST / 1e6:,.0f}"
            raise BenchError(text)
        where = ("--listen", "127.0.0.1:0", "--data-dir", str(data_dir), "--log-level", "error", "--flush", flush)
        began = time.monotonic()
        command = [sys.executable, "-m", "rmq.cli.rmq_broker", "start", *where, *options]
        super().__init__("broker", command)
        try:
            ready = READY.search(self.line(START_S))
            if ready is None:
                raise BenchError("the broker said something else than that it is ready")
        except BaseException:
            self.close()
            raise
        self.ready_s = time.monotonic() - began
        self.address = ready[1]
        _brokers[self.address] = self

    def close(self) -> None:
        """Stop it; its clients are gone by now."""
        _brokers.pop(getattr(self, "address", ""), None)
        super().close()


@contextmanager
def scratch() -> Iterator[Path]:
    """Create a directory that is removed after the block."""
    folder = tempfile.mkdtemp(prefix="rmq-bench-")
    JANITOR.add(folder)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        JANITOR.remove(folder)


@contextmanager
def own_broker(flush: str, *options: str) -> Iterator[BrokerProcess]:
    """Start a broker in a directory of its own."""
    with scratch() as folder:
        broker = BrokerProcess(folder, flush, *options)
        try:
            yield broker
        finally:
            broker.close()


@contextmanager
def worker_process(module: str, folder: Path | None = None, /, **orders: Any) -> Iterator[Child]:
    """
    Start a client, the module's ``main`` with these orders; it has yet to report that it is ready.

    The module is found in the installed package, or in a folder that is given. If the orders name a broker of ours and
    the broker ends, waiting for the client ends, too.
    """
    broker = _brokers.get(orders.get("address", ""))
    name = " ".join([module.rpartition(".")[2], *([orders["role"]] if "role" in orders else [])])
    child = Child(name, [sys.executable, "-m", module, json.dumps(orders)], folder, needs=broker)
    try:
        yield child
    finally:
        child.close()


@contextmanager
def worker(module: str, folder: Path | None = None, /, **orders: Any) -> Iterator[Child]:
    """Start a client that is ready to begin."""
    with worker_process(module, folder, **orders) as child:
        child.reply(START_S)
        yield child


def free_memory() -> int:
    """Return how many bytes of memory are available."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def free_bytes(folder: Path) -> int:
    """Return how many bytes are free on the disk of a folder."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def say(**what: Any) -> None:
    """Print one line for the parent process."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def settle() -> None:
    """
    Hide everything made before the clock from the garbage collector.

    A program that makes its messages as it goes does not burden the collector with a million of them. All senders do
    this, ours, the floor's and those of other brokers, so that they are measured alike; later objects are collected as
    usual.
    """
    gc.collect()
    gc.freeze()


def wait_for_go() -> None:
    """Report that everything is prepared, and block until the start signal."""
    say(ready=True)
    sys.stdin.readline()


async def go() -> None:
    """Do so while the loop keeps running, so that connections answer pings."""
    say(ready=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def run(main: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """
    Run the client on uvloop with the orders of the command line.

    What a broker or a machine can cause ends it with one line; everything else is a defect, with its traceback.
    """
    try:
        uvloop.run(main(**json.loads(sys.argv[1])))
    except Exception as error:
        cause = first_leaf(error)
        if not isinstance(cause, RmqError | BenchError | OSError):
            raise
        sys.exit(f"{Path(sys.argv[0]).stem}: {' '.join(str(cause).split()) or type(cause).__name__}")


def roles(**mains: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return a ``main`` that plays the role which its orders name."""

    async def main(role: str, **orders: Any) -> None:
        await mains[role](**orders)

    return main


def first_leaf(error: BaseException) -> BaseException:
    """Return the first error that is not a group: of tasks that fail together it is the cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
