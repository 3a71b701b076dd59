"""One gate for each queue, for ever the same one."""

from __future__ import annotations

import asyncio

import pytest

from rmq.consumer.group.assignment import QueueGates
from rmq.wire.model import MessageQueue


@pytest.mark.virtual_time
async def test_a_queue_keeps_its_gate() -> None:
    gates = QueueGates()
    gate = gates[MessageQueue("t", 0)]

    assert isinstance(gate, asyncio.Lock)
    assert gates[MessageQueue("t", 0)] is gate
    assert gates[MessageQueue("t", 1)] is not gate
    async with gate:
        assert gates.held() == [MessageQueue("t", 0)]
    assert gates.held() == []
