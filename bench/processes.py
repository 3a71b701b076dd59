"""
The processes of a benchmark: broker and clients, started, told to begin, asked what they found, and always ended.

A client is a module with a ``main`` (see :mod:`rmq.bench.processes`): it gets its orders as JSON, says ``{"ready":
...}``
when all is prepared, waits for a line on its standard input, does its work and says what it found, each a line of JSON.

The other end of :mod:`rmq.bench.processes`: what a client of a benchmark begins and ends with.
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
LOOK_S = 0.5  # how often one who waits looks whether that is in vain


class BenchError(Exception):
    """A benchmark cannot go on; the text is one sentence for whoever started it."""


class Child:
    """A process that says lines on its standard output."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path | None = None, needs: Child | None = None
    ) -> None:
        self.name = name
        self._needs = needs  # without it nothing would ever be said
        # A group of its own: Ctrl-C is for the benchmark, which then ends its processes in order.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=folder, process_group=0
        )
        self._unread = b""
        JANITOR.add(self.pid)

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    def line(self, timeout_s: float) -> str:
        """The next line that it says."""
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

    def told(self, timeout_s: float = WORK_S) -> dict[str, Any]:
        """The next line as what it means."""
        told = json.loads(self.line(timeout_s))
        assert isinstance(told, dict)
        return told

    def go(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")

    def tell(self, **what: Any) -> None:
        """A line to it, beside the word to begin."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Ask it to end, and see to it that it does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def close(self) -> None:
        """Stop, and give back what is open."""
        self.stop()
        JANITOR.remove(self.pid)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def memory_mb(self, what: str = "VmRSS") -> float:
        """Its resident memory in units of 10**6 bytes; ``VmHWM`` for the most it ever had."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{what}:\s+(\d+) kB$", status, re.MULTILINE)[1]) * 1024 / 1e6  # type: ignore[index]


_brokers: dict[str, BrokerProcess] = {}  # that run, by their addresses


class BrokerProcess(Child):
    """
    A broker with its own port; ``ready_s`` is how long its start took.

    It logs errors only: being stopped under clients, or a torn end of its log, is what benchmarks do to it.
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
        """The same as of others; its clients are gone by now."""
        _brokers.pop(getattr(self, "address", ""), None)
        super().close()


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that is removed in the end."""
    folder = tempfile.mkdtemp(prefix="rmq-bench-")
    JANITOR.add(folder)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        JANITOR.remove(folder)


@contextmanager
def own_broker(flush: str, *options: str) -> Iterator[BrokerProcess]:
    """A broker in a directory of its own."""
    with scratch() as folder:
        broker = BrokerProcess(folder, flush, *options)
        try:
            yield broker
        finally:
            broker.close()


@contextmanager
def worker_process(module: str, folder: Path | None = None, /, **orders: Any) -> Iterator[Child]:
    """
    A client: the module's ``main`` with these orders, which has yet to say that it is ready.

    The module is found in the installed package, or in a folder that is given.

    Where they name a broker of ours, its end is the end of waiting for the client.
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
    """The same, ready to begin."""
    with worker_process(module, folder, **orders) as child:
        child.told(START_S)
        yield child


def free_memory() -> int:
    """How many bytes of memory the machine has for us."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def free_bytes(folder: Path) -> int:
    """How much room the disk has for us."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def say(**what: Any) -> None:
    """One line to whoever started us."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def settle() -> None:
    """
    Take what was made before the clock out of the garbage collector's sight.

    A program that makes its messages as it goes does not burden the collector with a million of them. So that all are
    measured alike, those that send by ours, to the floor and by other brokers' clients do this; what they make later is
    collected as ever.
    """
    gc.collect()
    gc.freeze()


def wait_for_go() -> None:
    """Say that all is prepared, and wait for the word; blocks, since nothing else is to happen meanwhile."""
    say(ready=True)
    sys.stdin.readline()


async def go() -> None:
    """The same while the loop goes on: connections answer pings."""
    say(ready=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def run(main: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """
    Run the client on uvloop with the orders of the command line.

    What a broker or a machine can cause ends it with one line; all else is a defect, and shown as one.
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
    """The first that is no group: of tasks that fail together it is the cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
