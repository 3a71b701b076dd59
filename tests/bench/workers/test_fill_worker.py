"""A log is filled up to a length, and no further."""

from __future__ import annotations

import io
import json
import sys

import pytest

from rmq.bench.workers import fill_worker
from rmq.client import Admin
from rmq.testing.broker import InMemoryBroker


async def test_it_sends_what_is_missing_and_says_how_long_the_log_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        for _ in range(2):
            monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
            await fill_worker.main(broker.address, 3_000_000)
        log = (await admin.stats())["log"]

    told = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{"]
    assert told == [{"ready": True}, {"log_bytes": log["log_bytes"]}] * 2
    assert 3_000_000 <= log["log_bytes"] < 4_300_000
    assert log["log_durable"] == log["log_written"]
