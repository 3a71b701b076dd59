"""The other end of :mod:`rmq.bench.processes`: what a client of a benchmark begins and ends with."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from rmq.wire.errors import RmqError

from .processes import BenchError


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


def first_leaf(error: BaseException) -> BaseException:
    """The first that is no group: of tasks that fail together it is the cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
