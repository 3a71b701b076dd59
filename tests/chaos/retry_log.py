"""
A listener for ``rmq-consume --concurrent --listener chaos.retry_log:on_messages`` that notes its calls in a file.

As in :mod:`chaos.call_log`, each record is written before the listener goes on. What becomes of a message is a matter
of its body (see :mod:`simulation.listeners`); one with ``/dead/`` in it is given up at its first failure. Times
are those of the wall, as the log of the broker has them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rmq.consumer import ConsumeStatus, StoredMessage
from rmq.runtime.clock import wall_us
from rmq.wire.model import MessageQueue

from chaos.call_log import WHERE
from simulation.broker import BEGAN_US
from simulation.history import DONE, FAILED, GIVEN_UP, Ended, Event, Lost, Started
from simulation.listeners import is_bad

TAKES_S = 0.002
_files: dict[str, int] = {}
_numbers = itertools.count(1)


def now() -> float:
    """The time, as histories have it."""
    return (wall_us() - BEGAN_US) / 1e6


def _note(*record: Any) -> None:
    path = os.environ[WHERE]
    if path not in _files:
        _files[path] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_files[path], json.dumps(record).encode() + b"\n")


async def on_messages(messages: list[StoredMessage], context: Any) -> ConsumeStatus:
    """Process those before the first that fails; the rest is to be given again."""
    number = next(_numbers)
    offsets, attempts = [message.queue_offset for message in messages], [message.attempt for message in messages]
    bodies = [message.body.decode() for message in messages]
    _note("call", now(), number, str(context.queue), context.epoch, offsets, attempts, bodies, bool(context.lost))
    await asyncio.sleep(TAKES_S)
    good = next((index for index, message in enumerate(messages) if is_bad(message)), len(messages))
    failed = FAILED
    if good < len(messages):
        context.ack_index = good - 1
        if "/dead/" in bodies[good]:
            context.delay_level, failed = -1, GIVEN_UP
    fates = [DONE] * good + [failed] * (len(messages) - good)
    _note("end", now(), number, fates, context.delay_level, bool(context.lost))
    return ConsumeStatus.SUCCESS


def read_calls(paths: list[Path], group: str) -> Iterator[Event]:
    """What was noted, not in order of time; a line that a kill cut short is left out."""
    numbers = itertools.count(1)
    for path in paths:
        own: dict[int, int] = {}
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        for line in whole.splitlines():
            kind, at, number, *rest = json.loads(line)
            if kind == "call":
                own[number] = next(numbers)
                queue, epoch, offsets, attempts, bodies, lost = rest
                topic, _, queue_id = queue.rpartition("/")
                yield Started(
                    at, own[number], path.stem, MessageQueue(topic, int(queue_id)), epoch, tuple(offsets),
                    tuple(attempts), tuple(body.encode() for body in bodies), lost, group,
                )  # fmt: skip
            else:
                fates, level, lost = rest
                if lost:
                    yield Lost(at, own[number])
                yield Ended(at, own[number], tuple(fates), level)
