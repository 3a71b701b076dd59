"""Pulls of members that want some tags, at the real broker: joining, joining again, leaving, restarts."""

from __future__ import annotations

import asyncio

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadRequest, Fenced
from rmq.wire.protocol.ops.core import EMPTY, OutgoingBatch

from ..builders import ORDERS, make_batch
from ..harness import Client, bodies, until

pytestmark = pytest.mark.virtual_time

TICK_S = 0.1
EPS = 0.001


async def member(broker: InMemoryBroker, expression: str, *, ordered: bool = True) -> tuple[Client, int]:
    """A member of the group that holds orders/0."""
    client = await Client(broker, "m").__aenter__()
    await client.create()
    await client.join(expression=expression, ordered=ordered)
    return client, (await client.acquire()).epoch


async def send(client: Client, *tags: str | None) -> None:
    """One batch, whose bodies are the tags."""
    batch = make_batch(*((tag or "-").encode() for tag in tags), tags=tags)
    await client.send_batches(OutgoingBatch(ORDERS.queue_id, batch))


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_member_is_sent_what_its_expression_wants(broker: InMemoryBroker, ordered: bool) -> None:
    client, epoch = await member(broker, "a || c", ordered=ordered)
    for tag in ("a", "b", "c", None):
        await send(client, tag)

    result = await client.pull(0, group="g", epoch=epoch)
    assert (bodies(result), result.next_offset, result.max_offset) == ([b"a", b"c"], 4, 4)
    everything = await client.pull(0)
    assert bodies(everything) == [b"a", b"b", b"c", b"-"]
    await client.connection.close()


@pytest.mark.parametrize("early_s", [EPS, 0.0])
async def test_a_parked_pull_of_which_nothing_was_wanted_ends_with_its_wait_and_not_before(
    broker: InMemoryBroker, early_s: float
) -> None:
    client, epoch = await member(broker, "a")
    now = asyncio.get_running_loop().time
    began = now()
    pull = asyncio.create_task(client.pull(0, group="g", epoch=epoch, wait_ms=10_000))
    for _ in range(3):
        await asyncio.sleep(2.0)
        await send(client, "b")

    await until(began + 10.0 - early_s)
    assert not pull.done() or not early_s
    result = await pull

    assert 10.0 <= now() - began <= 10.0 + TICK_S + EPS
    assert (result.status, result.next_offset, result.max_offset) == (EMPTY, 3, 3)
    assert broker.broker._pulls.rescued == 0
    await client.connection.close()


async def test_a_parked_pull_gets_what_it_wants_when_that_arrives(broker: InMemoryBroker) -> None:
    client, epoch = await member(broker, "a")
    pull = asyncio.create_task(client.pull(0, group="g", epoch=epoch, wait_ms=10_000))
    await asyncio.sleep(1.0)
    await send(client, "b")
    await asyncio.sleep(6.0)  # the sweep looks too
    assert not pull.done()
    at = asyncio.get_running_loop().time()

    await send(client, "b", "a")
    result = await pull

    assert (bodies(result), result.next_offset) == ([b"b", b"a"], 3)
    assert asyncio.get_running_loop().time() == at
    assert broker.broker._pulls.rescued == 0
    await client.connection.close()


@pytest.mark.parametrize(("second", "wanted"), [("b", [b"b"]), ("*", [b"b", b"c"]), ("c", [b"c"])])
async def test_joining_again_with_another_expression_counts_for_a_pull_that_is_parked(
    broker: InMemoryBroker, second: str, wanted: list[bytes]
) -> None:
    client, epoch = await member(broker, "a")
    pull = asyncio.create_task(client.pull(0, group="g", epoch=epoch, wait_ms=10_000))
    await send(client, "b")
    await send(client, "c")
    await asyncio.sleep(1.0)
    assert not pull.done()

    await client.join(expression="a")  # a heartbeat
    await asyncio.sleep(1.0)
    assert not pull.done()
    await client.join(expression=second)
    result = await pull

    assert (bodies(result), result.next_offset) == (wanted, 2)
    await client.connection.close()


async def test_joining_with_what_is_no_expression_is_refused(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        with pytest.raises(BadRequest, match=r"the expression 'a \| b' is not"):
            await client.join(expression="a | b")


async def test_a_member_that_has_not_said_what_it_wants_since_a_restart_gets_everything(broker: InMemoryBroker) -> None:
    client, epoch = await member(broker, "a")
    await send(client, "b")
    await broker.restart()
    await client.connection.wait_connected()

    result = await client.pull(0, group="g", epoch=epoch)
    assert bodies(result) == [b"b"]
    await client.join(expression="a")
    result = await client.pull(0, group="g", epoch=epoch)
    assert (result.status, result.next_offset) == (EMPTY, 1)
    await client.connection.close()


async def test_a_parked_pull_that_passed_something_is_fenced_at_once(broker: InMemoryBroker) -> None:
    client, epoch = await member(broker, "a")
    assert epoch is not None
    pull = asyncio.create_task(client.pull(0, group="g", epoch=epoch, wait_ms=10_000))
    await send(client, "b")
    await asyncio.sleep(1.0)

    await client.release(epoch)

    assert ((await pull).status, (await pull).next_offset) == (Fenced.code, 0)
    await client.connection.close()


async def test_progress_rides_on_what_was_passed(broker: InMemoryBroker) -> None:
    client, epoch = await member(broker, "a")
    await send(client, "b", "b")
    behind = (await client.pull(0, group="g", epoch=epoch)).next_offset
    assert behind == 2

    await client.pull(behind, group="g", epoch=epoch, commit=behind)

    assert await client.committed() == 2
    await client.connection.close()
