"""Notices when something on the loop kept everything else waiting, renewals included."""

from __future__ import annotations

import asyncio

from rmq.client.log import get_logger

log = get_logger("rmq.consumer")

EVERY_S = 1.0
WORTH_TELLING_S = 0.5


async def watch_for_stalls() -> None:
    """
    Log ``loop.stalled`` whenever a timer comes late, until cancelled.

    It is most likely a listener that is ``async def`` and blocks: make it a plain ``def``, then it runs in a thread.
    """
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + EVERY_S
        await asyncio.sleep(EVERY_S)
        late_s = loop.time() - due
        if late_s > WORTH_TELLING_S:
            advice = "a listener that blocks must be a plain def, which runs in a thread"
            log.warning("loop.stalled", seconds=round(late_s, 3), advice=advice)
