"""
Two days of a shop: the events of its orders in the order they are sent, the same for the same seed.

Pure. An order is created, paid, packed, shipped and delivered, or cancelled before it is packed. Its events carry the
time at which they happened, since that is what a report is about; the times of the broker are those of this run.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

TOPIC: Final = "orders"
OPENING: Final = datetime(2026, 3, 2, tzinfo=UTC)
SPAN: Final = timedelta(days=2)

NEXT_STATES: Final = {
    "created": ("paid", "cancelled"),
    "paid": ("packed", "cancelled"),
    "packed": ("shipped",),
    "shipped": ("delivered",),
    "delivered": (),
    "cancelled": (),
}
"""The states of an order, each with those that may follow."""

STATES: Final = tuple(NEXT_STATES)

# How many orders are placed in each hour of a day, from midnight on: few at night, most after work.
_BY_HOUR: Final = (2, 1, 1, 1, 1, 2, 4, 7, 9, 10, 11, 13, 14, 12, 11, 11, 12, 14, 17, 20, 21, 17, 11, 5)
_COUNTRIES: Final = ("AT", "BE", "CH", "DE", "DK", "FR", "NL", "PL")


@dataclass(frozen=True, slots=True)
class Event:
    """An order reached a state."""

    order_id: str
    state: str
    at: datetime
    amount_cents: int
    country: str

    @property
    def event_id(self) -> str:
        """Names the event, however often it is sent: an order reaches a state once."""
        return f"{self.order_id}/{self.state}"

    def body(self) -> bytes:
        """What is sent."""
        fields = {
            "event_id": self.event_id,
            "order_id": self.order_id,
            "state": self.state,
            "at": self.at.isoformat(timespec="milliseconds"),
            "amount_cents": self.amount_cents,
            "country": self.country,
        }
        return json.dumps(fields, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Planted:
    """What is wrong in the events on purpose; the audit has to find the first two, a consumer fails at the third."""

    repeated: str  # the id of the event that is sent twice
    swapped: tuple[str, str]  # the ids of two events, as they come; they happened the other way round
    poisoned: str  # the id of an event that nobody can book


def two_days(orders: int, seed: int) -> list[Event]:
    """All events that happen within two days, by time."""
    random_ = random.Random(seed)
    events = [event for number in range(1, orders + 1) for event in _order(f"o-{number:05d}", random_)]
    return sorted(
        (event for event in events if event.at < OPENING + SPAN), key=lambda event: (event.at, event.order_id)
    )


def with_faults(events: Sequence[Event]) -> tuple[list[Event], Planted]:
    """
    The events with three faults, each of an order of its own, about a quarter, half and three quarters of the way.

    Raises:
        ValueError: there are too few orders for that.
    """
    complete = _orders_with(events, {"paid", "packed", "shipped"})
    if len(complete) < 12:
        raise ValueError(f"{len(complete)} orders were shipped, and 12 are needed to plant faults: have more orders")
    again, poison, swap = (complete[len(complete) * quarter // 4] for quarter in (1, 2, 3))
    sent = list(events)
    place = _place(sent, f"{again}/paid")
    # A producer that got no answer, waited, and sent again: other events are in between.
    sent.insert(min(place + 20, len(sent)), sent[place])
    place = _place(sent, f"{poison}/paid")
    sent[place] = replace(sent[place], amount_cents=-sent[place].amount_cents)
    packed, shipped = _place(sent, f"{swap}/packed"), _place(sent, f"{swap}/shipped")
    sent[packed], sent[shipped] = sent[shipped], sent[packed]
    return sent, Planted(f"{again}/paid", (f"{swap}/shipped", f"{swap}/packed"), f"{poison}/paid")


def fails_at_first(event_id: str) -> bool:
    """Whether the first try to book an event fails, as with a payment service that is away for a moment."""
    return zlib.crc32(event_id.encode()) % 50 == 0


def _order(order_id: str, random_: random.Random) -> Iterator[Event]:
    hour = random_.choices(range(48), weights=_BY_HOUR * 2)[0]
    at = OPENING + timedelta(hours=hour, milliseconds=random_.randrange(3_600_000))
    amount, country = random_.randrange(500, 25_000), random_.choice(_COUNTRIES)

    def after(median_minutes: float, spread: float) -> datetime:
        return at + timedelta(milliseconds=1 + round(60_000 * median_minutes * random_.lognormvariate(0, spread)))

    yield Event(order_id, "created", at, amount, country)
    if random_.random() < 0.08:
        yield Event(order_id, "cancelled", after(90, 0.5), amount, country)
        return
    at = after(4, 1.2)
    yield Event(order_id, "paid", at, amount, country)
    if random_.random() < 0.03:
        yield Event(order_id, "cancelled", after(60, 0.5), amount, country)
        return
    for state, median, spread in (("packed", 100, 0.6), ("shipped", 150, 0.5), ("delivered", 900, 0.4)):
        at = after(median, spread)
        yield Event(order_id, state, at, amount, country)


def _orders_with(events: Sequence[Event], states: set[str]) -> list[str]:
    """The orders that have reached all these states, by when they were created."""
    reached: dict[str, set[str]] = {}
    for event in events:
        reached.setdefault(event.order_id, set()).add(event.state)
    return [order_id for order_id, those in reached.items() if states <= those]


def _place(events: Sequence[Event], event_id: str) -> int:
    return next(place for place, event in enumerate(events) if event.event_id == event_id)
