"""Latency clients: the listener counts warm-up apart and hands out whole rounds, the sender keeps its schedule."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from rmq.bench.workers.latency import LatencyListener, until_due
from rmq.bench.workers.schedule import WARM_UP, DueTimes, StampedBodies
from rmq.consumer import ConsumeStatus

BODIES = StampedBodies(16)
MS = 1_000_000


def messages(*stamps: int) -> list[Any]:
    return [SimpleNamespace(body=BODIES.stamped(stamp)) for stamp in stamps]


async def test_warm_up_messages_are_not_measured() -> None:
    listener, context = LatencyListener(count=1, warm=2), SimpleNamespace()

    assert await listener(messages(WARM_UP), context) is ConsumeStatus.SUCCESS  # type: ignore[arg-type]
    assert not listener.warmed.is_set()
    await listener(messages(WARM_UP), context)  # type: ignore[arg-type]

    assert listener.warmed.is_set()
    assert not listener.came.is_set()


async def test_a_round_has_as_many_as_were_asked_for_and_the_next_continues_after_it() -> None:
    listener, context = LatencyListener(count=2, warm=0, now=lambda: 9000), SimpleNamespace()

    await listener(messages(1000, 4000, 6000), context)  # type: ignore[arg-type]

    assert listener.warmed.is_set()
    assert listener.came.is_set()
    assert listener.take() == [8.0, 5.0]
    assert not listener.came.is_set()
    await listener(messages(8000), context)  # type: ignore[arg-type]
    assert listener.came.is_set()
    assert listener.take() == [3.0, 1.0]


@pytest.mark.parametrize(("began", "sent_at"), [(1 * MS, 8 * MS), (6 * MS + 1, 8 * MS), (20 * MS, 20 * MS + MS // 2)])
async def test_a_message_is_sent_when_due_and_at_once_if_late(began: int, sent_at: int) -> None:
    schedule, clock = DueTimes(3 * MS, 200, 2), count(began, MS // 2)

    await until_due(schedule, 1, clock.__next__)

    assert schedule.due(1) == 8 * MS
    assert sent_at <= next(clock) - MS // 2 <= sent_at + MS // 2
