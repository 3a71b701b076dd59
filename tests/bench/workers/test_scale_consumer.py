"""The consumer of ``scale`` reads all queues of all topics from the beginning on."""

from __future__ import annotations

import io
import json
import sys

import pytest

from rmq.bench.workers import scale_consumer
from rmq.client import Admin, Producer
from rmq.testing.broker import InMemoryBroker


async def test_it_says_how_fast_it_got_everything(
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
        await scale_consumer.main(broker.address, ["a", "b"], 6, "g", 60)

    ready, found = (json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{")
    assert ready == {"ready": True}
    assert found["per_s"] > 0
