"""
Three ways to lose the order of a key, and what keeps it: ``python examples/why_order_breaks.py``.

1. Several tasks send the messages of one order: whoever is ready first comes first.
2. Messages of one order go to several queues: queues know nothing of each other.
3. A queue changes hands while its old reader still has messages of it, and nobody holds a lock.

Each is shown with its mistake and with the right use. A broker is started in memory; the program ends with an error if
a mistake goes unpunished or the right use does not keep the order.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from rmq import Admin, Consumer, ConsumeStatus, Message, Producer
from rmq.consumer import ConsumeContext, MessageQueue, StoredMessage
from rmq.engine.native.connection import Connection
from rmq.testing import InMemoryBroker
from rmq.wire.batch import batch
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

STEPS = 8
ORDER = "order-1"
QUEUES = 4
PATIENCE_S = 20.0

Seen = list[int]  # the steps of the order, as they took effect


# ---- 1. several tasks that send


async def send_from_many_tasks(producer: Producer, topic: str) -> None:
    """The mistake: a task for each step. The later steps are prepared quicker here, and overtake the earlier."""

    async def prepare_and_send(step: int) -> None:
        await asyncio.sleep((STEPS - step) * 0.01)
        await producer.send(step_of(topic, step), key=ORDER)

    await asyncio.gather(*(prepare_and_send(step) for step in range(STEPS)))


async def send_in_one_line(producer: Producer, topic: str) -> None:
    """The right use: prepare in parallel, but send what belongs to one key from one place, one after the other."""

    async def prepare(step: int) -> Message:
        await asyncio.sleep((STEPS - step) * 0.01)
        return step_of(topic, step)

    prepared = [asyncio.create_task(prepare(step)) for step in range(STEPS)]
    for message in prepared:
        await producer.send(await message, key=ORDER)


async def concurrent_producers(broker: str) -> tuple[Seen, Seen]:
    """What a consumer sees of both."""
    return (
        await sent_and_consumed(broker, "many-tasks", send_from_many_tasks),
        await sent_and_consumed(broker, "one-line", send_in_one_line),
    )


# ---- 2. several queues


async def send_round_robin(producer: Producer, topic: str) -> None:
    """The mistake: no key, so each message goes to the next queue."""
    for step in range(STEPS):
        await producer.send(step_of(topic, step))


async def send_with_key(producer: Producer, topic: str) -> None:
    """The right use: the order is the key, so all its messages are in one queue."""
    for step in range(STEPS):
        await producer.send(step_of(topic, step), key=ORDER)


async def round_robin(broker: str) -> tuple[Seen, Seen]:
    """What a consumer sees of both, to whom the first step is the most work."""
    return (
        await sent_and_consumed(broker, "round-robin", send_round_robin, first_takes_s=0.1),
        await sent_and_consumed(broker, "with-key", send_with_key, first_takes_s=0.1),
    )


# ---- 3. a queue that changes hands


async def without_locks(broker: str) -> Seen:
    """The mistake: the second reader begins where progress was reported, while the first works on what it has."""
    topic, effects = "no-locks", Seen()
    await filled(broker, topic, queues=1)
    committed = 0
    half_way = asyncio.Event()

    async def first_reader() -> None:
        nonlocal committed
        for step in await pulled(broker, topic, 0):  # its backlog
            await asyncio.sleep(0.02)  # it is slow
            effects.append(step)
            if not half_way.is_set():
                committed = step + 1
            if step == STEPS // 2:
                half_way.set()

    async def second_reader() -> None:
        await half_way.wait()  # a rebalance: from here on the queue is the second reader's
        for step in await pulled(broker, topic, committed):
            effects.append(step)

    await asyncio.gather(first_reader(), second_reader())
    return effects


async def with_locks(broker: str) -> Seen:
    """The right use: an ordered group. The queue is handed over between two calls, and what was cached is let go."""
    topic, effects = "locks", dict[MessageQueue, Seen]()
    await filled(broker, topic, queues=2)
    half_way, shared, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    owners: dict[MessageQueue, set[str]] = {}

    def listener(
        name: str, takes_s: float
    ) -> Callable[[list[StoredMessage], ConsumeContext], Awaitable[ConsumeStatus]]:
        async def on_message(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
            await asyncio.sleep(takes_s)
            if half_way.is_set():
                await shared.wait()  # a call that runs while its queue is to change hands
            effects.setdefault(context.queue, Seen()).extend(int(message.body) for message in messages)
            owners.setdefault(context.queue, set()).add(name)
            if len(effects) == 2 and all(len(seen) >= STEPS // 2 for seen in effects.values()):
                half_way.set()
            if sum(map(len, effects.values())) >= 2 * STEPS:
                done.set()
            return ConsumeStatus.SUCCESS

        return on_message

    topics = {topic: "*"}
    async with (
        asyncio.timeout(PATIENCE_S),
        Consumer(broker, group=topic, listener=listener("first", 0.02), topics=topics) as first,
    ):
        await half_way.wait()
        async with Consumer(broker, group=topic, listener=listener("second", 0.0), topics=topics):
            while len(first.assignment) > 1:
                await asyncio.sleep(0.01)
            shared.set()
            await done.wait()
    moved = next(queue for queue, names in owners.items() if len(names) == 2)
    return effects[moved]


async def rebalance(broker: str) -> tuple[Seen, Seen]:
    """What took effect, in the order in which it did."""
    return await without_locks(broker), await with_locks(broker)


# ---- what all of them need


def step_of(topic: str, step: int) -> Message:
    """One step of the order."""
    return Message(topic, b"%d" % step, index_keys=(ORDER,))


@asynccontextmanager
async def new_topic(broker: str, topic: str, queues: int) -> AsyncIterator[Producer]:
    """A topic, and a producer for it."""
    async with Admin(broker) as admin, Producer(broker) as producer:
        await admin.create_topic(topic, queues)
        yield producer


async def sent_and_consumed(
    broker: str, topic: str, send: Callable[[Producer, str], Awaitable[None]], *, first_takes_s: float = 0.0
) -> Seen:
    """The steps as the listener of an ordered consumer got done with them."""
    seen, done = Seen(), asyncio.Event()

    async def on_step(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        for message in messages:
            if message.body == b"0":
                await asyncio.sleep(first_takes_s)
            seen.append(int(message.body))
        if len(seen) == STEPS:
            done.set()
        return ConsumeStatus.SUCCESS

    async with new_topic(broker, topic, QUEUES) as producer:
        await send(producer, topic)
    async with Consumer(broker, group=topic, listener=on_step, topics={topic: "*"}), asyncio.timeout(PATIENCE_S):
        await done.wait()
    return seen


async def filled(broker: str, topic: str, queues: int) -> None:
    """A topic with all steps in each of its queues."""
    async with new_topic(broker, topic, queues) as producer:
        for queue_id in range(queues):
            for step in range(STEPS):
                await producer.send(step_of(topic, step), queue_id=queue_id)


async def pulled(broker: str, topic: str, offset: int) -> Seen:
    """The steps of queue 0 from an offset on, by pulls of no group: nothing is locked, nothing committed."""
    connection = Connection(broker, client="reader")
    await connection.open(timeout_s=5)
    try:
        steps = Seen()
        while True:
            asked = ops.PullQueue(topic, 0, offset)
            (found,) = decode_list(
                ops.PullResult, await connection.request(Op.PULL, ops.Pull(None, 0, 1 << 20, [asked]))
            )
            for one in batch.read_all(found.batches, stores=StoreIds(0)):
                steps += [int(message.body) for message in one.messages(offset)]
            if found.status == ops.EMPTY or found.next_offset == offset:
                return steps
            offset = found.next_offset
    finally:
        await connection.close()


DEMONSTRATIONS = (
    ("one order sent by several tasks", "one line for each key", concurrent_producers),
    ("one order in several queues, by round robin", "the order as the key", round_robin),
    ("a queue that changes hands without a lock", "an ordered group", rebalance),
)


async def main() -> None:
    """All three; an error if one does not show what it says."""
    expected = list(range(STEPS))
    async with InMemoryBroker() as own:
        for mistake, right_use, demonstrate in DEMONSTRATIONS:
            broken, kept = await demonstrate(own.address)
            print(f"{mistake}:\n  out of order: {broken}\n{right_use}:\n  in order:     {kept}\n")
            if broken == sorted(broken):
                sys.exit(f"why_order_breaks: {mistake}, and the order was kept by chance")
            if kept != expected:
                sys.exit(f"why_order_breaks: {right_use}, and the order was not kept")
    print("three mistakes, three ways to keep the order")


if __name__ == "__main__":
    asyncio.run(main())
