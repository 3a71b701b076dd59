"""The load under which a broker is killed goes on until then."""

from __future__ import annotations

import asyncio
import io
import json
import sys

import pytest

from rmq.bench.options import Load
from rmq.bench.workers import recovery_worker
from rmq.client import Admin
from rmq.testing.broker import InMemoryBroker


async def test_it_says_once_how_much_was_answered_and_sends_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
    load = Load(messages=100, size=10, batch=20, queues=2, in_flight=2)

    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        sending = asyncio.create_task(recovery_worker.main(broker.address, "t", load.as_object()))
        async with asyncio.timeout(60):
            while (await admin.stats())["traffic"]["messages_in"] < 300:
                assert not sending.done()
        sending.cancel()
        await asyncio.wait([sending])

    ready, told = (json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{")
    assert ready == {"ready": True}
    assert 100 <= told["answered"] < 100 + 2 * 20
