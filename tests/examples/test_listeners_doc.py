"""docs/listeners.md shows code that is run: what it quotes of an example is what the example says."""

from __future__ import annotations

import asyncio
import re
import textwrap
from dataclasses import fields
from typing import Any

import pytest

import rmq.consumer
from rmq.client import Admin, Producer
from rmq.consumer import ConcurrentContext, ConsumeContext, Consumer, ConsumerConfig, PulledBatch, StoredMessage
from rmq.testing.broker import InMemoryBroker

from .running import EXAMPLES

TEXT = (EXAMPLES.parent / "docs" / "listeners.md").read_text()
CONTEXTS = (ConsumeContext, ConcurrentContext)
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_what_is_quoted_of_the_fencing_example_is_in_it() -> None:
    example = (EXAMPLES / "fencing_sqlite.py").read_text()

    quoted = [block for block in BLOCKS if block.startswith(" ")]
    assert len(quoted) == 2
    assert [block for block in quoted if block not in example] == []


def test_every_block_is_python() -> None:
    for block in BLOCKS:
        compile(f"async def f():\n{textwrap.indent(textwrap.dedent(block), '    ')}", "listeners.md", "exec")


def test_every_setting_and_every_part_of_the_context_that_is_named_exists() -> None:
    settings = {item.name for item in fields(ConsumerConfig)}
    named = set(re.findall(r"`(\w+)(?: = [^`]*)?`", TEXT))
    context = set(re.findall(r"`(?:await )?context\.(\w+)", TEXT))

    assert {"batch", "max_attempts", "crash_limit", "cancel_on_loss", "drain_s", "stall_limit_s"} <= named & settings
    assert {name for name in named if name.endswith("_s")} <= settings
    assert [name for name in context if not any(hasattr(kind, name) for kind in CONTEXTS)] == []


async def run_block(text: str, broker: InMemoryBroker, **names: Any) -> dict[str, Any]:
    """Run the one block with this text as the body of a coroutine; what it has defined."""
    (block,) = [block.replace("127.0.0.1:10911", broker.address) for block in BLOCKS if text in block]
    scope: dict[str, Any] = {name: getattr(rmq.consumer, name) for name in rmq.consumer.__all__} | names
    exec(f"async def run():\n{textwrap.indent(block, '    ')}\n    return locals()", scope)
    defined: dict[str, Any] = await scope["run"]()
    return defined


async def test_the_listener_without_order_gives_back_what_it_says() -> None:
    tries: list[bytes] = []

    async def deliver(message: StoredMessage) -> bool:
        tries.append(message.body)
        return message.body != b"2"

    async with InMemoryBroker(min_free_bytes=0) as broker, Producer(broker.address) as producer:
        on_mail = (await run_block("ack_index", broker, deliver=deliver))["on_mail"]
        await producer.send_bodies("mails", [b"1", b"2", b"3"], queue_id=0)
        group: dict[str, Any] = {"group": "g", "orderly": False, "batch": 3, "topics": {"mails": "*"}}
        async with Consumer(broker.address, listener=on_mail, **group), Admin(broker.address) as admin:
            async with asyncio.timeout(10):
                while (await admin.list_deferred()).total_messages < 2:
                    await asyncio.sleep(0.01)

    assert tries == [b"1", b"2"]


async def test_the_loop_without_a_listener_gets_batches() -> None:
    class Enough(Exception):
        pass

    stored: list[tuple[bytes, int]] = []

    async def store(batch: PulledBatch) -> None:
        stored.extend((message.body, batch.epoch) for message in batch)
        if len(stored) == 2:
            raise Enough

    async with InMemoryBroker(min_free_bytes=0) as broker, Producer(broker.address) as producer:
        await producer.send_bodies("orders", [b"created", b"paid"], key="o-17")
        with pytest.raises(Enough):
            await run_block("PullConsumer", broker, store=store)

    assert [body for body, _ in stored] == [b"created", b"paid"]
    assert stored[0][1] > 0
