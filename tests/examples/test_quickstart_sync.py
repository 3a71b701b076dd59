"""``examples/quickstart_sync.py``: the same two classes without asyncio."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import run
from rigs.processes import BrokerProcess

pytestmark = pytest.mark.slow


def test_it_sends_and_consumes_each_order_in_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerProcess(tmp_path) as broker:
        monkeypatch.setenv("RMQ_BROKER", broker.address)
        lines = run("quickstart_sync").splitlines()

    consumed = [line.split()[1:3] for line in lines if line.startswith("consumed")]
    assert len(lines) == 18
    assert len(consumed) == 9
    for order in ("o-1", "o-2", "o-3"):
        assert [step for of, step in consumed if of == order] == ["created", "paid", "shipped"]
