"""Lease epochs in JSON are text, so that no reader rounds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rmq.cli.admin.explain import json_text
from rmq.cli.admin.groups import group_object
from rmq.cli.admin.locks import lock_object
from rmq.cli.admin.member_text import plain
from rmq.cli.admin.trace import trace_object
from rmq.cli.output.render import message_object, to_json
from rmq.cli.top.view import view_object, view_of
from rmq.client.admin.trace import Standing, Trace, origin_of
from rmq.client.explain.collect import Explanation
from rmq.client.explain.facts import QueueFacts
from rmq.client.explain.rules import explain
from rmq.wire.protocol.ops.groups import GroupDescription, GroupQueue

from .top_samples import lease, sample
from rigs.stored import stored_message

EPOCH = (1_900_000_000 << 32) + 1  # of a log epoch that is a time in seconds: far above 2^53
LEASE = lease()._replace(epoch=EPOCH)
MESSAGE = stored_message("orders", 2, 17, b"paid", position=80, at=1_000_000)
HELD = GroupQueue("orders", 0, 0, 1, 0, 1, "host@7#ab12cd34", EPOCH)
FACTS = QueueFacts(group="g", topic="orders", queue_id=0, owner="host@7#ab12cd34", epoch=EPOCH, connected=1)
STANDING = Standing("g", "past", 20, 0, True, "*", "host@7#ab12cd34", EPOCH, 43.0, "held", 0, 0)

PRINTED = {
    "rmq-consume": to_json(message_object(MESSAGE, EPOCH)),
    "lock-status": to_json([lock_object(LEASE)]),
    "group describe": to_json(group_object(GroupDescription("g", None, None, None, 0, 0, {}, [], [HELD]), {})),
    "group members": to_json(plain({"queues": [{"topic": "orders", "epoch": EPOCH}]})),
    "explain": json_text(Explanation("g", True, "clustering", "average", 1, [explain(FACTS)], [])),
    "message trace": to_json(trace_object(Trace(MESSAGE, origin_of(MESSAGE), False, None, None, [STANDING], [], []))),
    "top": to_json(view_object(view_of(None, sample(locks=[LEASE])))),
}


def epochs(value: Any) -> Iterator[Any]:
    """Every lease epoch in decoded JSON."""
    if isinstance(value, dict):
        yield from (element for name, element in value.items() if name == "epoch")
        value = list(value.values())
    if isinstance(value, list):
        for element in value:
            yield from epochs(element)


@pytest.mark.parametrize("command", PRINTED)
def test_an_epoch_is_printed_as_decimal_text(command: str) -> None:
    assert list(epochs(json.loads(PRINTED[command]))) == [str(EPOCH)]


def test_a_queue_without_an_owner_has_no_epoch() -> None:
    free = GroupDescription("g", None, None, None, 0, 0, {}, [], [HELD._replace(owner=None, epoch=0)])

    assert list(epochs(json.loads(to_json(group_object(free, {}))))) == [None]
    assert plain({"epoch": "x", "more": {"epoch": None}}) == {"epoch": "x", "more": {"epoch": None}}
