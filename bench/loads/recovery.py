"""
How long nobody is served while a broker with a long log starts again, after a clean stop and after ``kill -9``.

It is over when the newest message was read; a check that all is there that was answered follows. A broker is killed
while a producer sends. One log serves all rounds. The page cache is warm, since the same machine wrote the log a moment
before; how long a start takes with a cold one is told besides.

A broker whose log has some gigabytes, and whether there is room for that.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rmq.client import Admin
from rmq.wire.model import MessageQueue

from ..figures import Figure, Report, Verdict, interleave
from ..options import Load, Options, Steps
from ..processes import BenchError, BrokerProcess, free_bytes, scratch, worker

WORKER: Final = "rmq.bench.workers.recovery"
CLEAN_S: Final = 2.0
KILLED_S: Final = 10.0
TOPIC: Final = "recovery"
BEHIND: Final = 220e6  # bytes sent before the end; a checkpoint is due after 268e6, so that is almost the worst
QUICK_BEHIND: Final = 2e6
FULL_GB: Final = 10.0  # what the targets are about


def measure(load: Load, options: Options, steps: Steps, *, gb: float = FULL_GB, folder: Path | None = None) -> Report:
    """Restarts of both kinds in turns; a long log that an earlier benchmark left in ``folder`` is used."""
    gb = min(gb, QUICK_GB) if options.quick else gb
    sent = dataclasses.replace(load, messages=int((QUICK_BEHIND if options.quick else BEHIND) // load.size))
    about = {"load": sent.as_object(), "flush": options.flush, "rounds": options.rounds, "gb": gb, "page_cache": "warm"}
    report = Report("recovery", about)
    clean, killed, cold, stop = figures = [
        Figure("recovery.clean", "stop and start until the newest message is read", "s", options.flush),
        Figure("recovery.killed", "start after kill -9 until the newest message is read", "s", options.flush),
        Figure("recovery.cold", "start with a cold page cache", "s", options.flush),
        Figure("recovery.stop", "of a clean one, the stop", "s", options.flush),
    ]
    with ExitStack() as stack:
        data_dir = (folder or stack.enter_context(scratch())) / NAME
        ground = LongLog(data_dir, options.flush, sent)
        why_not = "it is about a broker of its own, and one that runs was given" if options.broker else ""
        why_not = why_not or ground.no_room(gb)
        if not why_not:
            steps.expect(1 + 3 * options.rounds)
            steps(f"filling {gb:g} GB")
            ground.fill(gb)
            sides = [(clean, ground.clean), (killed, ground.killed), (cold, ground.cold)]
            interleave(sides, options.rounds, steps)
            stop.samples.extend(ground.stops_s)
            report.figures += figures
    if not why_not and gb < FULL_GB:
        why_not = f"measured with {gb:g} GB of log, and the target is about {FULL_GB:g}"
    for key, figure, most in (("P9.clean", clean, CLEAN_S), ("P9.killed", killed, KILLED_S)):
        samples = [] if why_not else figure.samples
        report.verdicts.append(Verdict(key, figure.meaning, "s", options.flush, samples, at_most=most, why_not=why_not))
    return report


class LongLog:
    """A data directory with a long log, and what is done to brokers on it."""

    def __init__(self, data_dir: Path, flush: str, load: Load) -> None:
        self._data_dir = data_dir
        self._flush = flush
        self._load = load
        self._held = 0  # messages that were in the queues at least
        self.stops_s: list[float] = []

    def no_room(self, gb: float) -> str:
        """Why the log cannot be made as long as this; empty if it can, or is so already."""
        return "" if self._is_filled(gb) else no_room(self._data_dir.parent, gb)

    def _is_filled(self, gb: float) -> bool:
        return log_bytes(self._data_dir) >= gb * GB

    def fill(self, gb: float) -> None:
        """Make the log as long as this."""
        if not self._is_filled(gb):
            with ExitStack() as stack:
                fill(self._started(stack), gb)

    def clean(self) -> float:
        """Seconds from SIGTERM until the newest message is read again."""
        return self._restart(is_clean=True)

    def killed(self) -> float:
        """Seconds from SIGKILL until the newest message is read again."""
        return self._restart(is_clean=False)

    def cold(self) -> float:
        """Seconds of a start, from a stopped broker and an empty page cache until the newest message is read."""
        for path in self._data_dir.rglob("*"):
            if path.is_file():
                drop_from_cache(path)
        began = time.monotonic()
        with ExitStack() as stack:
            asyncio.run(read_newest(self._started(stack).address, self._load.queues))
            return time.monotonic() - began

    def _restart(self, *, is_clean: bool) -> float:
        with ExitStack() as stack:
            broker = self._started(stack)
            orders = {"address": broker.address, "topic": TOPIC, "load": self._load.as_object()}
            sender = stack.enter_context(worker(WORKER, role="send", **orders))
            sender.go()
            answered = int(sender.told()["answered"])
            if is_clean:
                sender.kill()
            began = time.monotonic()
            if is_clean:
                broker.stop()
                self.stops_s.append(time.monotonic() - began)
            else:
                broker.kill()
                sender.kill()  # it would try and try again
            again = self._started(stack)
            held = asyncio.run(read_newest(again.address, self._load.queues))
            took = time.monotonic() - began
            if held < self._held + answered:
                raise BenchError(f"{self._held + answered - held} messages were answered and are lost")
            self._held = held
            return took

    def _started(self, stack: ExitStack) -> BrokerProcess:
        broker = BrokerProcess(self._data_dir, self._flush)
        stack.callback(broker.close)
        return broker


async def read_newest(address: str, queues: int) -> int:
    """Read the newest message of every queue of our topic; returns how many messages there are."""
    every = [MessageQueue(TOPIC, queue_id) for queue_id in range(queues)]
    async with Admin(address) as admin:
        held = await admin.ranges(every)
        for queue, (_, _, end, *_) in zip(every, held, strict=True):
            if end and not [some async for some in admin.read(queue, end - 1, end)]:
                raise BenchError(f"the newest message of {queue} cannot be read")
        return sum(bounds.max_offset for bounds in held)


def drop_from_cache(path: Path) -> None:
    """Ask the system to forget what it keeps of a file in memory; it may do so, since all of it is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


NAME: Final = "big-log"  # of a data directory that several benchmarks use
GB: Final = 1e9
QUICK_GB: Final = 0.1
RESERVE: Final = 2 << 30  # that a broker and others on this disk may need meanwhile
MORE: Final = 1.2  # for the indexes, and for what is sent afterwards


def fill(broker: BrokerProcess, gb: float) -> None:
    """Make the log of a broker at least this long; returns when that is on the disk."""
    with worker(WORKER, role="fill", address=broker.address, log_bytes=int(gb * GB)) as child:
        child.go()
        child.told()


def log_bytes(data_dir: Path) -> int:
    """How long the log in a directory is; 0 where there is none."""
    return sum(path.stat().st_size for path in (data_dir / "commitlog").glob("*"))


def no_room(folder: Path | None, gb: float) -> str:
    """Why a log of this size cannot be made in a folder, or where temporary ones lie; empty if it can."""
    folder = folder or Path(tempfile.gettempdir())
    needed, free = gb * GB * MORE + RESERVE, free_bytes(folder)
    if free >= needed:
        return ""
    return f"{needed / GB:.1f} GB of disk space are needed, and {free / GB:.1f} are free at {folder}"
