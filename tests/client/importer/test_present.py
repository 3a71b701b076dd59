"""What a broker has of a plan: nothing, a beginning of it, or something that must not be mixed with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rmq.client import Admin, Message, Producer
from rmq.client.importer.plan import Plan, Wishes, make_plan
from rmq.client.importer.present import ImportRefused, Present, look
from rmq.client.importer.survey import RocketMQStore, Survey
from rmq.testing.broker import InMemoryBroker

from rigs.rocketmq_import import imported
from rigs.rocketmq_store import NOW_MS, StoreBuilder


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(min_free_bytes=0, wall_us=lambda: NOW_MS * 1000) as running:
        yield running


def build(root: Path, bodies: int = 6, *, stored_at: int = NOW_MS) -> Path:
    with StoreBuilder(root) as store:
        for n in range(bodies):
            store.put("t", n % 2, b"%d" % n, stored_at=stored_at)
        store.delay("t", 0, b"later", 18, stored_at=stored_at)
    return root


async def look_at(root: Path, broker: InMemoryBroker) -> Present:
    store = RocketMQStore(root)
    plan: Plan = make_plan(store, Wishes())
    async with Admin(broker.address) as admin:
        return await look(admin, plan, lambda: Survey(store))


async def refusal(root: Path, broker: InMemoryBroker) -> str:
    with pytest.raises(ImportRefused) as caught:
        await look_at(root, broker)
    return str(caught.value)


async def test_nothing_is_there(tmp_path: Path, broker: InMemoryBroker) -> None:
    assert await look_at(build(tmp_path), broker) == Present()


async def test_an_empty_topic_may_be_there_and_have_more_queues(tmp_path: Path, broker: InMemoryBroker) -> None:
    async with Admin(broker.address) as admin:
        await admin.create_topic("t", 5)

    assert await look_at(build(tmp_path), broker) == Present()


async def test_a_topic_with_too_few_queues_is_refused_with_what_to_do(tmp_path: Path, broker: InMemoryBroker) -> None:
    async with Admin(broker.address) as admin:
        await admin.create_topic("t", 1)

    said = await refusal(build(tmp_path), broker)

    assert said.startswith("the topic 't' exists with 1 queues, and 2 are needed: `rmq-admin topic grow t --queues 2`")


async def test_all_of_it_is_there(tmp_path: Path, broker: InMemoryBroker) -> None:
    await imported(build(tmp_path), broker.address)

    present = await look_at(tmp_path, broker)

    assert present.messages == {("t", 0): 3, ("t", 1): 3}
    assert len(present.deferred) == 1


async def test_the_beginning_of_a_longer_store_is_there(tmp_path: Path, broker: InMemoryBroker) -> None:
    """A store whose broker went on, and was stopped again, is imported from where it was."""
    with StoreBuilder(tmp_path / "then") as store:
        store.put("t", 0, b"0")
    with StoreBuilder(tmp_path / "now") as store:
        store.put("t", 0, b"0")
        store.put("t", 0, b"1")
    await imported(tmp_path / "then", broker.address)

    assert (await look_at(tmp_path / "now", broker)).messages == {("t", 0): 1}
    assert (await imported(tmp_path / "now", broker.address)).sent == 1


async def test_messages_of_another_store_are_refused(tmp_path: Path, broker: InMemoryBroker) -> None:
    await imported(build(tmp_path / "a"), broker.address)

    said = await refusal(build(tmp_path / "b", stored_at=NOW_MS + 1), broker)

    assert said.endswith(
        "that this import did not send: import into topics that are empty (--map OLD=NEW gives others)"
    )


async def test_other_messages_at_the_same_places_are_refused(tmp_path: Path, broker: InMemoryBroker) -> None:
    with StoreBuilder(tmp_path / "a") as store:
        store.put("t", 0, b"0")
    with StoreBuilder(tmp_path / "b") as store:
        store.put("t", 0, b"0", stored_at=NOW_MS + 1)
    await imported(tmp_path / "a", broker.address)

    assert (await refusal(tmp_path / "b", broker)).startswith("t/0 has other messages than the store")


async def test_a_message_behind_those_of_the_plan_is_refused(tmp_path: Path, broker: InMemoryBroker) -> None:
    await imported(build(tmp_path), broker.address)
    async with Producer(broker.address) as producer:
        await producer.send(Message("t", b"mine"), queue_id=1)

    assert (await refusal(tmp_path, broker)).startswith("t/1 has a message at offset 3 that this import did not send")


async def test_a_delayed_message_of_others_is_refused(tmp_path: Path, broker: InMemoryBroker) -> None:
    soon = datetime.fromtimestamp(NOW_MS / 1000, UTC) + timedelta(hours=1)
    async with Admin(broker.address) as admin, Producer(broker.address) as producer:
        await admin.create_topic("t", 2)
        await producer.send(Message("t", b"mine", deliver_at=soon), queue_id=0)

    assert (await refusal(build(tmp_path), broker)).startswith("t has a delayed message that this import did not send")
