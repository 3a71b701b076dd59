"""Dead letters of a group, made by the shortest way there is: a member gives messages up as soon as it has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rmq.client import Connection, Message, Producer
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op


async def bury_now(address: str, group: str, messages: Sequence[Message], reason: str, queue_id: int) -> list[str]:
    """Send messages to one queue, and make each a dead letter of the group; returns their ids."""
    async with Producer(address) as producer:
        receipts = await producer.send_many(messages, queue_id=queue_id)
    topic, offsets = messages[0].topic, [receipt.queue_offset for receipt in receipts]
    connection = Connection(address, client="undertaker")
    await connection.open(timeout_s=5.0)
    try:
        await connection.request(Op.JOIN, ops.Join(group, True, "clustering", "average", {topic: "*"}))
        (grant,) = await connection.request(Op.ACQUIRE, ops.Acquire(group, [ops.QueueRef(topic, queue_id)]))
        epoch = decode(ops.Grant, grant).epoch
        ask = ops.DeadLetter(group, topic, queue_id, epoch, offsets, offsets[-1] + 1, reason)
        await connection.request(Op.DEAD_LETTER, ask)
        end = ops.LeaseEnd(topic, queue_id, epoch, offsets[-1] + 1)
        await connection.request(Op.LEAVE, ops.Leave(group, [end]))
    finally:
        await connection.close()
    return [receipt.message_id for receipt in receipts]


def bury(
    address: str, group: str, messages: Sequence[Message], *, reason: str = "poison", queue_id: int = 0
) -> list[str]:
    """The same for code without a loop."""
    return asyncio.run(bury_now(address, group, messages, reason, queue_id))
