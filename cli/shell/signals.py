"""
Stop signals for commands that run until they are stopped.

The first SIGINT or SIGTERM requests a clean stop; a second one ends the process at once, as a crash would, which loses
nothing that was acknowledged. See :mod:`rmq.runtime.stop_signals`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from rmq.runtime.stop_signals import StopSignals

from . import exit_codes


@contextmanager
def stop_signals(together_s: float | None = None) -> Iterator[asyncio.Event]:
    """Within the block the event is set by the first signal; needs a running loop."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    with StopSignals(lambda _: loop.call_soon_threadsafe(asked.set), _end_at_once, always=True, together_s=together_s):
        yield asked


def _end_at_once() -> None:
    os.write(sys.stderr.fileno(), b"stopped at once, by a second signal\n")
    os._exit(exit_codes.INTERRUPTED)


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set; cancelling is safe."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Do something until it ends, or a signal cancels it; raises what it raised. For what has no end of its own."""
    with stop_signals() as asked:
        working, signalled = asyncio.create_task(work), asyncio.create_task(asked.wait())
        try:
            await asyncio.wait([working, signalled], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
                await asyncio.wait([working])
            if not working.cancelled():
                working.result()
        finally:
            working.cancel()
            signalled.cancel()
