"""
The workers of the demo: ``rmq-consume --listener demo_worker:on_event`` calls these.

Each prints what it did as one line of JSON, which is all that the demo knows of them.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from rmq import ConsumeStatus
from rmq.consumer import ConsumeContext, StoredMessage

WORK_S = 0.008  # an event is some work: otherwise nobody could be killed in the middle of it


class CardDeclined(Exception):
    """What a payment may come to."""


async def on_event(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
    """Take some time over every event."""
    for message in messages:
        await asyncio.sleep(WORK_S)
        tell(message, context, done=True)
    return ConsumeStatus.SUCCESS


async def on_payment(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
    """Fail at the bad card, until somebody has mended it by making the file that ``DEMO_MENDED`` names."""
    for message in messages:
        declined = b"declined" in message.body and not Path(os.environ["DEMO_MENDED"]).exists()
        tell(message, context, done=not declined)
        if declined:
            # The pause after the second failure is long enough for somebody to look at it.
            context.suspend_s = 6.0 if message.attempt > 1 else 0.5
            raise CardDeclined("card 4711 is blocked")
    return ConsumeStatus.SUCCESS


def tell(message: StoredMessage, context: ConsumeContext, *, done: bool) -> None:
    """One line for the demo."""
    line = {
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "epoch": context.epoch,
        "attempt": message.attempt,
        "body": message.body.decode(),
        "done": done,
    }
    print(json.dumps(line), flush=True)
