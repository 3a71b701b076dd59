"""Which delayed messages wait: those at or behind the offset of their level, without a copy in the log."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.client.importer.survey import DelayedMessages, Waiting, due_by_level, target_of
from rmq.wire.rocketmq.record import Record, decode

from support.rocketmq_store import encode_record

TO = {"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "1"}


def delayed(offset: int, position: int = 0, body: bytes = b"x", **more: Any) -> Record:
    properties = TO | more.pop("properties", {})
    fields = {"queue_id": 2, "queue_offset": offset, "physical_offset": position, "properties": properties}
    return decode(encode_record(topic="SCHEDULE_TOPIC_XXXX", body=body, **fields, **more))


def copy(body: bytes = b"x", topic: str = "orders", queue_id: int = 1, **more: Any) -> Record:
    properties = TO | more.pop("properties", {})
    return decode(encode_record(topic=topic, queue_id=queue_id, body=body, properties=properties, **more))


def waiting(offsets: dict[int, int], *records: Record) -> DelayedMessages:
    table = DelayedMessages(offsets)
    for number, record in enumerate(records):
        if record.topic == "SCHEDULE_TOPIC_XXXX":
            table.delay(record, ("orders", 1), 1000 - number)
        else:
            table.deliver(record)
    return table


def places(table: DelayedMessages) -> list[int]:
    return [each.physical_offset for each in table.waiting()]


def test_what_has_no_copy_waits_in_the_order_it_is_due() -> None:
    table = waiting({}, delayed(0, 10), delayed(1, 20, b"y"))

    assert table.waiting() == [Waiting(999, 20, "orders", 1), Waiting(1000, 10, "orders", 1)]
    assert (table.delivered, table.missing) == (0, 0)


def test_what_has_a_copy_behind_it_does_not_wait() -> None:
    table = waiting({}, delayed(0, 10), delayed(1, 20, b"y"), copy())

    assert places(table) == [20]
    assert table.delivered == 1


def test_a_copy_before_its_original_is_none() -> None:
    assert places(waiting({}, copy(), delayed(0, 10))) == [10]


def test_of_equal_messages_each_has_a_copy_of_its_own() -> None:
    assert places(waiting({}, delayed(0, 10), delayed(1, 20), delayed(2, 30), copy(), copy())) == [30]


@pytest.mark.parametrize(
    "other",
    [
        copy(b"z"), copy(born_at=1), copy(flag=1), copy(reconsume_times=1), copy(properties={"UNIQ_KEY": "U"}),
        copy(properties={"DELAY": "4"}), copy(queue_id=0), copy(topic="else"), copy(properties={"REAL_QID": "0"}),
    ],
)  # fmt: skip
def test_another_message_is_no_copy(other: Record) -> None:
    assert places(waiting({}, delayed(0, 10), other)) == [10]


def test_what_lies_before_the_offset_of_its_level_does_not_wait() -> None:
    table = waiting({3: 1, 4: 9}, delayed(0, 10), delayed(1, 20, b"y"), copy())

    assert places(table) == [20]
    assert table.missing == 0


def test_what_is_said_to_be_delivered_and_has_no_copy_is_counted() -> None:
    table = waiting({3: 2}, delayed(0, 10), delayed(1, 20, b"y"), copy())

    assert places(table) == []
    assert table.missing == 1


@pytest.mark.parametrize(
    ("properties", "target"),
    [
        (TO, ("orders", 1)),
        ({"REAL_TOPIC": "orders"}, None),
        ({"REAL_QID": "1"}, None),
        ({"REAL_TOPIC": "orders", "REAL_QID": "-1"}, None),
        ({"REAL_TOPIC": "orders", "REAL_QID": "9" * 10}, None),
    ],
)
def test_the_real_place(properties: dict[str, str], target: tuple[str, int] | None) -> None:
    assert target_of(decode(encode_record(topic="x", properties=properties))) == target


@pytest.mark.parametrize(("level", "ms"), [(1, 1000), (3, 10_000), (18, 7_200_000), (19, 1000)])
def test_the_time_by_its_level(level: int, ms: int) -> None:
    record = decode(encode_record(topic="x", queue_id=level - 1, stored_at=5))

    assert due_by_level(record) == 5 + ms
