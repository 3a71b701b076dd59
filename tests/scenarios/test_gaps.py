"""Messages that are lost to retention, to rot or to a power cut: what real brokers and real consumers make of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmq.client import Admin, Message, Producer
from rmq.consumer import Consumer, ConsumeStatus
from rmq.consumer.listener import ConsumeContext
from rmq.wire.model import MessageQueue, StoredMessage

from rigs.processes import DEADLINE_S, BrokerProcess, ConsumerProcess

pytestmark = pytest.mark.slow

OVERTAKING = (
    *("-o", "segment_bytes=64KiB", "-o", "retention_bytes=128KiB"),
    *("-o", "checkpoint_bytes=64KiB", "-o", "checkpoint_s=1"),
)
ASYNC = ("--flush", "async")


class Member(ConsumerProcess):
    """A member of the group ``g`` of the topic ``t``."""

    def __init__(self, address: str, *options: str) -> None:
        super().__init__(address, "t", "--group", "g", *options)

    def offsets(self, queue_id: int) -> list[int]:
        """What it processed of a queue, in its order."""
        return [message["queue_offset"] for message in self.messages if message["queue_id"] == queue_id]

    def said(self, event: str) -> list[str]:
        """Its log lines of an event."""
        return [line for line in list(self.errors) if f"event={event} " in line]


async def test_a_group_that_retention_overtakes_stops_there_and_goes_on_when_told_to_skip(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path, "127.0.0.1:0", *OVERTAKING))
        address = broker.address
        await _make(address)
        await _send(address, 0, [b"old"] * 5)
        member = stack.enter_context(Member(address))
        await _until(lambda: _committed_is(address, [5, 0]))
        assert member.stop() == 0

        await _send(address, 0, [os.urandom(8000)] * 60)
        await _until(lambda: _begins_behind(address, 0, 5))
        (first, end), _ = await _held(address)

        member = stack.enter_context(Member(address))
        await _until(lambda: bool(member.said("queue.stopped")))
        await _send(address, 1, [b"other"])
        await _until(lambda: member.offsets(1) == [0])  # nothing else is disturbed
        broker.kill()
        broker = stack.enter_context(BrokerProcess(tmp_path, address, *OVERTAKING))
        await _send(address, 1, [b"other"])
        await _until(lambda: member.offsets(1) == [0, 1])
        assert member.stop() == 0
        assert member.offsets(0) == []
        assert f"reason=MESSAGES_LOST from_offset=5 to_offset={first - 1} count={first - 5}" in str(member.errors)
        assert await _committed(address) == [5, 2]  # it stands where it stopped

        member = stack.enter_context(Member(address, "--on-gap", "skip"))
        await _until(lambda: _committed_is(address, [end, 2]))
        assert member.stop() == 0
        assert member.offsets(0) == list(range(first, end))
        assert len(member.said("queue.gap_skipped")) == 1

        await _send(address, 0, [b"new"])
        member = stack.enter_context(Member(address))
        await _until(lambda: member.offsets(0) == [end])
        assert not member.said("queue.stopped")


async def test_a_damaged_message_stops_its_queue_and_skipping_passes_it_alone(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path))
        address = broker.address
        await _make(address)
        await _send(address, 0, [b"mark-%d" % i for i in range(10)])
        await _send(address, 1, [b"other"] * 10)
        broker.stop()
        _flip(tmp_path, b"mark-4")
        broker = stack.enter_context(BrokerProcess(tmp_path, address))

        member = stack.enter_context(Member(address))
        await _until(lambda: _committed_is(address, [4, 10]))
        await _until(lambda: bool(member.said("queue.stopped")))
        broker.kill()
        broker = stack.enter_context(BrokerProcess(tmp_path, address))
        await _send(address, 1, [b"other"])
        await _until(lambda: len(member.offsets(1)) == 11)
        assert member.stop() == 0
        assert member.offsets(0) == [0, 1, 2, 3]
        assert "reason=DAMAGED from_offset=4 to_offset=4 count=1" in str(member.errors)

        again = stack.enter_context(Member(address))
        await _until(lambda: bool(again.said("queue.stopped")))
        assert again.stop() == 0
        assert again.offsets(0) == []

        skipping = stack.enter_context(Member(address, "--on-gap", "skip"))
        await _until(lambda: _committed_is(address, [10, 11]))
        assert skipping.stop() == 0
        assert skipping.offsets(0) == [5, 6, 7, 8, 9]
        assert await _damaged_reads(address) > 0


async def test_damage_at_the_end_of_a_queue_is_skipped_and_recorded_as_passed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path))
        address = broker.address
        await _make(address)
        await _send(address, 0, [b"mark-%d" % i for i in range(3)])
        broker.stop()
        _flip(tmp_path, b"mark-2")
        stack.enter_context(BrokerProcess(tmp_path, address))

        member = stack.enter_context(Member(address, "--on-gap", "skip"))
        await _until(lambda: _committed_is(address, [3, 0]))
        assert member.stop() == 0
        await _send(address, 0, [b"behind"])
        member = stack.enter_context(Member(address))
        await _until(lambda: member.offsets(0) == [3])


async def test_a_reader_of_what_a_power_cut_took_goes_back_and_gets_what_has_those_offsets_now(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path, "127.0.0.1:0", *ASYNC))
        address = broker.address
        await _make(address)
        member = stack.enter_context(Member(address))
        await _send(address, 0, [b"kept"] * 5)
        await _until(lambda: _committed_is(address, [5, 0]))
        size = await _written(address)
        await _send(address, 0, [b"lost"] * 5)
        await _until(lambda: _committed_is(address, [10, 0]))

        broker.kill()
        _cut(tmp_path, size + 10)
        stack.enter_context(BrokerProcess(tmp_path, address, *ASYNC))
        assert await _committed(address) == [5, 0]  # the progress went with the messages
        await _send(address, 0, [b"new"] * 8)
        await _until(lambda: _committed_is(address, [13, 0]))

        bodies = [message["body"] for message in member.messages]
        assert bodies == ["kept"] * 5 + ["lost"] * 5 + ["new"] * 8
        assert member.offsets(0) == [*range(10), *range(5, 13)]
        assert "from_offset=5 to_offset=9 count=5 delivered=5" in str(member.said("log.truncated"))


async def test_a_call_that_has_a_message_that_a_power_cut_took_is_told_and_counts_for_nothing(tmp_path: Path) -> None:
    heard = _Heard()

    async def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        await heard(messages, context)
        if messages[0].body == b"lost-1":
            await asyncio.wait_for(context.lost.wait(), DEADLINE_S)
        return ConsumeStatus.SUCCESS

    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path, "127.0.0.1:0", *ASYNC))
        address = broker.address
        await _make(address)
        async with Consumer(address, group="g", listener=listener, orderly=True, topics={"t": "*"}):
            await _send(address, 0, [b"kept"])
            await _until(lambda: _committed_is(address, [1, 0]))
            size = await _written(address)
            await _send(address, 0, [b"lost-0", b"lost-1", b"lost-2"])
            await _until(lambda: heard.places[-1] == (0, 2))

            broker.kill()
            _cut(tmp_path, size)
            stack.enter_context(BrokerProcess(tmp_path, address, *ASYNC))
            await _send(address, 0, [b"new-0", b"new-1"])
            await _until(lambda: _committed_is(address, [3, 0]))

    assert heard.bodies == [b"kept", b"lost-0", b"lost-1", b"new-0", b"new-1"]
    assert heard.places[-2:] == [(0, 1), (0, 2)]


async def test_a_topic_that_a_power_cut_took_is_consumed_from_its_first_message_when_it_is_made_again(
    tmp_path: Path,
) -> None:
    heard = _Heard()
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path, "127.0.0.1:0", *ASYNC))
        address = broker.address
        size = await _written(address)
        async with Consumer(address, group="g", listener=heard, orderly=True, topics={"t": "*"}):
            await _make(address)
            await _send(address, 0, [b"lost"] * 5)
            await _until(lambda: _committed_is(address, [5, 0]))

            broker.kill()
            _cut(tmp_path, size)
            stack.enter_context(BrokerProcess(tmp_path, address, *ASYNC))
            await _make(address)
            await _send(address, 0, [b"new"] * 2)
            await _until(lambda: _committed_is(address, [2, 0]))

    assert heard.bodies == [b"lost"] * 5 + [b"new"] * 2


async def test_a_producer_that_lives_through_a_power_cut_goes_on_in_order(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path, "127.0.0.1:0", *ASYNC))
        address = broker.address
        await _make(address)
        async with Producer(address, compression="zlib") as producer:
            await producer.send(Message("t", b"kept"), queue_id=0)
            size = await _written(address)
            for _ in range(5):
                await producer.send(Message("t", b"lost"), queue_id=0)
            broker.kill()
            _cut(tmp_path, size)
            sends = [asyncio.create_task(producer.send(Message("t", b"x" * 300), queue_id=0)) for _ in range(100)]
            stack.enter_context(BrokerProcess(tmp_path, address, *ASYNC))
            receipts = await asyncio.gather(*sends)

    assert [receipt.queue_offset for receipt in receipts] == list(range(1, 101))


class _Heard:
    """A listener that notes what it was given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.places: list[tuple[int, int]] = [(-1, -1)]

    async def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        self.bodies += [message.body for message in messages]
        self.places += [(message.queue_id, message.queue_offset) for message in messages]
        return ConsumeStatus.SUCCESS


