"""Every event and metric has a written meaning, and every meaning an event or metric."""

from __future__ import annotations

from dataclasses import fields

import pytest

from refdocs import tables
from refdocs.log_calls import Event
from refdocs.pages import found_events
from rmq.broker.config import BrokerConfig
from rmq.broker.store.flusher import Flusher
from rmq.client import Admin
from rmq.consumer.config import ConsumerConfig
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import WireError


def test_every_event_has_a_meaning_and_every_meaning_an_event() -> None:
    assert tables.faults(found_events()) == []


def test_an_event_without_a_meaning_and_a_meaning_without_an_event_are_reported() -> None:
    events = [event for event in found_events() if event.name != "disk.full"] + [Event("broker", "disk.new")]

    assert tables.faults(events) == [
        "broker: disk.new is logged and has no meaning in refdocs/events.toml",
        "broker: disk.full is in refdocs/events.toml and logged nowhere",
    ]


def test_every_meaning_is_a_sentence() -> None:
    texts = [text for names in tables.meanings().values() for pair in names.values() for text in pair]
    texts += [text for names in tables.numbers().values() for text in names.values()]

    assert [text for text in texts if text and not text.endswith((".", ")"))] == []


async def test_every_metric_of_a_broker_has_a_meaning_and_every_meaning_a_metric() -> None:
    class NoLog:
        def sync(self) -> int:
            return 0

    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        numbers = await admin.stats()
    # A broker of tests syncs without a thread and measures nothing there.
    numbers["flush"] = Flusher(NoLog(), print, lambda _: None, lambda _: None).stats()

    assert {part: sorted(names) for part, names in numbers.items()} == {
        part: sorted(names) for part, names in tables.numbers().items()
    }


@pytest.mark.parametrize("config", [BrokerConfig, ConsumerConfig])
def test_every_setting_is_listed_with_its_help(config: type[BrokerConfig] | type[ConsumerConfig]) -> None:
    text = tables.settings()

    for item in fields(config):
        assert f"\n| `{item.name}` | " in text
        assert item.metadata["help"].partition("|")[0] in text.replace(r"\*", "*")


def test_every_wire_error_is_listed_with_an_explained_exit_code() -> None:
    rows = [line.split(" | ") for line in tables.errors().splitlines() if line[2:3].isdigit()]
    explained = {str(number) for _, number, _ in tables.exit_constants()}

    assert [int(row[0].strip("| ")) for row in rows] == sorted(WireError.by_code)
    assert {row[-1].strip("| ") for row in rows} <= explained


def test_every_exit_code_says_what_it_means() -> None:
    constants = {name: (number, text) for name, number, text in tables.exit_constants()}

    assert constants["USAGE"] == (2, "The command line is wrong")
    assert len(constants) == len({number for number, _ in constants.values()}) >= 12
    assert all(text for _, text in constants.values())
