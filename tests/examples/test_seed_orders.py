"""``examples/seed_orders.py``: sixty of a hundred, order by order."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from .running import run
from rigs.processes import BrokerProcess

pytestmark = pytest.mark.slow

LINE = re.compile(r"order (\d): message (\d+), (Tag[A-E]), KEY(\d+), queue \d")


def check(printed: str) -> None:
    *lines, summary = printed.splitlines()
    orders: dict[int, list[int]] = defaultdict(list)
    tags = set()
    for line in lines:
        found = LINE.fullmatch(line)
        assert found is not None, line
        order, number, tag, key = found.groups()
        assert number == key
        orders[int(order)].append(int(number))
        tags.add(tag)

    assert summary == "60 messages of 6 orders, each order in sequence"
    assert len(lines) == 60
    assert tags == {"TagA", "TagC", "TagD"}
    assert orders == {order: list(range(order, 100, 10)) for order in (0, 2, 3, 5, 7, 8)}


def test_it_prints_sixty_messages_each_order_in_sequence() -> None:
    check(run("seed_orders"))


def test_with_a_broker_that_runs_it_can_be_run_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        check(run("seed_orders", "--broker", broker.address))
        check(run("seed_orders", "--broker", broker.address))
