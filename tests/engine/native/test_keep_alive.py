"""Pings on a link that is not there; how they end a real one is tested with the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.engine.native.connection import KeepAlive
from rmq.engine.native.link import Link

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


@pytest.mark.parametrize("traffic", [False, True])
async def test_a_ping_leaves_every_second_whatever_else_travels(traffic: bool) -> None:
    loop, times = asyncio.get_running_loop(), []
    link = Link(memoryview(bytearray(64)), lambda link, parts: None, lambda link, error: None)

    def ping(on_reply: Callable[[int, Any], None]) -> None:
        times.append(round(loop.time(), 6))
        link.heard = True
        on_reply(0, [])

    pings = KeepAlive(link, 1.0, ping)
    for _ in range(55):
        await asyncio.sleep(0.1)
        link.heard = link.heard or traffic
    pings.stop()

    assert times == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(("until", "pings"), [(1 - 1e-6, 0), (1.0, 1), (1 + 1e-6, 1), (2 - 1e-6, 1), (2 + 1e-6, 2)])
async def test_the_nth_ping_leaves_at_exactly_n_seconds(until: float, pings: int) -> None:
    sent: list[float] = []
    link = Link(memoryview(bytearray(64)), lambda link, parts: None, lambda link, error: None)

    def ping(on_reply: Callable[[int, Any], None]) -> None:
        sent.append(asyncio.get_running_loop().time())
        link.heard = True
        on_reply(0, [])

    keep_alive = KeepAlive(link, 1.0, ping)
    await asyncio.sleep(until)
    keep_alive.stop()

    assert sent == [1.0, 2.0][:pings]
