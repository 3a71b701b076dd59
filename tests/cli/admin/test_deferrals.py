"""``rmq-admin delay``: what waits for its time, from the command line."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from rmq.cli.admin.deferrals import COLUMNS, cells, delay_object, delays_text, remarks
from rmq.cli.shell import exit_codes
from rmq.client import DeferredBatches, Message, Producer
from rmq.wire.model import from_us
from rmq.wire.protocol.ops.deferrals import DelayRow

from ..commands import admin

DUE = 1_700_000_000_250_000
ROW = DelayRow(DUE, 4096, "orders", 2, 0, 17, DUE - 90_000_000, "ab" * 16)


def test_a_batch_that_waits_for_people() -> None:
    now = from_us(DUE) - timedelta(seconds=61)

    assert cells(ROW, now) == [
        "2023-11-14T22:13:20.250+00:00", "61.0s", "orders", 2, None, 17, "2023-11-14T22:11:50.250+00:00", "ab" * 16,
    ]  # fmt: skip
    assert cells(ROW, from_us(DUE) + timedelta(seconds=5))[1] == "0.0s", "the clock of the broker decides, not ours"
    assert cells(ROW._replace(delay_level=3), now)[4] == 3


def test_a_narrow_terminal_is_shown_no_times_of_day() -> None:
    shown = delays_text([ROW._replace(delay_level=3)], from_us(DUE) - timedelta(seconds=61), 80)

    heading, line = shown.splitlines()
    assert heading.split() == ["DUE_IN", "QUEUE", "LEVEL", "MESSAGES", "MESSAGE_ID"]
    assert line.split() == ["61.0s", "orders/2", "3", "17", "ab" * 16]
    assert max(map(len, shown.splitlines())) <= 80


def test_a_batch_that_waits_as_json() -> None:
    assert delay_object(ROW) == {
        "due_at": from_us(DUE), "topic": "orders", "queue_id": 2, "delay_level": None, "messages": 17,
        "parked_at": from_us(DUE - 90_000_000), "message_id": "ab" * 16, "position": 4096,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (DeferredBatches([], False, 0, 0), ["0 messages wait on this broker"]),
        (DeferredBatches([], False, 1, 1), ["1 message in 1 batch waits on this broker"]),
        (
            DeferredBatches([ROW], True, 3, 51),
            ["more than 1 may match: raise --limit", "51 messages in 3 batches wait on this broker"],
        ),
    ],
)
def test_the_total_is_printed_next_to_the_list(found: DeferredBatches, said: list[str]) -> None:
    assert remarks(found) == said


async def send(address: str, topic: str) -> list[str]:
    """The ids of two batches of a topic, the one that is due later first; there is another topic, too."""
    async with Producer(address) as producer:
        later = await producer.send_bodies(topic, [b"a", b"b"], queue_id=1, delay_s=7000)
        sooner = await producer.send(Message(topic, b"c", delay_level=17), queue_id=0)
        await producer.send(Message(f"{topic}-other", b"d", delay_level=17))
        return [later[0].message_id, sooner.message_id]


@pytest.mark.slow
def test_what_waits_is_listed_in_the_order_it_becomes_due(broker: str, topic: str) -> None:
    later, sooner = asyncio.run(send(broker, topic))

    listed = admin("delay", "list", "--topic", topic, "--json", "--broker", broker)
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(row["message_id"], row["messages"], row["delay_level"], row["queue_id"]) for row in rows] == [
        (sooner, 1, 17, 0),
        (later, 2, None, 1),
    ]
    assert "wait on this broker" in listed.stderr

    shown = admin("delay", "list", "--topic", topic, "--limit", "1", "--broker", broker)
    heading, line = shown.stdout.splitlines()
    assert heading.split() == [name.upper() for name in COLUMNS]
    assert line.split()[-1] == sooner
    assert "more than 1 may match: raise --limit" in shown.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--topic", "nowhere"], exit_codes.NO_INPUT, "there is no topic 'nowhere'"),
        (["--limit", "0"], exit_codes.USAGE, "--limit"),
    ],
)
def test_a_mistake_is_one_sentence_and_one_code(broker: str, arguments: list[str], code: int, sentence: str) -> None:
    result = admin("delay", "list", *arguments, "--broker", broker)

    assert (result.exit_code, sentence in result.stderr) == (code, True), result.stderr
