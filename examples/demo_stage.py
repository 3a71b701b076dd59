"""
The stage of the demo: what it says, the processes that it starts, and what Spark would need.

Nothing here is needed to use rmq; it runs the same commands that a person would type.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
SPARK_PATIENCE_S = 180.0  # it starts a Java and several Pythons
WIDTH = 78
HERE = Path(__file__).parent
BIN = Path(sys.executable).parent

BOLD, DIM, GREEN, CYAN = "1", "2", "32", "36"


class Broken(Exception):
    """A promise that was not kept, or something that the demo cannot do without."""


# What is said


def coloured(text: str, *codes: str) -> str:
    """The text in colours, on a terminal that is wanted to have them."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m"


def chapter(number: int, title: str, why: str) -> None:
    """Begin a chapter: its name, what is shown, and why that matters."""
    say("\n" + coloured(f"{number}  {title}", BOLD, CYAN))
    say(textwrap.fill(" ".join(why.split()), WIDTH, initial_indent="   ", subsequent_indent="   "))


def say(text: str) -> None:
    """A line of the story."""
    try:
        print(text, flush=True)
    except OSError as error:  # a pipe that was closed, a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the last flush fails as well
        raise Broken(f"the output cannot be written: {error.strerror}") from error


def typed(*command: str) -> None:
    """What one would type to have the same."""
    say(coloured("   $ " + " ".join(command), DIM))


def shown(text: str) -> None:
    """What a command answered; as far to the right as there is room."""
    lines = [part for line in text.splitlines() for part in (textwrap.wrap(line, 80, subsequent_indent="  ") or [""])]
    room = 80 - max(map(len, lines), default=0)
    say(textwrap.indent("\n".join(lines), " " * min(room, 5)))


def promise(kept: bool, what: str) -> None:
    """Say that something held; end the program if it did not."""
    if not kept:
        raise Broken(f"this did not hold: {what}")
    say(f"   {coloured('ok', GREEN)}  {what}")


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Wait for something to come true, but not for ever."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise Broken(f"this did not happen within {PATIENCE_S:.0f} s: {what}")
        time.sleep(0.02)


def follow(what: str, total: int, done: Callable[[], int], until: Callable[[], bool] | None = None) -> None:
    """Wait until everything is done (or ``until``), with a bar where somebody looks."""
    drawn = sys.stdout.isatty()

    def looked_at() -> bool:
        count = min(done(), total)
        if drawn:
            bar = ("#" * (30 * count // total)).ljust(30, ".")
            print(f"\r   {what} [{bar}] {count}/{total} ", end="", flush=True)
        return count == total if until is None else until()

    try:
        wait_until(what, looked_at)
    finally:
        if drawn:
            print()


def ticking(what: str, work: Callable[[], T]) -> T:
    """Do something that takes a while, with a clock where somebody looks."""
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(work)
        while not result.done():
            if sys.stdout.isatty():
                print(f"\r   {what} ... {time.monotonic() - began:.0f} s ", end="", flush=True)
            time.sleep(0.1)
    if sys.stdout.isatty():
        print()
    return result.result()


# Processes


@dataclass
class Worker:
    """A consumer process, and what it has said so far."""

    name: str
    process: subprocess.Popen[str]
    lines: list[dict[str, Any]] = field(default_factory=list)  # written by the reading thread
    said_at: list[float] = field(default_factory=list)  # when each was heard

    def read(self) -> None:
        """Take its lines as they come."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # a killed process may leave half a line
                self.said_at.append(time.monotonic())
                self.lines.append(json.loads(line))


@dataclass(frozen=True)
class Stage:
    """A broker on a free port, and a folder that goes away in the end."""

    folder: Path
    address: str

    @property
    def environment(self) -> dict[str, str]:
        """That of every command: they find the broker, and tables know how wide they may be."""
        mended = {"DEMO_MENDED": str(self.folder / "mended")}
        return {**os.environ, **mended, "RMQ_BROKER": self.address, "COLUMNS": str(WIDTH - 5)}

    def run(self, name: str, *arguments: str, stdin: str = "") -> str:
        """A command of ours that ends by itself; what it printed."""
        return self._output([*program(name), *arguments], PATIENCE_S, stdin)

    def spark(self, script: str, *arguments: str) -> str:
        """An example with Spark that ends by itself; what it printed."""
        return self._output([sys.executable, str(HERE / script), *arguments], SPARK_PATIENCE_S)

    def _output(self, command: list[str], timeout_s: float, stdin: str = "") -> str:
        settings: dict[str, Any] = {"env": self.environment, "timeout": timeout_s}
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, **settings)
        if done.returncode:
            raise Broken(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def json(self, name: str, *arguments: str) -> list[Any]:
        """What a command of ours says to programs, line by line."""
        return [json.loads(line) for line in self.run(name, *arguments, "--json").splitlines()]

    def show(self, name: str, *arguments: str) -> str:
        """A command and its answer, as a person would see them; the answer."""
        typed(name, *arguments)
        answer = self.run(name, *arguments)
        shown(answer)
        return answer

    @contextmanager
    def worker(self, name: str, *arguments: str) -> Iterator[Worker]:
        """A member of a group, which calls a listener of ``demo_worker.py``; its log goes into the folder."""
        with (self.folder / f"{name}.log").open("w") as log:
            command = [*program("rmq-consume"), "--orderly", *arguments]
            with started(command, stdout=subprocess.PIPE, stderr=log, env=self.environment, cwd=HERE) as process:
                worker = Worker(name, process)
                threading.Thread(target=worker.read, daemon=True).start()
                yield worker


@contextmanager
def broker(folder: Path) -> Iterator[Stage]:
    """A broker on a free port, with its data in the folder."""
    log = folder / "broker.log"
    where = ("--listen", "127.0.0.1:0", "--data-dir", str(folder / "data"))
    with (
        log.open("w") as errors,
        started([*program("rmq-broker"), "start", *where], stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        ready = re.search(r"ready on (\S+?),?\s", process.stdout.readline())
        if ready is None:
            raise Broken(f"the broker did not start: {log.read_text()}")
        yield Stage(folder, ready[1])


@contextmanager
def started(command: Sequence[str], **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A process for the length of a ``with`` block."""
    process = subprocess.Popen(command, text=True, **more)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def program(name: str) -> list[str]:
    """A command beside this Python, or its module where it was not installed as a script."""
    script = BIN / name
    return [str(script)] if script.exists() else [sys.executable, "-m", f"rmq.cli.{name.replace('-', '_')}"]


def why_no_spark() -> str | None:
    """What is missing for Spark, without starting it; none if nothing is."""
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed (in the checkout: pip install '.[spark]')"
    from rmq.spark.java import JavaNotFound, find_java_home

    try:
        find_java_home()
    except JavaNotFound as error:
        return str(error)
    return None
