"""``pipeline.orders``: the same shop for the same seed, and faults that are where they are said to be."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from pipeline import orders


def states_of(events: list[orders.Event]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for event in events:
        found.setdefault(event.order_id, []).append(event.state)
    return found


def test_the_same_seed_gives_the_same_events_and_another_one_does_not() -> None:
    assert orders.two_days(50, 3) == orders.two_days(50, 3)
    assert orders.two_days(50, 3) != orders.two_days(50, 4)


def test_events_come_by_time_and_every_order_goes_through_legal_states() -> None:
    events = orders.two_days(500, 1)

    assert [event.at for event in events] == sorted(event.at for event in events)
    assert all(orders.OPENING <= event.at < orders.OPENING + orders.SPAN for event in events)
    for states in states_of(events).values():
        assert states[0] == "created"
        assert all(after in orders.NEXT_STATES[before] for before, after in pairwise(states))
    assert {event.state for event in events} == set(orders.STATES)


def test_a_body_says_what_the_event_says() -> None:
    event = orders.two_days(1, 1)[0]

    body = json.loads(event.body())

    assert body == {
        "event_id": "o-00001/created",
        "order_id": "o-00001",
        "state": "created",
        "at": event.at.isoformat(timespec="milliseconds"),
        "amount_cents": event.amount_cents,
        "country": event.country,
    }
    assert body["at"].endswith("+00:00")


def test_a_repeat_a_swap_and_a_poison_are_planted_in_three_orders_and_nothing_else_changes() -> None:
    plain = orders.two_days(200, 7)

    sent, planted = orders.with_faults(plain)

    ids = [event.event_id for event in sent]
    assert sorted({event.event_id for event in plain}) == sorted(set(ids))
    assert [event_id for event_id in set(ids) if ids.count(event_id) > 1] == [planted.repeated]
    assert len(sent) == len(plain) + 1
    early, late = planted.swapped
    assert (early.split("/")[1], late.split("/")[1]) == ("shipped", "packed")
    assert ids.index(early) < ids.index(late)
    assert [event.event_id for event in sent if event.amount_cents < 0] == [planted.poisoned]
    wrong = {planted.repeated, early, late, planted.poisoned}
    assert len({event_id.split("/")[0] for event_id in wrong}) == 3
    assert [event for event in sent if event.event_id not in wrong] == [
        event for event in plain if event.event_id not in wrong
    ]


def test_faults_need_orders_to_be_planted_in() -> None:
    with pytest.raises(ValueError, match="12 are needed to plant faults: have more orders"):
        orders.with_faults(orders.two_days(5, 1))
