"""
A listener for ``rmq-consume --listener chaos.call_log:...`` that notes each of its calls in a file; and their reader.

Every record is written with one ``write`` to a file opened for appending, before the listener goes on: what a process
did before ``kill -9`` is there. The clock is the one of the machine that goes on while a process is stopped.

How a message is treated depends on its offset alone, so that every member treats it alike: some fail twice, some take
a while, a few take longer than a grace.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import NamedTuple

from rmq.consumer import ConsumeContext, ConsumeStatus, StoredMessage
from rmq.runtime.clock import boottime

WHERE = "RMQ_TEST_CALL_LOG"  # the file; its name without ending is the name of the process
LOOK_S = 0.02

START, END, FAILED, LOST = "start", "end", "failed", "lost"


class Record(NamedTuple):
    """Something that happened in a call; ``offsets`` are those of its messages."""

    at: float
    process: str
    queue: str
    kind: str
    epoch: int
    offsets: list[int]
    attempts: list[int]
    lost: bool = False
    bodies: list[str] = []  # noqa: RUF012  # shared, so it must not be changed in place


class Pace(NamedTuple):
    """How a message is treated."""

    fails: int  # so many attempts
    takes_s: float


def pace(offset: int) -> Pace:
    """By its offset; primes, so that all pairs come up."""
    if offset % 499 == 251:
        return Pace(0, 4.5)  # longer than the grace of the runs
    if offset % 101 == 50:
        return Pace(0, 0.7)
    if offset % 61 == 30:
        return Pace(2, 0.0)
    return Pace(0, 0.001)


class CallLog:
    """Writes the records of this process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._process = path.stem

    def note(self, kind: str, messages: list[StoredMessage], context: ConsumeContext) -> None:
        """One record, written before this returns."""
        record = Record(
            boottime(),
            self._process,
            str(context.queue),
            kind,
            context.epoch,
            [message.queue_offset for message in messages],
            [message.attempt for message in messages],
            bool(context.lost),
            [message.body.decode() for message in messages],
        )
        os.write(self._file, json.dumps(record).encode() + b"\n")


def read(path: Path) -> list[Record]:
    """The records of a process; a line that a kill cut short is left out."""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [Record(*json.loads(line)) for line in whole.splitlines()]


def read_all(folder: Path) -> list[Record]:
    """The records of all processes, in the order of their times."""
    records: list[Record] = []
    for path in sorted(folder.glob("*.calls")):
        records += read(path)
    return sorted(records, key=lambda record: record.at)


# ---- the listeners

_opened: list[CallLog] = []
_opening = threading.Lock()


def _log() -> CallLog:
    with _opening:
        if not _opened:
            _opened.append(CallLog(Path(os.environ[WHERE])))
        return _opened[0]


def _result(messages: list[StoredMessage], context: ConsumeContext) -> tuple[str, ConsumeStatus]:
    if any(message.attempt <= pace(message.queue_offset).fails for message in messages):
        context.suspend_s = 0.02
        return FAILED, ConsumeStatus.SUSPEND
    return END, ConsumeStatus.SUCCESS


async def on_loop(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
    """A coroutine function; it goes on when its context says that the lease is lost, as a careless one would."""
    log = _log()
    log.note(START, messages, context)
    takes_s = sum(pace(message.queue_offset).takes_s for message in messages)
    try:
        async with asyncio.timeout(takes_s):
            await context.lost.wait()
        log.note(LOST, messages, context)
        await asyncio.sleep(takes_s / 2)
    except TimeoutError:
        pass
    kind, status = _result(messages, context)
    log.note(kind, messages, context)
    return status


def in_thread(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
    """A plain function, which runs in a thread and looks at the loss now and then."""
    log, waiting = _log(), threading.Event()
    log.note(START, messages, context)
    until = boottime() + sum(pace(message.queue_offset).takes_s for message in messages)
    noted = False
    while boottime() < until:
        waiting.wait(min(LOOK_S, max(0.0, until - boottime())))
        if context.lost and not noted:
            noted = True
            log.note(LOST, messages, context)
    kind, status = _result(messages, context)
    log.note(kind, messages, context)
    return status
