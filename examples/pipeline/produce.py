"""Sends the orders: the id of the order is the key, so that all its events are in one queue, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from rmq import Admin, Message, Producer

from .orders import TOPIC, Event

_AT_ONCE: Final = 500  # events that are on their way together: the order of the calls is the order in the queues


async def produce(broker: str, events: Sequence[Event], queues: int, say: Callable[[str], None]) -> None:
    """Make the topic and send the events to it."""
    async with Admin(broker) as admin:
        await admin.create_topic(TOPIC, queues)
    async with Producer(broker) as producer:
        for start in range(0, len(events), _AT_ONCE):
            async with asyncio.TaskGroup() as tasks:
                for event in events[start : start + _AT_ONCE]:
                    tasks.create_task(producer.send(_message(event)))
            sent = min(start + _AT_ONCE, len(events))
            if sent == len(events) or sent % (_AT_ONCE * 4) == 0:
                say(f"{sent} of {len(events)} events sent")


def _message(event: Event) -> Message:
    return Message(TOPIC, event.body(), key=event.order_id, tag=event.state, index_keys=(event.event_id,))
