"""The clients of ``recovery``: one fills a log up to a length, the other sends until it is killed."""

from __future__ import annotations

import asyncio
import io
import json
import sys

import pytest

from rmq.bench.options import Load
from rmq.bench.workers import recovery
from rmq.client import Admin
from rmq.testing.broker import InMemoryBroker


async def test_fill_sends_what_is_missing_and_reports_the_length_of_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        for _ in range(2):
            monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
            await recovery.fill(broker.address, 3_000_000)
        log = (await admin.stats())["log"]

    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{"]
    assert reports == [{"ready": True}, {"log_bytes": log["log_bytes"]}] * 2
    assert 3_000_000 <= log["log_bytes"] < 4_300_000
    assert log["log_durable"] == log["log_written"]


async def test_send_reports_once_how_much_was_acknowledged_and_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
    load = Load(messages=100, size=10, batch=20, queues=2, in_flight=2)

    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        sending = asyncio.create_task(recovery.send(broker.address, "t", load.as_object()))
        async with asyncio.timeout(60):
            while (await admin.stats())["traffic"]["messages_in"] < 300:
                assert not sending.done()
        sending.cancel()
        await asyncio.wait([sending])

    ready, reports = (json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{")
    assert ready == {"ready": True}
    assert 100 <= reports["answered"] < 100 + 2 * 20
