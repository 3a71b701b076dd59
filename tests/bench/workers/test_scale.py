"""The clients of ``scale`` reach every queue and use every connection."""

from __future__ import annotations

import asyncio
import io
import json
import sys

import pytest

from rmq.bench.options import Load
from rmq.bench.workers import scale
from rmq.client import Admin, Producer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import MessageQueue


async def test_topics_queues_and_producers_take_turns() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        for topic in ("a", "b"):
            await admin.create_topic(topic, 3)
        async with Producer(broker.address) as one, Producer(broker.address) as other:
            await scale.send_in_turns([one], ["a", "b"], [[b"1", b"2"]] * 6, in_flight=2)
            await scale.send_in_turns([one, other], ["a"], [[b"1"]] * 4, in_flight=1)

        every = [MessageQueue(topic, i) for topic in ("a", "b") for i in range(3)]
        held = [bounds.max_offset for bounds in await admin.ranges(every)]
        assert held[3:] == [2, 2, 2]
        assert sum(held[:3]) == 6 + 4
        assert (await admin.stats())["serving"]["producers"] == 2


async def test_every_queue_is_touched_before_the_clock_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
    load = Load(messages=30, batch=10, queues=4, in_flight=2, connections=2)

    async with InMemoryBroker() as broker:
        async with asyncio.timeout(60):
            await scale.produce(broker.address, [("t", 4)], load.as_object())

        async with Admin(broker.address) as admin:
            held = [bounds.max_offset for bounds in await admin.ranges(MessageQueue("t", i) for i in range(4))]
            assert min(held) >= 2
            assert sum(held) == 30 + 4 * 2 + 2 * 2
    ready, found = (json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{")
    assert ready == {"ready": True}
    assert found["per_s"] > 0


async def test_consume_reads_all_queues_from_the_start_and_reports_its_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))

    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        for topic in ("a", "b"):
            await admin.create_topic(topic, 3)
        async with Producer(broker.address) as producer:
            for topic in ("a", "b"):
                for queue_id in range(3):
                    await producer.send_bodies(topic, [b"x"] * 10, queue_id=queue_id)
        await scale.consume(broker.address, ["a", "b"], 6, "g", 60)

    ready, found = (json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{")
    assert ready == {"ready": True}
    assert found["per_s"] > 0
