"""An ordered group of real processes: what only signals, files and the machine's own clock can show."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmq.client import Admin, Message, Producer
from rmq.engine.native.connection import Connection
from rmq.wire.errors import Fenced
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op

from chaos.call_log import START, Record, read
from chaos.processes import GROUP, LEASE_S, OPTIONS, TOPIC, ConsumerProcess, run
from rigs.processes import BrokerProcess

pytestmark = pytest.mark.slow

QUEUES = 4
EACH = 3  # messages sent to each queue at a time
HERE = [MessageQueue(TOPIC, queue_id) for queue_id in range(QUEUES)]


async def test_20_seconds_of_kills_stops_and_broker_crashes_break_no_rule() -> None:
    verdict = await run(20.0, seed=4)

    assert verdict.violations == []
    assert verdict.calls > 100


async def test_a_consumer_stopped_beyond_its_lease_can_neither_commit_nor_pull_and_says_so_in_one_line(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        broker = await asyncio.to_thread(lambda: stack.enter_context(BrokerProcess(tmp_path / "d", *OPTIONS_OF_LISTEN)))
        async with Admin(broker.address) as admin, Producer(broker.address) as producer:
            await admin.create_topic(TOPIC, QUEUES)
            await _send(producer)
            stopped = stack.enter_context(ConsumerProcess(broker.address, tmp_path, 6))
            await _until(lambda: len(_starts(tmp_path, "c6")) == QUEUES * EACH)
            epochs = {record.queue: record.epoch for record in _starts(tmp_path, "c6")}
            await _until_committed(admin, EACH)

            stopped.process.send_signal(signal.SIGSTOP)
            await _send(producer)  # into the buffers of a process that cannot read them
            peer = stack.enter_context(ConsumerProcess(broker.address, tmp_path, 12))
            await _until_committed(admin, 2 * EACH)
            answers = await _try_with(broker.address, epochs)
            stopped.process.send_signal(signal.SIGCONT)
            await _until(lambda: any("lease.lost" in line for line in stopped.errors))
            await _until_shared(admin)
            await _send(producer)
            await _until_committed(admin, 3 * EACH)
            assert await asyncio.to_thread(stopped.stop) == 0
            assert await asyncio.to_thread(peer.stop) == 0

    (line,) = [line for line in stopped.errors if "lease.lost" in line or "FENCED" in line]
    assert "FENCED" in line
    assert all(queue in line for queue in epochs), line
    assert answers == [Fenced.code] * 2 * QUEUES
    under_old = [record for record in _starts(tmp_path, "c6") if record.epoch == epochs[record.queue]]
    assert len(under_old) == QUEUES * EACH, "it started a call under a lease that it had lost"


OPTIONS_OF_LISTEN = ("127.0.0.1:0", *OPTIONS)


def _starts(folder: Path, name: str) -> list[Record]:
    path = folder / f"{name}.calls"
    return [record for record in read(path) if record.kind == START] if path.exists() else []


async def _send(producer: Producer) -> None:
    for queue_id in range(QUEUES):
        for number in range(EACH):
            await producer.send(Message(TOPIC, b"%d" % number), queue_id=queue_id)


async def _try_with(address: str, epochs: dict[str, int]) -> list[int]:
    """Commit and pull with the epochs of a lease that has ended; the codes of the answers."""
    connection = Connection(address, client="test")
    await connection.open(timeout_s=10)
    try:
        fields = [(queue.topic, queue.queue_id, epochs[str(queue)]) for queue in HERE]
        entries = [ops.CommitEntry(*field, 1) for field in fields]
        outcomes = decode_list(ops.Outcome, await connection.request(Op.COMMIT, ops.Commit(GROUP, entries)))
        pulls = [ops.PullQueue(topic, queue_id, 1, epoch) for topic, queue_id, epoch in fields]
        results = decode_list(ops.PullResult, await connection.request(Op.PULL, ops.Pull(GROUP, 0, 1 << 20, pulls)))
        return [*(outcome.status for outcome in outcomes), *(result.status for result in results)]
    finally:
        await connection.close()


async def _until(condition: object, deadline_s: float = 30.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.02)


async def _until_committed(admin: Admin, offset: int) -> None:
    async with asyncio.timeout(LEASE_S + 30):
        while [held.committed for held in await admin.ranges(HERE, GROUP)] != [offset] * QUEUES:
            await asyncio.sleep(0.02)


async def _until_shared(admin: Admin) -> None:
    """Until both members have queues again."""
    async with asyncio.timeout(30):
        while len({row.owner for row in await admin.lock_status(GROUP)}) != 2:
            await asyncio.sleep(0.02)
