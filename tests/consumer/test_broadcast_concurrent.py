"""Broadcasting without an order: many calls at a time, the same progress, and failures that nobody else notices."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmq.consumer import Consumer, ConsumeStatus
from rmq.consumer.listener import ConcurrentContext
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from .broadcast_rig import LOCKING, fill, saved
from .fake_broker import FakeBroker
from .recorder import Make, Messages, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]
RETRY = ConsumeStatus.RETRY


@pytest.fixture
def concurrent(member: Make) -> Make:
    """Makes broadcasting members that do not consume in order."""
    made: Make = partial(member, orderly=False)
    return made


async def test_every_member_gets_every_message_once_without_a_lock(
    broker: FakeBroker, concurrent: Make, tmp_path: Path
) -> None:
    fill(broker, queues=2, count=10)
    first, second = Recorder(takes_s=1), Recorder(takes_s=1)

    async with concurrent(first, topics={"t": "*"}, slots=4), concurrent(second, topics={"t": "*"}, instance="b"):
        await asyncio.sleep(100)

    assert sorted(first.offsets) == sorted(second.offsets) == sorted([*range(10)] * 2)
    assert (first.most, second.most) == (4, 20)
    assert saved(tmp_path / "a") == saved(tmp_path / "b") == {"t/0": 10, "t/1": 10}
    assert {(join.payload.model, join.payload.ordered) for join in broker.sent(Op.JOIN)} == {("broadcasting", False)}
    assert not [request.op for request in broker.requests if request.op in LOCKING]


@pytest.mark.parametrize("answer", [RETRY, None, RuntimeError("odd price"), lambda c: setattr(c, "delay_level", -1)])
async def test_a_failed_message_is_told_and_passed_and_nobody_else_notices(
    broker: FakeBroker, concurrent: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    """Scenario 76."""
    fill(broker, queues=1)
    failing, well = Recorder(answer), Recorder()

    async with concurrent(failing, topics={"t": "*"}), concurrent(well, topics={"t": "*"}, instance="b"):
        await asyncio.sleep(100)

    assert sorted(failing.offsets) == sorted(well.offsets) == [0, 1, 2]
    assert saved(tmp_path / "a") == {"t/0": 3}
    assert sum("message.skipped" in record.getMessage() for record in caplog.records) == 1
    assert not [request for request in broker.requests if request.op in LOCKING]


async def test_what_lies_behind_the_ack_index_is_passed(
    broker: FakeBroker, concurrent: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t", 1)
    broker.send("t", 0, *[b"x"] * 4)

    async def second_of_four(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        context.ack_index = 1
        return ConsumeStatus.SUCCESS

    async with concurrent(second_of_four, topics={"t": "*"}, batch=4):
        await asyncio.sleep(1)

    assert saved(tmp_path / "a") == {"t/0": 4}
    assert "queue_offset=2 count=2" in caplog.text


async def test_a_failure_is_passed_also_while_the_broker_is_away(
    broker: FakeBroker, concurrent: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    failing = Recorder(RETRY, RETRY, RETRY, takes_s=2)
    async with concurrent(failing, topics={"t": "*"}, request_timeout_s=0.1):
        await asyncio.sleep(1)
        broker.go_down()
        await asyncio.sleep(60)
        assert saved(tmp_path / "a") == {"t/0": 3}
        broker.come_up()

    assert sorted(failing.offsets) == [0, 1, 2]


async def test_a_call_that_takes_too_long_does_not_keep_the_progress_back(
    broker: FakeBroker, concurrent: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    hang = asyncio.Event()

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        if messages[0].queue_offset == 0:
            await hang.wait()
        return ConsumeStatus.SUCCESS

    async with concurrent(listener, topics={"t": "*"}, consume_timeout_s=60.0):
        await asyncio.sleep(50)
        assert saved(tmp_path / "a") == {"t/0": 0}
        await asyncio.sleep(100)
        assert saved(tmp_path / "a") == {"t/0": 3}
        hang.set()


async def test_a_stop_waits_for_all_calls_and_writes_up_to_the_first_that_is_not_done(
    broker: FakeBroker, concurrent: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1, count=5)
    recorder = Recorder(takes_s=3)
    consumer: Consumer = concurrent(recorder, topics={"t": "*"}, slots=3)
    consumer.start()
    await asyncio.sleep(1)

    await consumer.stop()

    assert sorted(recorder.offsets) == [0, 1, 2]
    assert saved(tmp_path / "a") == {"t/0": 3}
    again = Recorder()
    async with concurrent(again, topics={"t": "*"}):
        await asyncio.sleep(1)
    assert sorted(again.offsets) == [3, 4]


async def test_a_log_that_was_cut_is_found_out(broker: FakeBroker, concurrent: Make, tmp_path: Path) -> None:
    fill(broker, queues=1)
    recorder = Recorder()
    async with concurrent(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)
    broker.crash(MessageQueue("t", 0), batches=1)
    for _ in range(3):
        broker.send("t", 0, b"other")
    broker.come_up()
    async with concurrent(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)

    assert recorder.offsets == [0, 1, 2, 1, 2, 3]
    assert saved(tmp_path / "a") == {"t/0": 4}


async def test_a_log_that_is_cut_under_running_calls_is_read_again_from_there(
    broker: FakeBroker, concurrent: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    recorder = Recorder(takes_s=2)
    async with concurrent(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)  # the listener has all of them
        broker.crash(MessageQueue("t", 0), batches=1)
        broker.send("t", 0, b"other 1")
        broker.come_up()
        await asyncio.sleep(10)

    assert recorder.offsets == [0, 1, 2, 1]
    assert saved(tmp_path / "a") == {"t/0": 2}
