from __future__ import annotations

from typing import cast

from rmq.broker.connection import Connection
from rmq.broker.handlers.stats import StatsHandler


def test_each_part_is_asked_when_somebody_asks() -> None:
    numbers = {"sends": 0}
    handler = StatsHandler({"part": lambda: numbers})
    numbers["sends"] = 7

    told = handler.stats(cast(Connection, None), 1, ())

    assert told == {"part": {"sends": 7}}
