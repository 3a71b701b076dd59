"""A consumer whose listener blocks the event loop, as a process of its own: what its log and ``explain`` say of it."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmq.client import Admin, Explanation, Message, Producer, Reason

from rigs.processes import BrokerProcess, Running

pytestmark = pytest.mark.slow

GROUP, TOPIC = "billing", "orders"
LEASES = ("-o", "lock_lease_s=3", "-o", "grace_s=2", "-o", "ping_s=1", "-o", "min_free_bytes=0")
LISTENER = """
import time

async def on_order(messages, context):
    pay(messages)

def pay(messages):
    time.sleep(600)
"""


class BlockingConsumer(Running):
    """``rmq-consume`` with a listener that sleeps on the event loop."""

    def __init__(self, address: str, folder: Path) -> None:
        (folder / "blocking.py").write_text(LISTENER)
        super().__init__(
            "rmq.cli.rmq_consume", "--broker", address, "--orderly", "--topic", TOPIC, "--group", GROUP,
            "--listener", "blocking:on_order", "-o", "stall_limit_s=0.5",
            cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)},
        )  # fmt: skip


async def test_a_listener_that_blocks_the_loop_is_logged_with_its_stack_and_explain_names_the_member(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        start = lambda: stack.enter_context(BrokerProcess(tmp_path / "data", "127.0.0.1:0", *LEASES))  # noqa: E731
        broker = await asyncio.to_thread(start)
        async with Admin(broker.address) as admin, Producer(broker.address) as producer:
            await admin.create_topic(TOPIC, 1)
            await producer.send(Message(TOPIC, b"1"))
            consumer = stack.enter_context(BlockingConsumer(broker.address, tmp_path))
            await asyncio.to_thread(consumer.wait_for_error, _is_logged, "loop.blocked")
            told = await _once_out_of_the_group(admin)
            numbers = await admin.stats()
        logged = "\n".join(consumer.errors)

    assert logged.count("loop.blocked") == 1
    assert f"group={GROUP}" in logged
    assert f"{TOPIC}/0" in logged
    assert re.search(r"blocking\.py.*in on_order.*blocking\.py.*in pay", logged, re.DOTALL)
    (queue,) = told.queues
    assert (queue.reason, queue.lag, told.members, told.requires_action) == (Reason.MEMBER_SILENT, 1, 1, True)
    assert re.match(rf"\S+@{consumer.process.pid}#[0-9a-f]{{8}} is connected, but has been silent for", queue.sentence)
    assert f"py-spy dump --pid {consumer.process.pid}" in queue.advice
    assert numbers["serving"]["silent_members"] == 1


def _is_logged(lines: list[str]) -> bool:
    return any("loop.blocked" in line for line in lines)


async def _once_out_of_the_group(admin: Admin) -> Explanation:
    """What is said of the group once the broker has taken the queue back."""
    async with asyncio.timeout(60.0):
        while True:
            described = await admin.describe_group(GROUP)
            if described.queues and described.queues[0].owner is None:
                return await admin.explain(GROUP)
            await asyncio.sleep(0.05)
