"""
Measures how long a broker with a long log takes to start, after a clean stop and after ``kill -9``.

The clock stops when the newest message was read; then every acknowledged message must be there. A broker is killed
while a producer sends. One log serves all rounds. The page cache is warm, since the same machine has just written the
log; a start with a cold one is reported, too.
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
SENT: Final = 220e6  # bytes sent before the end; a checkpoint is due after 268e6, so that is almost the worst
QUICK_SENT: Final = 2e6
FULL_GB: Final = 10.0  # what the targets are about


def measure(load: Load, options: Options, steps: Steps, *, gb: float = FULL_GB, folder: Path | None = None) -> Report:
    """Measure restarts of both kinds in turns; a long log that an earlier benchmark left in ``folder`` is used."""
    gb = min(gb, QUICK_GB) if options.quick else gb
    sent = dataclasses.replace(load, messages=int((QUICK_SENT if options.quick else SENT) // load.size))
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
    """A data directory with a long log, on which brokers are stopped, killed and started."""

    def __init__(self, data_dir: Path, flush: str, load: Load) -> None:
        self._data_dir = data_dir
        self._flush = flush
        self._load = load
        self._stored = 0  # messages that were in the queues at least
        self.stops_s: list[float] = []

    def no_room(self, gb: float) -> str:
        """Return why there is no room for a log of this length, empty if there is, or if it exists."""
        return "" if self._is_filled(gb) else no_room(self._data_dir.parent, gb)

    def _is_filled(self, gb: float) -> bool:
        return log_bytes(self._data_dir) >= gb * GB

    def fill(self, gb: float) -> None:
        """Make the log at least this long."""
        if not self._is_filled(gb):
            with ExitStack() as stack:
                fill(self._started(stack), gb)

    def clean(self) -> float:
        """Return the seconds from SIGTERM until the newest message is read again."""
        return self._restart(is_clean=True)

    def killed(self) -> float:
        """Return the seconds from SIGKILL until the newest message is read again."""
        return self._restart(is_clean=False)

    def cold(self) -> float:
        """Return the seconds of a start with an empty page cache, until the newest message is read."""
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
            answered = int(sender.reply()["answered"])
            if is_clean:
                sender.kill()
            began = time.monotonic()
            if is_clean:
                broker.stop()
                self.stops_s.append(time.monotonic() - began)
            else:
                broker.kill()
                sender.kill()  # it would retry for ever
            again = self._started(stack)
            stored = asyncio.run(read_newest(again.address, self._load.queues))
            took = time.monotonic() - began
            if stored < self._stored + answered:
                raise BenchError(f"{self._stored + answered - stored} acknowledged messages are lost")
            self._stored = stored
            return took

    def _started(self, stack: ExitStack) -> BrokerProcess:
        broker = BrokerProcess(self._data_dir, self._flush)
        stack.callback(broker.close)
        return broker


async def read_newest(address: str, queues: int) -> int:
    """Read the newest message of every queue of our topic; return how many messages there are."""
    every = [MessageQueue(TOPIC, queue_id) for queue_id in range(queues)]
    async with Admin(address) as admin:
        held = await admin.ranges(every)
        for queue, (_, _, end, *_) in zip(every, held, strict=True):
            if end and not [some async for some in admin.read(queue, end - 1, end)]:
                raise BenchError(f"the newest message of {queue} cannot be read")
        return sum(bounds.max_offset for bounds in held)


def drop_from_cache(path: Path) -> None:
    """Sync a file, and drop it from the page cache."""
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
    """Make the log of a broker at least this long; return when it is on the disk."""
    with worker(WORKER, role="fill", address=broker.address, log_bytes=int(gb * GB)) as child:
        child.go()
        child.reply()


def log_bytes(data_dir: Path) -> int:
    """Return how long the log in a directory is, 0 if there is none."""
    return sum(path.stat().st_size for path in (data_dir / "commitlog").glob("*"))


def no_room(folder: Path | None, gb: float) -> str:
    """Return why a folder (by default the temporary one) has no room for such a log, empty if it has."""
    folder = folder or Path(tempfile.gettempdir())
    needed, free = gb * GB * MORE + RESERVE, free_bytes(folder)
    if free >= needed:
        return ""
    return f"{needed / GB:.1f} GB of disk space are needed, and {free / GB:.1f} are free at {folder}"
