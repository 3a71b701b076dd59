"""Our own commands as child processes of a command: started, waited for by what they say, and always ended."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from . import exit_codes
from .command import Failure

READY = re.compile(r"\bready on (\S+?),?\s")
START_S = 30.0
STOP_S = 10.0


@asynccontextmanager
async def child(module: str, *arguments: str) -> AsyncIterator[Process]:
    """Run a command of ours by the name of its module; within the block its standard output can be read."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments, stdin=DEVNULL, stdout=PIPE)
    try:
        yield process
    finally:
        await _end(process)


@asynccontextmanager
async def own_broker(*arguments: str) -> AsyncIterator[str]:
    """A broker with a data directory and a port of its own; yields its address."""
    with tempfile.TemporaryDirectory(prefix="rmq-", ignore_cleanup_errors=True) as folder:
        where = ("--listen", "127.0.0.1:0", "--data-dir", folder, "--log-level", "warning")
        async with child("rmq.cli.rmq_broker", "start", *where, *arguments) as process:
            ready = READY.search(await line_of(process, START_S))
            if ready is None:
                raise Failure("the broker said something else than that it is ready", exit_codes.FAILURE)
            yield ready[1]


async def line_of(process: Process, timeout_s: float) -> str:
    """
    The next line a child says.

    Raises:
        Failure: it ended or said nothing in time.
    """
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            line = await process.stdout.readline()
    except TimeoutError:
        raise Failure(f"a process of this command said nothing for {timeout_s:g} s", exit_codes.TEMPORARY) from None
    if not line:
        raise Failure("a process of this command ended too early: see above", exit_codes.FAILURE)
    return line.decode()


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
