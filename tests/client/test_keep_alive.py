"""Pings on a link that is not there; how they end a real one is tested with the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.client.keep_alive import KeepAlive
from rmq.client.link import Link

pytestmark = pytest.mark.virtual_time


async def test_a_stopped_keep_alive_pings_no_more() -> None:
    sent: list[Callable[[int, Any], None]] = []
    link = Link(memoryview(bytearray(64)), lambda link, parts: None, lambda link, error: None)
    pings = KeepAlive(link, 1.0, sent.append)
    await asyncio.sleep(1.5)

    pings.stop()
    await asyncio.sleep(10)

    assert len(sent) == 1


async def test_an_answer_makes_room_for_the_next_ping() -> None:
    sent: list[Callable[[int, Any], None]] = []
    link = Link(memoryview(bytearray(64)), lambda link, parts: None, lambda link, error: None)
    KeepAlive(link, 0.5, sent.append)
    for _ in range(10):
        await asyncio.sleep(0.5001)
        link.heard = True
        sent[-1](0, [])

    assert len(sent) == 10
