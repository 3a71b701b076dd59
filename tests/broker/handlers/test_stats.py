from __future__ import annotations

from typing import Any, cast

import pytest

from rmq.broker.handlers.inspect import StatsHandler
from rmq.broker.net.connection import Connection
from rmq.broker.store.traffic import Traffic
from rmq.wire.errors import BadRequest


def ask(handler: StatsHandler, *payload: object) -> Any:
    return handler.stats(cast(Connection, None), 1, list(payload))


def test_each_part_is_asked_when_somebody_asks() -> None:
    numbers = {"sends": 0}
    handler = StatsHandler({"part": lambda: numbers}, Traffic())
    numbers["sends"] = 7

    assert ask(handler)["part"] == {"sends": 7}


def test_topics_are_told_only_to_who_asks_for_them() -> None:
    traffic = Traffic()
    traffic.took("orders", 3, 300)
    handler = StatsHandler({}, traffic)
    flow = {"messages_in": 3, "bytes_in": 300, "messages_out": 0, "bytes_out": 0}

    assert ask(handler) == {"traffic": flow}
    assert ask(handler, 0) == {"traffic": flow}
    assert ask(handler, 5) == {"traffic": flow, "topics": {"orders": flow}}


def test_a_question_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(BadRequest):
        ask(StatsHandler({}, Traffic()), "all")
