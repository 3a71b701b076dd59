"""
A member of an ordered group. It notes each delivery in a file, from which the report tells what the group did.

``billing`` books every event; some fail at the first try, and one that nobody can book ends among the dead letters.
``mailing`` writes to customers, and wants only the events that they should hear of.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any, Final, TextIO

from rmq import Consumer, ConsumeStatus
from rmq.consumer import ConsumeContext, StoredMessage

from .orders import TOPIC, fails_at_first

BILLING: Final = "billing"
GROUPS: Final = {BILLING: "*", "mailing": "shipped || delivered"}
"""The groups, each with the tags it wants."""

MAX_ATTEMPTS: Final = 3
DELIVERIES: Final = "deliveries"  # the folder of what members note


class CannotBook(Exception):
    """An event that is not booked this time."""


class Member:
    """The listener of one member: handles an event and notes how that went."""

    def __init__(self, group: str, notes: TextIO) -> None:
        self._group = group
        self._notes = notes
        self._number = 0

    async def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Handle the one message of a call; what is raised here makes it come again."""
        for message in messages:
            event = json.loads(message.body)
            try:
                self._handle(event, message.attempt)
            except CannotBook:
                self._note(message, context, ok=False)
                raise
            self._note(message, context, ok=True)
        return ConsumeStatus.SUCCESS

    def _handle(self, event: dict[str, Any], attempt: int) -> None:
        if self._group != BILLING:
            return
        if event["amount_cents"] < 0:
            raise CannotBook(f"{event['event_id']} has an amount of {event['amount_cents']}")
        if attempt == 1 and fails_at_first(event["event_id"]):
            raise CannotBook(f"no answer when {event['event_id']} was booked")

    def _note(self, message: StoredMessage, context: ConsumeContext, *, ok: bool) -> None:
        self._number += 1
        note = {
            "consumer_group": self._group,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            # The epoch grows with every owner of a queue: it puts the notes of several members into one sequence.
            "epoch": context.epoch,
            "number": self._number,
            "attempt": message.attempt,
            "ok": ok,
        }
        self._notes.write(json.dumps(note) + "\n")


async def consume(broker: str, group: str, name: str, folder: Path) -> None:
    """Consume until a signal comes; then give the queues back, so that nothing is delivered again."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with (folder / DELIVERIES / f"{name}.jsonl").open("w", buffering=1) as notes:
        consumer = Consumer(
            broker,
            group=group,
            listener=Member(group, notes),
            topics={TOPIC: GROUPS[group]},
            max_attempts=MAX_ATTEMPTS,
            suspend_s=0.05,
        )
        async with consumer:
            await stop.wait()
