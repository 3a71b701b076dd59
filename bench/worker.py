"""The other end of :mod:`rmq.bench.processes`: what a client of a benchmark begins and ends with."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop


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
    """Run the client on uvloop with the orders of the command line."""
    uvloop.run(main(**json.loads(sys.argv[1])))
