"""
A web service that sends what it is told: one producer for the whole process, order kept per order id.

    pip install fastapi uvicorn
    rmq-broker start                                              # RMQ_BROKER names another one than 127.0.0.1:10911
    uvicorn --app-dir examples fastapi_orders:app --port 8000
    curl -i -H 'content-type: application/json' -d '{"order": "o-17", "step": "created"}' localhost:8000/orders
    curl localhost:8000/orders/o-17

``POST /orders`` answers 202 when the broker has stored the event: with ``flush = "sync"`` it is on the disk then. When
the broker is away it answers 503 with the reason. The consumer runs in the same process here, to keep the example
short; it may as well be a process of its own, which is better when its work takes the processor.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from rmq import (
    ConnectionLost,
    Consumer,
    ConsumeStatus,
    DiskFull,
    Message,
    MessageTooLarge,
    OutcomeUnknown,
    Producer,
    RequestTimeout,
    RmqError,
    StoreFailed,
)
from rmq.consumer import ConsumeContext, StoredMessage

TOPIC = "web-orders"
SEND_S = 2.0  # a caller waits this long at most: then it is told, and may try again


class Event(BaseModel):
    """What a client may tell us."""

    order: str = Field(pattern=r"^[A-Za-z0-9-]{1,64}$")
    step: Literal["created", "paid", "shipped"]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """
    One producer and one consumer as long as the process lives; many requests share the producer.

    Leaving waits until everything that was sent is answered, and gives the consumer's queues back. Without a broker
    the service does not start: whatever supervises it starts it again.
    """
    broker = os.environ.get("RMQ_BROKER", "127.0.0.1:10911")
    app.state.steps = {}  # in a real service: a database. Each worker process of uvicorn has one of its own.
    async with (
        Producer(broker, delivery_timeout_s=SEND_S) as app.state.producer,
        Consumer(broker, group="web-orders", listener=Progress(app.state.steps), topics={TOPIC: "*"}),
    ):
        yield


class Progress:
    """The listener: notes which steps an order has been through."""

    def __init__(self, steps: dict[str, list[str]]) -> None:
        self._steps = steps

    async def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Note the steps; what is delivered again is noted once."""
        for message in messages:
            event = json.loads(message.body)
            taken = self._steps.setdefault(event["order"], [])
            if event["step"] not in taken:
                taken.append(event["step"])
        return ConsumeStatus.SUCCESS


app = FastAPI(title="orders", lifespan=lifespan)


@app.post("/orders", status_code=202)
async def post_order(event: Event, request: Request) -> dict[str, Any]:
    """Send an event; all events of an order are processed one after the other."""
    message = Message(TOPIC, event.model_dump_json().encode(), key=event.order, tag=event.step)
    receipt = await request.app.state.producer.send(message)
    return {
        "message_id": receipt.message_id,
        "queue_id": receipt.queue_id,
        "queue_offset": receipt.queue_offset,
        "durable": receipt.durable,
    }


@app.get("/orders/{order}")
async def get_order(order: str, request: Request) -> dict[str, Any]:
    """What the consumer has seen of an order so far."""
    if order not in request.app.state.steps:
        raise HTTPException(404, f"nothing is known of {order}")
    return {"order": order, "steps": request.app.state.steps[order]}


# The first class that fits. 503: certainly not stored, try again. 504: perhaps stored, so a second try may store it
# twice; what consumes it should know an order's step when it sees it again, as Progress does.
STATUS: tuple[tuple[type[RmqError], int], ...] = (
    (OutcomeUnknown, 504),
    (ConnectionLost, 503),
    (RequestTimeout, 503),
    (DiskFull, 503),
    (StoreFailed, 503),
    (MessageTooLarge, 413),
    (RmqError, 500),
)


@app.exception_handler(RmqError)
async def tell(request: Request, error: RmqError) -> JSONResponse:
    """The broker's own sentence, with a status that says whether trying again is worth it."""
    status = next(status for kind, status in STATUS if isinstance(error, kind))
    headers = {"retry-after": "1"} if status == 503 else None
    return JSONResponse({"detail": str(error)}, status, headers)
