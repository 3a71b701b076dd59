from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rmq.client import Head
from rmq.client.overview.sample import MOST_DATED, MOST_HEADS, MOST_LEASES, furthest_behind, take, waiting_heads
from rmq.wire.errors import GroupNotFound
from rmq.wire.model import MessageQueue, from_us
from rmq.wire.protocol.ops.core import EMPTY, LockRow
from rmq.wire.protocol.ops.groups import GroupDescription, GroupQueue, GroupRow

from ...cli.top_samples import group, lease, sample

NOW_US = 1_000_000_000


class FakeAdmin:
    """A broker with one topic of two queues; says what it was asked."""

    def __init__(self, groups: list[GroupRow], *, leases: int = 1) -> None:
        self.groups = groups
        self.leases = leases
        self.asked: list[str] = []
        self.heads_: dict[MessageQueue, Head] = {}

    async def stats(self, *, topics: int = 0) -> dict[str, dict[str, Any]]:
        assert topics > 0
        told = sample(serving={"leases": self.leases}, broker={"time_us": NOW_US}).stats
        return {part: dict(numbers) for part, numbers in told.items()}

    async def list_groups(self) -> list[GroupRow]:
        return self.groups

    async def lock_status(self, group: str | None = None) -> list[LockRow]:
        return [lease()]

    async def describe_group(self, group: str, topic: str | None = None) -> GroupDescription:
        self.asked.append(group)
        if group == "gone":
            raise GroupNotFound("there is no group 'gone'")
        queues = [GroupQueue("orders", 0, 5, 90, 30, 60), GroupQueue("orders", 1, 5, 90, 90, 0)]
        return GroupDescription(group, True, "clustering", "average", 0, 0, {}, [], queues)

    async def heads(self, offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, Head]:
        self.asked.append(", ".join(f"{queue}@{offset}" for queue, offset in offsets.items()))
        return {queue: self.heads_.get(queue, Head(EMPTY, 0, None, None, None)) for queue in offsets}


def head(ago_s: float) -> Head:
    return Head(0, 30, from_us(NOW_US) - timedelta(seconds=ago_s), "00", None)


async def test_the_oldest_message_that_waits_says_how_far_a_group_is_behind() -> None:
    admin = FakeAdmin([group("billing", 60), group("idle")])
    admin.heads_[MessageQueue("orders", 0)] = head(12.5)

    taken = await take(admin, lambda: 7.0)

    assert (taken.at, taken.behind_s) == (7.0, {"billing": 12.5})
    assert admin.asked == ["billing", "orders/0@30"]
    assert taken.locks == [lease()]


async def test_a_group_that_has_just_gone_or_cannot_be_dated_is_told_without_a_time() -> None:
    taken = await take(FakeAdmin([group("gone", 60), group("billing", 5)]), lambda: 7.0)

    assert taken.behind_s == {}
    assert len(taken.groups) == 2


async def test_a_message_stored_after_the_look_began_is_not_from_the_future() -> None:
    admin = FakeAdmin([group("billing", 60)])
    admin.heads_[MessageQueue("orders", 0)] = head(-0.5)

    assert (await take(admin, lambda: 7.0)).behind_s == {"billing": 0.0}


async def test_very_many_leases_are_not_listed() -> None:
    assert (await take(FakeAdmin([], leases=MOST_LEASES + 1), lambda: 7.0)).locks is None
    assert (await take(FakeAdmin([], leases=MOST_LEASES), lambda: 7.0)).locks is not None


def test_only_the_groups_that_are_furthest_behind_are_looked_at_closely() -> None:
    rows = [group(f"g{i}", i) for i in range(50)] + [group("shared", 999, model="broadcasting")]

    assert [row.group for row in furthest_behind(rows)] == [f"g{i}" for i in range(49, 49 - MOST_DATED, -1)]
    assert furthest_behind([group("idle")]) == []


def test_a_group_without_progress_goes_on_where_the_queue_begins() -> None:
    queues = [GroupQueue("orders", 0, 5, 90, -1, 85), GroupQueue("orders", 1, 0, 9, 9, 0)]
    told = GroupDescription("billing", True, "clustering", "average", 0, 0, {}, [], queues)

    assert waiting_heads(told) == {MessageQueue("orders", 0): 5}


def test_of_very_many_queues_those_with_the_most_are_dated() -> None:
    queues = [GroupQueue("orders", i, 0, 2000, 2000 - i, i) for i in range(1000)]
    told = GroupDescription("billing", True, "clustering", "average", 0, 0, {}, [], queues)

    heads = waiting_heads(told)

    assert len(heads) == MOST_HEADS
    assert MessageQueue("orders", 999) in heads
    assert MessageQueue("orders", 0) not in heads
