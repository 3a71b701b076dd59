"""A reset of many queues is cut into turns: its work is counted here, in changes and lines of the log a turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmq.broker.handlers.progress import RESETS_A_TURN
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import Internal
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import MAX_ENTRIES, Op

from ..harness import Client

pytestmark = pytest.mark.virtual_time

CHANGES = 2  # of each queue with an owner: the end of the lease, the offset
TURNS = MAX_ENTRIES // RESETS_A_TURN


def entries(count: int = MAX_ENTRIES) -> list[ops.ResetEntry]:
    return [ops.ResetEntry("orders", queue_id, 0) for queue_id in range(count)]


async def owner(broker: InMemoryBroker) -> Client:
    """A member that holds all queues of a topic with as many as a request may name."""
    client = await Client(broker, "owner").__aenter__()
    await client.create(queues=MAX_ENTRIES)
    await client.join()
    refs = [ops.QueueRef("orders", queue_id) for queue_id in range(MAX_ENTRIES)]
    grants = await client.request(Op.ACQUIRE, ops.Acquire("g", refs))
    assert {grant[0] for grant in grants} == {0}
    return client


def watch_changes(broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many changes each turn has brought into the log from now on."""
    store, staged = broker.broker._store, []
    stage = store.stage_changes

    def counted(changes: Sequence[Any]) -> None:
        staged.append(len(changes))
        stage(changes)

    monkeypatch.setattr(store, "stage_changes", counted)
    return staged


async def test_a_reset_of_1024_queues_costs_each_turn_64_queues_and_a_few_lines_of_the_log(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = await owner(broker)
    async with Client(broker, "admin") as admin:
        staged = watch_changes(broker, monkeypatch)
        with capture_logs() as lines:
            results = await admin.request(Op.RESET_OFFSETS, ops.ResetOffsets("g", entries()))

    assert [result[0] for result in results] == [0] * MAX_ENTRIES
    assert max(staged) <= CHANGES * RESETS_A_TURN
    assert sum(staged) == CHANGES * MAX_ENTRIES
    events = Counter(line["event"] for line in lines)
    assert (events["offset.reset"], events["lock.revoked"]) == (TURNS, TURNS)
    await member.connection.close()


async def test_the_log_names_every_queue_with_its_old_and_its_new_offset(broker: InMemoryBroker) -> None:
    async with Client(broker, "admin") as admin:
        await admin.create(queues=100)
        await admin.request(Op.RESET_OFFSETS, ops.ResetOffsets("g", entries(100)))
        with capture_logs() as lines:
            await admin.request(Op.RESET_OFFSETS, ops.ResetOffsets("g", entries(100)))

    told = " ".join(line["offsets"] for line in lines if line["event"] == "offset.reset").split()
    assert told == [f"orders/{queue_id}:0>0" for queue_id in range(100)]


def reset(client: Client, **changed: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(client.request(Op.RESET_OFFSETS, ops.ResetOffsets("g", entries(), **changed)))


async def begun(broker: InMemoryBroker) -> None:
    """Wait until the first queue was reset."""
    while broker.broker._ledger.offsets.get("g", MessageQueue("orders", 0)):
        await asyncio.sleep(0)


def is_reset(broker: InMemoryBroker) -> bool:
    """Whether the last queue was reset."""
    return broker.broker._ledger.offsets.get("g", MessageQueue("orders", MAX_ENTRIES - 1)) == 0


async def test_what_comes_after_a_reset_on_its_connection_waits_for_all_of_it(broker: InMemoryBroker) -> None:
    async with Client(broker, "admin") as admin:
        await admin.create(queues=MAX_ENTRIES)
        running = reset(admin)
        last = asyncio.create_task(admin.committed(MessageQueue("orders", MAX_ENTRIES - 1)))

        assert await last == 0
        assert len(await running) == MAX_ENTRIES


async def test_other_connections_are_served_between_the_turns_of_a_reset(broker: InMemoryBroker) -> None:
    async with Client(broker, "admin") as admin, Client(broker, "other") as other:
        await admin.create(queues=MAX_ENTRIES)
        running = reset(admin)
        await begun(broker)

        await other.request(Op.PING, ())

        assert not is_reset(broker)
        assert len(await running) == MAX_ENTRIES
        assert is_reset(broker)


async def test_a_reset_is_completed_though_its_connection_ends_meanwhile(broker: InMemoryBroker) -> None:
    async with Client(broker, "admin") as admin:
        await admin.create(queues=MAX_ENTRIES)
        running = reset(admin)
        await begun(broker)
        assert not is_reset(broker)
    await asyncio.gather(running, return_exceptions=True)

    await asyncio.sleep(1.0)

    assert is_reset(broker)


async def test_a_defect_in_a_later_turn_is_answered_and_the_connection_goes_on(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(broker, "admin") as admin:
        await admin.create(queues=MAX_ENTRIES)
        ledger = broker.broker._ledger
        monkeypatch.setattr(ledger, "reset", lambda group, queue, offset: [] if queue.queue_id < 100 else 1 // 0)

        with pytest.raises(Internal):
            await reset(admin)

        await admin.request(Op.PING, ())


async def test_a_dry_run_changes_nothing(broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Client(broker, "admin") as admin:
        await admin.create(queues=MAX_ENTRIES)
        staged = watch_changes(broker, monkeypatch)

        results = await reset(admin, dry_run=True)

        assert results == [[0, -1, 0, None]] * MAX_ENTRIES
        assert sum(staged) == 0
