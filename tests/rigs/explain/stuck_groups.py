"""Groups that are well, and groups that are stuck, each for another reason: what ``rmq-admin explain`` is about."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

from rmq.client import Admin
from rmq.consumer import ConsumeStatus
from rmq.wire.model import MessageQueue, StoredMessage

from rigs.explain.staging import SUCCESS, TOPIC, Scene, failing, staged, taking, well

# ---- groups that are well


@staged()
async def no_new_messages(at: Scene) -> None:
    await at.send(3)
    await at.consumer(well)


@staged()
async def no_new_messages_but_delayed_ones(at: Scene) -> None:
    await at.consumer(well)
    await at.send(3, delay_level=5)


@staged()
async def consuming(at: Scene) -> None:
    await at.send(100)
    await at.send(1, queue_id=1)
    await at.consumer(taking(0.1))


@staged()
async def no_new_messages_for_who_pulls(at: Scene) -> None:
    await at.send(5)
    member = await at.pull_consumer(auto_commit_every_s=0.0)
    for _ in range(6):
        await member.poll(1.0)


# ---- no member works on it


@staged()
async def no_member(at: Scene) -> None:
    member = await at.consumer(well)
    await at.send(1)
    await asyncio.sleep(1.0)
    await member.stop()
    await at.send(5)
    await asyncio.sleep(300.0)


@staged()
async def no_member_in_its_grace(at: Scene) -> None:
    await asyncio.sleep(60.0)
    await at.send(5)
    await at.consumer(taking(100.0))
    at.wires[0].cut()
    await asyncio.sleep(1.0)


@staged()
async def no_member_after_the_start_of_the_broker(at: Scene) -> None:
    await at.send(5)
    await at.consumer(taking(100.0))
    at.wires[0].cut()
    await asyncio.sleep(1.0)


@staged()
async def not_subscribed(at: Scene) -> None:
    member = await at.consumer(well)
    await at.send(1)
    await asyncio.sleep(1.0)
    await member.stop()
    async with Admin(at.broker.address) as admin:
        await admin.create_topic("invoices", 1)
    await at.send(4)
    await at.consumer(well, topics={"invoices": "*", "refunds": "*"})


@staged()
async def not_allocated(at: Scene) -> None:
    await at.send(3, queue_id=1)
    await at.consumer(well, strategy="config:orders/0")


@staged()
async def not_assigned(at: Scene) -> None:
    await at.send(3, queue_id=0)
    await at.send(3, queue_id=1)
    member = await at.pull_consumer(topics={})
    member.assign([(TOPIC, 1)])
    for _ in range(8):
        await member.poll(1.0)


@staged()
async def waiting_for_a_lock_in_grace(at: Scene) -> None:
    await at.send(5, queue_id=0)
    await at.consumer(taking(100.0))
    await at.consumer(taking(100.0), "pay-2@52")
    at.wires[0].cut()
    await asyncio.sleep(1.0)


@staged()
async def waiting_for_a_lock_of_a_running_call(at: Scene) -> None:
    await at.send(5, queue_id=0)
    await at.send(5, queue_id=1)
    await at.consumer(taking(100.0))
    await at.consumer(well, "pay-2@52")
    await asyncio.sleep(6.0)


@staged()
async def member_silent(at: Scene) -> None:
    await at.send(5)
    await at.consumer(taking(100.0))
    at.wires[0].is_deaf = True


@staged()
async def member_silent_for_so_long_that_it_lost_its_queues(at: Scene) -> None:
    await at.send(5)
    await at.consumer(taking(1000.0))
    at.wires[0].freeze()
    await asyncio.sleep(70.0)


@staged()
async def member_silent_while_others_go_on(at: Scene) -> None:
    await at.send(5)
    await at.consumer(taking(1000.0))
    at.wires[0].freeze()
    await at.consumer(well, "pay-2@52")
    await asyncio.sleep(90.0)


# ---- stopped


@staged(queues=1)
async def crash_loop(at: Scene) -> None:
    await at.send(3)
    await at.send(1, body=b"bad")
    await at.send(3)
    await _lives(at, 10)


@staged(queues=1)
async def crash_loop_that_is_not_over(at: Scene) -> None:
    await at.send(3)
    await at.send(1, body=b"bad")
    await _lives(at, 4)


async def _lives(at: Scene, lives: int) -> None:
    """Processes that end at a message, one after the other, until one of them does not."""
    for _ in range(lives):
        died = asyncio.Event()

        async def deadly(messages: list[StoredMessage], context: Any, died: asyncio.Event = died) -> ConsumeStatus:
            if any(message.body == b"bad" for message in messages):
                died.set()
                at.wires[-1].cut()
                await asyncio.sleep(1e6)
            return SUCCESS

        member = await at.consumer(deadly)
        await asyncio.sleep(8.0)
        if not died.is_set():
            return
        await member.stop()
        await asyncio.sleep(8.0)


@staged(queues=1, segment_bytes=4096, retention_bytes=8192, checkpoint_bytes=4096, recent_bytes=0)
async def messages_lost(at: Scene) -> None:
    await at.send(2)
    member = await at.consumer(well)
    await member.stop()
    await overtaken(at)
    await at.consumer(well)


@staged(queues=1, segment_bytes=4096, retention_bytes=8192, checkpoint_bytes=4096, recent_bytes=0)
async def no_member_and_messages_lost(at: Scene) -> None:
    await at.send(2)
    member = await at.consumer(well)
    await member.stop()
    await overtaken(at)


async def overtaken(at: Scene) -> None:
    """More messages than the broker keeps."""
    for _ in range(40):
        await at.send(1, body=b"y" * 400)
        await asyncio.sleep(1.0)
    async with Admin(at.broker.address) as admin:
        for _ in range(1000):  # the thread that removes them takes real time, the clock does not
            (held,) = await admin.ranges([MessageQueue(TOPIC, 0)])
            if held.min_offset > 2:
                return
            await asyncio.sleep(1.0)
    raise AssertionError("retention has removed nothing")


@staged(queues=1)
async def damaged(at: Scene) -> None:
    for i in range(6):
        await at.send(1, body=b"mark-%d" % i)
    await at.broker.stop()
    (segment,) = (at.folder / "data" / "commitlog").iterdir()
    data = bytearray(segment.read_bytes())
    data[data.index(b"mark-4")] ^= 1
    segment.write_bytes(data)
    await at.broker.start()
    await at.consumer(well)


@staged(queues=1)
async def other_history(at: Scene) -> None:
    await at.send(2)
    await at.consumer(well, model="broadcasting", offsets_dir=str(at.folder / "offsets"))
    data, backup = at.folder / "data", at.folder / "backup"
    await at.broker.stop()
    shutil.copytree(data, backup)
    await at.broker.start()
    await at.send(3)
    await asyncio.sleep(2.0)
    await at.broker.stop()
    shutil.rmtree(data)
    shutil.copytree(backup, data)
    await at.broker.start()
    await at.send(4)
    await asyncio.sleep(2.0)


# ---- its owner works on it, or has a reason not to


@staged()
async def paused(at: Scene) -> None:
    member = await at.consumer(well)
    member.pause(TOPIC)
    await at.send(7)
    await asyncio.sleep(1.0)


@staged()
async def retrying(at: Scene) -> None:
    await at.send(2)
    await at.send(1, body=b"bad")
    await at.send(3)
    await at.consumer(failing)
    await asyncio.sleep(8.0)


@staged()
async def retrying_for_the_first_time(at: Scene) -> None:
    await at.send(1, body=b"bad")
    await at.consumer(failing, suspend_s=4.0)


@staged()
async def retrying_concurrently(at: Scene) -> None:
    await at.send(1)
    await at.send(2, body=b"bad")
    await at.send(1)
    await at.consumer(failing, orderly=False)
    await asyncio.sleep(1.0)


@staged()
async def listener_running(at: Scene) -> None:
    await at.send(5)
    await at.consumer(taking(1000.0))
    await asyncio.sleep(70.0)


@staged()
async def listener_running_for_a_while(at: Scene) -> None:
    await at.send(5)
    await at.consumer(taking(1000.0), orderly=False)
    await asyncio.sleep(10.0)


@staged()
async def batch_in_hand(at: Scene) -> None:
    await at.send(5)
    member = await at.pull_consumer()
    await member.poll(1.0)
    await asyncio.sleep(70.0)


@staged()
async def not_polled(at: Scene) -> None:
    await at.send(5)
    await at.pull_consumer()
    await asyncio.sleep(20.0)


@staged()
async def not_polled_for_so_long_that_it_left(at: Scene) -> None:
    await at.send(5)
    await at.pull_consumer(consume_timeout_s=30.0)
    await asyncio.sleep(60.0)


@staged()
async def slots_busy(at: Scene) -> None:
    await at.send(5, queue_id=0)
    await at.send(5, queue_id=1)
    await at.consumer(taking(100.0), slots=1)
    await asyncio.sleep(3.0)


@staged()
async def loop_late(at: Scene) -> None:
    """Something keeps the loop of a member: its clock is far ahead whenever it gets to look."""
    loop, ahead = asyncio.get_running_loop(), 0.0

    async def block() -> None:
        nonlocal ahead
        while True:
            ahead += 6.0
            await asyncio.sleep(0.05)

    await at.consumer(well, now=lambda: loop.time() + ahead)
    blocking = asyncio.create_task(block())
    at.stack.callback(blocking.cancel)
    await asyncio.sleep(0.7)
    await at.send(3)


@staged()
async def flow_control(at: Scene) -> None:
    await at.send(60)
    await at.consumer(taking(3.0), cache_messages=20)
    await asyncio.sleep(3.5)


@staged()
async def filter_matches_nothing(at: Scene) -> None:
    await at.send(3, tag="paid")
    await at.consumer(well, topics={TOPIC: "piad || refunded"})
    await asyncio.sleep(20.0)


# ---- what is reported besides


@staged(queues=1)
async def idle_members_and_dead_letters(at: Scene) -> None:
    await at.send(2, body=b"bad")
    await at.consumer(failing, max_attempts=1)
    await at.consumer(failing, "pay-2@52", max_attempts=1)
    await asyncio.sleep(2.0)


@staged(queues=1, min_free_bytes=1 << 60)
async def sends_refused(at: Scene) -> None:
    await at.consumer(well)


@staged()
async def broadcasting(at: Scene) -> None:
    await at.send(2)
    await at.send(1, body=b"bad")
    await at.send(2, queue_id=1)
    common = {"model": "broadcasting", "orderly": True}
    await at.consumer(well, offsets_dir=str(at.folder / "1"), **common)
    await at.consumer(failing, "pay-2@52", offsets_dir=str(at.folder / "2"), **common)
    await asyncio.sleep(9.0)