async def _make(address: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topic("t", 2)


async def _send(address: str, queue_id: int, bodies: Iterable[bytes]) -> None:
    """Each as a batch of its own."""
    async with Producer(address) as producer:
        for body in bodies:
            await producer.send(Message("t", body), queue_id=queue_id)


async def _held(address: str) -> list[tuple[int, int]]:
    async with Admin(address) as admin:
        return [(held.min_offset, held.max_offset) for held in await admin.ranges(_queues())]


async def _committed(address: str) -> list[int]:
    """The progress of the group; 0 where it has none."""
    async with Admin(address) as admin:
        return [max(held.committed, 0) for held in await admin.ranges(_queues(), "g")]


def _queues() -> list[MessageQueue]:
    return [MessageQueue("t", queue_id) for queue_id in range(2)]


async def _committed_is(address: str, offsets: list[int]) -> bool:
    return await _committed(address) == offsets


async def _begins_behind(address: str, queue_id: int, offset: int) -> bool:
    return (await _held(address))[queue_id][0] > offset


async def _written(address: str) -> int:
    """How long the log is when progress that rode on a pull is in it as well (``offset_flush_s`` later)."""
    loop, written, since = asyncio.get_running_loop(), -1, 0.0

    async def is_quiet() -> bool:
        nonlocal written, since
        async with Admin(address) as admin:
            now = int((await admin.stats())["log"]["log_written"])
        if now != written:
            written, since = now, loop.time()
        return loop.time() - since > 0.3

    await _until(is_quiet)
    return written


async def _damaged_reads(address: str) -> int:
    async with Admin(address) as admin:
        return int((await admin.stats())["serving"]["damaged_reads"])


def _flip(data_dir: Path, body: bytes) -> None:
    """One bit of a stored message rots."""
    (path,) = (data_dir / "commitlog").iterdir()
    data = bytearray(path.read_bytes())
    data[data.index(body)] ^= 1
    path.write_bytes(data)


def _cut(data_dir: Path, position: int) -> None:
    """What a power cut may leave of a log that was not synced: its beginning."""
    (path,) = (data_dir / "commitlog").iterdir()
    os.truncate(path, position)


async def _until(condition: Callable[[], bool | Awaitable[bool]], deadline_s: float = DEADLINE_S) -> None:
    loop = asyncio.get_running_loop()
    ends = loop.time() + deadline_s
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        assert loop.time() < ends, "that did not happen in time"
        await asyncio.sleep(0.05)
