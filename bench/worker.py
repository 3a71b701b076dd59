"""The other end of :mod:`rmq.bench.processes`: what a client of a benchmark begins and ends with."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop


def say(**what: Any) -> None:
    """One line to whoever started us."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


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
