"""
What each record of a store is, judged by its consume queue; and stores that are not opened.

Which delayed messages wait: those at or behind the offset of their level, without a copy in the log.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from rmq.client.importer.log_walk import LogDamage
from rmq.client.importer.store_files import StoreMissing, StoreUnreadable
from rmq.client.importer.survey import (
    DELAYED,
    QUEUED,
    DeferredRecord,
    DeferredRecords,
    RocketMQStore,
    Survey,
    SurveyedRecord,
    due_by_level,
    target_of,
)
from rmq.wire.rocketmq.record import Record, decode

from rigs.rocketmq_store import NOW_MS, StoreBuilder, encode_record, java_hash


def kinds(root: Path, wanted: Collection[str] | None = None) -> list[str]:
    found = list(Survey(RocketMQStore(root), wanted))[:-1]
    return [one.kind if isinstance(one, SurveyedRecord) else str(one) for one in found]


def test_a_message_of_a_queue_comes_with_its_body_and_place(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t", 2, b"hello")

    (item, _) = Survey(RocketMQStore(tmp_path))

    assert isinstance(item, SurveyedRecord)
    assert (item.kind, item.body, item.target) == (QUEUED, b"hello", ("t", 2))


def test_what_is_not_a_message_of_a_queue_is_named(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t", sysflag=0x4)
        store.put("t", sysflag=0xC)
        store.put("t", sysflag=0x8)
        store.put("RMQ_SYS_TRANS_HALF_TOPIC", properties={"TRAN_MSG": "true"})
        store.put("RMQ_SYS_TRANS_OP_HALF_TOPIC", tags="d", body=b"0")
        store.put("%RETRY%g")

    assert kinds(tmp_path) == [
        "prepared", "rolled back", QUEUED, "system topic RMQ_SYS_TRANS_HALF_TOPIC",
        "system topic RMQ_SYS_TRANS_OP_HALF_TOPIC", QUEUED,
    ]  # fmt: skip


def test_a_delayed_message_has_the_time_of_its_entry(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path, clean=False) as store:
        store.delay("t", 1, b"x", 3)
        store.delay("t", 1, b"y", 4, indexed=False)
        store.delay("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"z", 3)
        store.put("SCHEDULE_TOPIC_XXXX", 9, b"where to?")
    survey = Survey(RocketMQStore(tmp_path))

    first, second, third, fourth, _ = survey

    assert isinstance(first, SurveyedRecord)
    assert isinstance(second, SurveyedRecord)
    assert isinstance(third, SurveyedRecord)
    assert (first.kind, first.target, first.due_ms) == (DELAYED, ("t", 1), NOW_MS + 10_000)
    assert (second.kind, second.due_ms, survey.times_by_level) == (DELAYED, NOW_MS + 30_000, 1)
    assert third.kind == "delayed, system topic RMQ_SYS_TRANS_HALF_TOPIC"
    assert "does not tell its real topic" in str(fourth)


def test_topics_that_were_deleted_or_not_asked_for_are_left_out(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.topics(a=1, b=1)
        store.put("a")
        store.put("b")
        store.put("gone")

    assert kinds(tmp_path) == [QUEUED, QUEUED, "deleted topic gone"]
    assert kinds(tmp_path, {"a"}) == [QUEUED, "other topics", "other topics"]
    assert kinds(tmp_path, {"gone"}) == ["other topics", "other topics", QUEUED], "it was asked for by name"


def test_a_record_whose_place_was_given_away_is_superseded(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t", 0, b"old", indexed=False)
        store.put("t", 0, b"older", indexed=False)
        store._offsets["t", 0] = 0  # the topic was deleted, and made anew
        store.put("t", 0, b"new")

    assert kinds(tmp_path) == ["superseded", "superseded", QUEUED]


@pytest.mark.parametrize("position", [95, 190, 2000, 1 << 40])
def test_a_place_was_given_away_only_to_a_record_that_is_there(tmp_path: Path, position: int) -> None:
    with StoreBuilder(tmp_path, clean=False) as store:
        for _ in range(3):
            store.put("t", 0, b"abc")
    entry(tmp_path, 0, position, 95, 0)

    first, *_ = Survey(RocketMQStore(tmp_path))

    assert isinstance(first, LogDamage)
    assert f"is not the one its consume queue names: nor is one at {position}" in first.text


def test_the_first_file_of_a_consume_queue_that_is_missing_costs_no_message_unseen(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path, entries=2) as store:
        for _ in range(4):
            store.put("t", 0)
    (tmp_path / "consumequeue" / "t" / "0" / f"{0:020}").unlink()

    first, second, *rest, _ = Survey(RocketMQStore(tmp_path))

    assert isinstance(first, LogDamage)
    assert "has the queue offset 0, and its consume queue begins at 2" in first.text
    assert isinstance(second, LogDamage)
    assert [each.kind for each in rest if isinstance(each, SurveyedRecord)] == [QUEUED, QUEUED]


def test_a_tag_that_its_consume_queue_does_not_know_is_a_disagreement(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t", 0, tags="paid \U0001f600")
        store.put("t", 0, tags="paid", tags_code=java_hash("said"))
        store.put("t", 0, tags="paid", tags_code=-(1 << 63))  # where more is told of it

    first, second, third, _ = Survey(RocketMQStore(tmp_path))

    assert isinstance(first, SurveyedRecord)
    assert isinstance(second, LogDamage)
    assert "has another tag than its consume queue says" in second.text
    assert isinstance(third, SurveyedRecord)


def test_in_a_clean_store_every_message_is_in_a_consume_queue(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.topics(t=2, u=1)
        store.put("t", 0)
        store.put("t", 1, indexed=False)
        store.put("u", 0, indexed=False)
        store.put("gone", 0, indexed=False)
        store.delay("t", 0, b"later", 3, indexed=False)

    queued, second, third, gone, fifth, _ = Survey(RocketMQStore(tmp_path))

    assert isinstance(queued, SurveyedRecord)
    for lost in (second, third, fifth):
        assert isinstance(lost, LogDamage)
        assert "is in no consume queue, though its broker was stopped in order" in lost.text
    assert isinstance(gone, SurveyedRecord)
    assert kinds(tmp_path, {"gone"})[3] == QUEUED, "it was asked for by name"


def test_a_record_that_another_consume_queue_names_is_not_taken_over_where_it_says(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path, clean=False) as store:
        store.put("u", 0)
        store.put("u", 1)
        for n in range(3):
            store.put("t", n)
        store.put("t", 1, indexed=False)
    path = tmp_path / "commitlog" / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[2 * 92 + 14] = 1  # queue 256 instead of 0
    path.write_bytes(data)

    found = list(Survey(RocketMQStore(tmp_path)))

    assert isinstance(found[2], LogDamage)
    assert found[2].text == "the record tells another place than the consume queue of t/0, which names it"
    assert [each.kind for each in found if isinstance(each, SurveyedRecord)] == [QUEUED] * 5


def test_a_consume_queue_whose_only_entry_is_gone_costs_no_message_unseen(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t", 0)
        store.put("t", 1)
    entry(tmp_path, 0, 0, -1, 0)

    first, *_ = Survey(RocketMQStore(tmp_path))

    assert isinstance(first, LogDamage)


def test_what_is_left_out_is_not_counted_as_taken_over(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path, clean=False) as store:
        store.topics(t=1)
        store.put("t", 0, indexed=False)
        store.put("gone", 0, indexed=False)
    survey = Survey(RocketMQStore(tmp_path))

    list(survey)

    assert survey.not_indexed == 1


def entry(root: Path, number: int, *values: int) -> None:
    path = root / "consumequeue" / "t" / "0" / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[number * 20 : number * 20 + 20] = struct.pack(">qiq", *values)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("values", "text"),
    [((0, 95, 0), "is not the one its consume queue names: that lies at 0"), ((95, 1, 0), "that lies at 95")],
)
def test_a_consume_queue_that_names_another_record_is_a_disagreement(
    tmp_path: Path, values: tuple[int, int, int], text: str
) -> None:
    with StoreBuilder(tmp_path) as store:
        for _ in range(3):
            store.put("t", 0, b"abc")
    entry(tmp_path, 1, *values)

    found = list(Survey(RocketMQStore(tmp_path)))

    assert isinstance(found[1], LogDamage)
    assert text in found[1].text
    assert found[1].lost == (("t", 0, 1),)


def test_without_its_entry_a_record_is_counted_and_an_offset_that_comes_again_is_a_disagreement(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t", 0, indexed=False)
        store._offsets["t", 0] = 0
        store.put("t", 0, indexed=False)
    survey = Survey(RocketMQStore(tmp_path))

    first, second, _ = survey

    assert isinstance(first, SurveyedRecord)
    assert isinstance(second, LogDamage)
    assert "has the queue offset 0, which an earlier one has" in second.text
    assert survey.not_indexed == 1


def test_a_body_that_is_too_large_or_cannot_be_unpacked_is_told(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path, file_size=5 << 20) as store:
        store.put("t", 0, bytes((4 << 20) + 1))
        store.put("t", 0, b"no zlib", sysflag=1)

    first, second, _ = Survey(RocketMQStore(tmp_path))

    assert "has a body of 4194305 bytes, and a message here has at most 4194304" in str(first)
    assert "has a body that is not zlib" in str(second)


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="is not a folder"):
        RocketMQStore(tmp_path / "nothing")
    with pytest.raises(StoreMissing, match="commitlog does not exist"):
        RocketMQStore(tmp_path)


def test_a_folder_that_the_system_does_not_let_us_look_into_is_no_defect(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreadable, match="cannot be read: File name too long; import as a user who may"):
        RocketMQStore(tmp_path / ("x" * 256))  # as without the right to enter the folder above, which a test may always


def test_a_store_is_read_without_the_right_to_write(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with StoreBuilder(root) as store:
        store.topics(t=1)
        store.put("t", 0, b"hello")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for path in (root, *root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert kinds(root) == [QUEUED]
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    finally:
        for path in (root, *root.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        shutil.rmtree(root)
        assert not os.path.exists(root)


TO = {"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "1"}


def delayed(offset: int, position: int = 0, body: bytes = b"x", **more: Any) -> Record:
    properties = TO | more.pop("properties", {})
    fields = {"queue_id": 2, "queue_offset": offset, "physical_offset": position, "properties": properties}
    return decode(encode_record(topic="SCHEDULE_TOPIC_XXXX", body=body, **fields, **more))


def copy(body: bytes = b"x", topic: str = "orders", queue_id: int = 1, **more: Any) -> Record:
    properties = TO | more.pop("properties", {})
    return decode(encode_record(topic=topic, queue_id=queue_id, body=body, properties=properties, **more))


def table_of(offsets: dict[int, int], *records: Record) -> DeferredRecords:
    table = DeferredRecords(offsets)
    for number, record in enumerate(records):
        if record.topic == "SCHEDULE_TOPIC_XXXX":
            table.delay(record, ("orders", 1), 1000 - number)
        else:
            table.deliver(record)
    return table


def places(table: DeferredRecords) -> list[int]:
    return [each.physical_offset for each in table.undelivered()]


def test_what_has_no_copy_waits_in_the_order_it_is_due() -> None:
    table = table_of({}, delayed(0, 10), delayed(1, 20, b"y"))

    assert table.undelivered() == [DeferredRecord(999, 20, "orders", 1), DeferredRecord(1000, 10, "orders", 1)]
    assert (table.delivered, table.missing) == (0, 0)


def test_what_has_a_copy_behind_it_does_not_wait() -> None:
    table = table_of({}, delayed(0, 10), delayed(1, 20, b"y"), copy())

    assert places(table) == [20]
    assert table.delivered == 1


def test_a_copy_before_its_original_is_none() -> None:
    assert places(table_of({}, copy(), delayed(0, 10))) == [10]


def test_of_equal_messages_each_has_a_copy_of_its_own() -> None:
    assert places(table_of({}, delayed(0, 10), delayed(1, 20), delayed(2, 30), copy(), copy())) == [30]


@pytest.mark.parametrize(
    "other",
    [
        copy(b"z"), copy(born_at=1), copy(flag=1), copy(reconsume_times=1), copy(properties={"UNIQ_KEY": "U"}),
        copy(properties={"DELAY": "4"}), copy(queue_id=0), copy(topic="else"), copy(properties={"REAL_QID": "0"}),
    ],
)  # fmt: skip
def test_another_message_is_no_copy(other: Record) -> None:
    assert places(table_of({}, delayed(0, 10), other)) == [10]


def test_what_lies_before_the_offset_of_its_level_does_not_wait() -> None:
    table = table_of({3: 1, 4: 9}, delayed(0, 10), delayed(1, 20, b"y"), copy())

    assert places(table) == [20]
    assert table.missing == 0


def test_what_is_said_to_be_delivered_and_has_no_copy_is_counted() -> None:
    table = table_of({3: 2}, delayed(0, 10), delayed(1, 20, b"y"), copy())

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
