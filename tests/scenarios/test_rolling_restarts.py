"""
Processes that are stopped, not crashed: rolling restarts, kills while draining, and crashes between them.

On a virtual clock with the whole system, and a few with real processes (``tests/chaos/restarts.py`` has more of those).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmq.client import Admin, Connection, ConnectionLost, Message, Producer
from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus, MessageQueue
from rmq.testing.broker import InMemoryBroker
from rmq.wire.address import parse_address
from rmq.wire.model import StoredMessage

from chaos.restarts import run
from rigs.doc_blocks import blocks
from rigs.processes import BrokerProcess, Running

virtual = pytest.mark.virtual_time

QUEUE = MessageQueue("orders", 0)
RESTARTS = 20
GRACE_S = 5.0


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(min_free_bytes=0) as running:
        async with Admin(running.address) as admin:
            await admin.create_topic("orders", 1)
        async with Producer(running.address) as producer:
            await producer.send_many([Message("orders", b"%d" % i) for i in range(RESTARTS + 5)], queue_id=0)
        yield running


class Life:
    """A consumer in a process of its own, whose first call takes long; ``kill`` is all that the broker sees of one."""

    def __init__(self, broker: InMemoryBroker, takes_s: float, **settings: Any) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.stopped: dict[MessageQueue, str] = {}  # when it was last looked at
        self._takes_s = takes_s
        self._connections: list[Connection] = []
        self.consumer = Consumer(
            broker.address, group="g", listener=self._listener, topics={"orders": "*"}, connect=self._connect,
            now=asyncio.get_running_loop().time, **settings,
        )  # fmt: skip

    def _connect(self, *args: Any, **callbacks: Any) -> Connection:
        self._connections.append(Connection(*args, **callbacks))
        return self._connections[-1]

    async def _listener(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        self.begun += [message.queue_offset for message in messages]
        await asyncio.sleep(self._takes_s)
        self.ended += [message.queue_offset for message in messages]
        return ConsumeStatus.SUCCESS

    def kill(self) -> None:
        for connection in self._connections:
            connection.address = parse_address("127.0.0.1:1")
            connection.drop(ConnectionLost("the process has ended"))

    async def until_killed(self, *, stops: bool, broker: InMemoryBroker | None = None) -> None:
        """Begin a call, perhaps get a signal to stop, and be killed while it runs; ``broker`` restarts before that."""
        self.consumer.start()
        await asyncio.sleep(1.0)
        stopping = asyncio.ensure_future(self.consumer.stop()) if stops else None
        await asyncio.sleep(1.0)
        if broker is not None:
            await broker.restart()
            await asyncio.sleep(1.0)
        self.kill()
        await asyncio.sleep(GRACE_S + 1.0)
        await (stopping or self.consumer.stop())


async def finish(broker: InMemoryBroker) -> Life:
    """The next process, which has nothing to do with all that; what it did is shown by ``begun``."""
    last = Life(broker, 0.0)
    async with last.consumer:
        await asyncio.sleep(10)
        last.stopped = last.consumer.stopped_queues
    return last


@virtual
async def test_20_rolling_restarts_by_sigterm_process_every_message_once_and_in_order(broker: InMemoryBroker) -> None:
    lives = []
    with capture_logs() as logs:
        for _ in range(RESTARTS):
            lives.append(life := Life(broker, 5.0))
            asyncio.get_running_loop().call_later(1.0, signal.raise_signal, signal.SIGTERM)
            async with life.consumer:
                await life.consumer.run()
        last = await finish(broker)

    assert [life.ended for life in lives] == [[offset] for offset in range(RESTARTS)]
    assert last.ended == list(range(RESTARTS, RESTARTS + 5))
    assert not {"lock.abandoned", "queue.stopped"} & {entry["event"] for entry in logs}


@virtual
async def test_20_kills_while_draining_are_no_crash_loop_and_keep_the_order(broker: InMemoryBroker) -> None:
    with capture_logs() as logs:
        for _ in range(RESTARTS):
            life = Life(broker, 1000.0, drain_s=4.0)
            await life.until_killed(stops=True)
            assert life.begun == [0]
        last = await finish(broker)

    assert last.begun == last.ended == list(range(RESTARTS + 5))
    assert not {"lock.abandoned", "queue.stopped"} & {entry["event"] for entry in logs}


@virtual
async def test_a_restart_of_the_broker_between_the_announcement_and_the_kill_changes_nothing(
    broker: InMemoryBroker,
) -> None:
    for _ in range(2):  # so that each message is announced from here on, and its end would be counted for certain
        await Life(broker, 1000.0, drain_s=0.0).until_killed(stops=False)
    for _ in range(6):
        await Life(broker, 1000.0, drain_s=5.0).until_killed(stops=True, broker=broker)

    last = await finish(broker)

    assert last.stopped == {}
    assert last.begun == list(range(RESTARTS + 5))


@virtual
async def test_crashes_between_kills_while_draining_are_counted_and_stop_the_queue(broker: InMemoryBroker) -> None:
    for _ in range(5):
        await Life(broker, 1000.0, drain_s=0.0).until_killed(stops=False)
        await Life(broker, 1000.0, drain_s=4.0).until_killed(stops=True)

    last = await finish(broker)

    assert last.begun == []
    assert last.stopped == {QUEUE: "CRASH_LOOP: 5 owners in a row were lost while processing offset 0"}


# Real processes


@pytest.mark.slow
async def test_real_processes_of_every_kind_restart_without_a_crash_loop_and_a_real_one_is_stopped() -> None:
    await run(stops=4, kills=6)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_consumer_of_the_readme_ends_by_a_signal_with_0_and_nobody_holds_its_queues(
    tmp_path: Path, number: signal.Signals
) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (program,) = [block.text for block in blocks(readme) if block.file_name == "consumer.py"]
    with ExitStack() as stack:
        options = ("-o", "min_free_bytes=0")
        broker = await asyncio.to_thread(
            lambda: stack.enter_context(BrokerProcess(tmp_path / "data", "127.0.0.1:0", *options))
        )
        async with Producer(broker.address) as producer:
            await producer.send(Message("orders", b"paid"), key="o-17")
        (tmp_path / "consumer.py").write_text(program.replace("127.0.0.1:10911", broker.address))
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        consumer = stack.enter_context(Running("consumer", cwd=tmp_path, env=env))
        await asyncio.to_thread(consumer.wait_for, bool, "a message")

        assert await asyncio.to_thread(consumer.stop, number) == 0
        async with Admin(broker.address) as admin:
            assert await admin.lock_status("billing") == []

    assert consumer.lines == ["o-17 paid attempt 1"]
    assert consumer.errors == []
