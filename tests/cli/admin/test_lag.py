"""How far a group is behind in time; with a group of a thousand queues it is still told at once."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from rmq.cli.admin.groups import ages_of, ahead, next_offsets, oldest
from rmq.cli.rmq_admin import command
from rmq.client import Admin, Producer
from rmq.client.admin.messages import Head
from rmq.wire.errors import Damaged
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import EMPTY
from rmq.wire.protocol.ops.groups import GroupDescription, GroupQueue

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def test_only_queues_with_a_lag_are_asked_from_where_they_go_on() -> None:
    queues = [
        GroupQueue("t", 0, 2, 9, 4, 5),
        GroupQueue("t", 1, 0, 3, 3, 0),
        GroupQueue("t", 2, 7, 9, -1, 2),
        GroupQueue("t", 3, 7, 9, 5, 2),  # retention was faster than the group
    ]
    told = GroupDescription("g", True, "clustering", "average", 0, 0, {}, [], queues)

    assert {queue.queue_id: offset for queue, offset in next_offsets(told).items()} == {0: 4, 2: 7, 3: 7}


def test_the_age_is_since_it_was_stored_and_what_cannot_be_read_has_none() -> None:
    heads = {
        MessageQueue("t", 0): Head(0, 4, NOW - timedelta(seconds=90.5), "id", None),
        MessageQueue("t", 1): Head(0, 4, NOW + timedelta(seconds=1), "id", None),  # the clock there is ahead
        MessageQueue("t", 2): Head(EMPTY, 4, None, None, None),
        MessageQueue("t", 3): Head(Damaged.code, 4, None, None, "cannot be read"),
    }

    ages = ages_of(heads, NOW)

    assert {queue.queue_id: age for queue, age in ages.items()} == {0: 90.5, 1: 0.0}
    assert (oldest(ages), oldest({})) == (90.5, None)


@pytest.mark.parametrize(
    ("stats", "seconds"),
    [
        ({"broker": {"time_us": int(NOW.timestamp() * 1e6) + 300_000_000}}, 300.0),
        ({"broker": {"time_us": int(NOW.timestamp() * 1e6) - 1_000_000}}, -1.0),
        ({"broker": {"time_us": "soon"}}, 0.0),
        ({}, 0.0),
    ],
)
def test_ages_are_by_the_clock_of_the_broker(stats: dict[str, dict[str, object]], seconds: float) -> None:
    assert ahead(stats, NOW) == timedelta(seconds=seconds)


@pytest.mark.slow
async def test_a_thousand_queues_that_are_behind_are_told_at_once(broker: str, topic: str) -> None:
    queues = [MessageQueue(topic, queue_id) for queue_id in range(1024)]
    async with Admin(broker) as admin, Producer(broker) as producer:
        await admin.create_topic(topic, len(queues))
        await asyncio.gather(*(producer.send_bodies(topic, [b"x"], queue_id=queue.queue_id) for queue in queues))
        await admin.reset_offsets(topic, dict.fromkeys(queues, 0))

    began = time.perf_counter()
    result = await asyncio.to_thread(
        CliRunner().invoke, command, ["group", "describe", topic, "--json", "--broker", broker], prog_name="rmq-admin"
    )
    took_s = time.perf_counter() - began

    told = json.loads(result.stdout)
    assert (told["lag"], told["more_queues"]) == (1024, 0)
    assert all(queue["lag_s"] >= 0 for queue in told["queues"])
    assert took_s < 3
