"""How an explanation is gathered: what it asks, and what it says of the group as a whole. States are in scenarios."""

from __future__ import annotations

import json

import pytest

from rmq.client.explain.collect import Explanation, as_object
from rmq.client.explain.notes import Note
from rmq.client.explain.rules import explain
from rmq.client.explain.wording import Urgency

from ..explain_builders import facts, held


def explanation(*stories: object, notes: list[Note] | None = None) -> Explanation:
    return Explanation("g", True, "clustering", "average", 2, list(stories), notes or [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("queues", "urgency", "requires_action"),
    [
        ([], Urgency.OK, False),
        ([facts(None, subscribed=False, lag=0)], Urgency.OK, False),
        ([held(attempt=2)], Urgency.WATCH, False),
        ([held(attempt=2), held(attempt=9)], Urgency.ACTION_REQUIRED, True),
    ],
)
def test_a_group_is_as_urgent_as_its_worst_queue(queues: list, urgency: Urgency, requires_action: bool) -> None:
    told = explanation(*map(explain, queues))

    assert (told.urgency, told.requires_action) == (urgency, requires_action)


def test_an_explanation_is_plain_data_for_programs() -> None:
    told = as_object(explanation(explain(held(attempt=9)), notes=[Note("IDLE_MEMBERS", "one", "two")]))

    assert json.loads(json.dumps(told)) == told
    assert {name: told[name] for name in ("group", "members", "lag", "urgency", "requires_action")} == {
        "group": "g", "members": 2, "lag": 5, "urgency": "ACTION_REQUIRED", "requires_action": True,
    }  # fmt: skip
    (queue,) = told["queues"]
    assert (queue["reason"], queue["urgency"], queue["head_id"], queue["attempt"]) == (
        "RETRYING",
        "ACTION_REQUIRED",
        "00ff",
        9,
    )
    assert told["notes"] == [{"code": "IDLE_MEMBERS", "sentence": "one", "advice": "two"}]
