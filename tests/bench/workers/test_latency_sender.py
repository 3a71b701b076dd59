"""A message that is alone is sent when it is due, whatever the loop's own clock can tell apart."""

from __future__ import annotations

from itertools import count

import pytest

from rmq.bench.workers.latency_sender import until_due
from rmq.bench.workers.schedule import Schedule

MS = 1_000_000


@pytest.mark.parametrize(("began", "sent_at"), [(1 * MS, 8 * MS), (6 * MS + 1, 8 * MS), (20 * MS, 20 * MS + MS // 2)])
async def test_a_message_is_sent_when_it_is_due_and_at_once_where_it_is_late(began: int, sent_at: int) -> None:
    schedule, clock = Schedule(3 * MS, 200, 2), count(began, MS // 2)

    await until_due(schedule, 1, clock.__next__)

    assert schedule.due(1) == 8 * MS
    assert sent_at <= next(clock) - MS // 2 <= sent_at + MS // 2
