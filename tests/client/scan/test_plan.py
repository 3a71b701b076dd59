"""
A scan is planned with a few questions, and then frozen.

A scan that starts at saved offsets never misses what a restored store holds after them.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.offline.backup import restore
from rmq.broker.store.consume_queue import MAX_EPOCHS
from rmq.client import Admin, MessageQueue, starting_offsets
from rmq.client.scan.options import ScanOptions
from rmq.client.scan.plan import plan
from rmq.client.scan.table import read_table
from rmq.engine.native.blocking import BlockingConnection
from rmq.engine.native.source import QueueRange
from rmq.runtime.clock import wall_us
from rmq.testing.broker import BrokerThread
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.errors import (
    ConfigError,
    ConnectionLost,
    Damaged,
    LogTruncated,
    MessagesLost,
    OffsetOutOfRange,
    OtherHistory,
    QueueNotFound,
    TopicNotFound,
)
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from rigs.faulty_broker import STORE_ID, STORED_AT, FakeBroker

AFTER = str(STORED_AT // 1000 + 1)


@pytest.fixture
def broker(fake_broker: FakeBroker) -> FakeBroker:
    """Queues with 10, 0 and 5 messages."""
    fake_broker.create("orders", queues=3)
    fake_broker.append("orders", 0, Rows([b"x"] * 10, 0))
    fake_broker.append("orders", 2, Rows([b"y"] * 5, 0))
    return fake_broker


def options(at: FakeBroker, /, **given: str) -> ScanOptions:
    chosen = {} if "topicPattern" in given else {"topic": "orders"}
    return ScanOptions.parse({"broker": at.address, **chosen, **given})


def planned(at: FakeBroker, /, **given: str) -> list[tuple[str, int, int, int]]:
    return [(part.topic, part.queue_id, part.start, part.end) for part in plan(options(at, **given))]


def asked(broker: FakeBroker) -> list[Op]:
    return [op for op, _ in broker.requests]


def test_each_queue_that_holds_messages_is_a_range_that_knows_everything(broker: FakeBroker) -> None:
    assert plan(options(broker)) == [
        QueueRange(broker.address, StoreIds(STORE_ID), "orders", 1, 0, 0, 10),
        QueueRange(broker.address, StoreIds(STORE_ID), "orders", 1, 2, 0, 5),
    ]


def test_one_connection_and_two_requests_make_the_plan(broker: FakeBroker) -> None:
    plan(options(broker))

    assert asked(broker) == [Op.HELLO, Op.ROUTE, Op.RANGES]
    assert broker.wait_for_connections(0)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"queues": "2"}, [(2, 0, 5)]),
        ({"queues": "1"}, []),
        (
            {"startingOffsets": '{"orders":{"0":3,"1":0,"2":-2}}', "endingOffsets": '{"orders":{"0":7,"1":0,"2":5}}'},
            [(0, 3, 7), (2, 0, 5)],
        ),
        ({"maxRecordsPerPartition": "5"}, [(0, 0, 5), (0, 5, 10), (2, 0, 5)]),
        ({"minPartitions": "3"}, [(0, 0, 5), (0, 5, 10), (2, 0, 5)]),
        ({"startingTimestamp": AFTER}, []),
        ({"startingTimestamp": "0"}, [(0, 0, 10), (2, 0, 5)]),
        ({"endingTimestamp": AFTER}, [(0, 0, 10), (2, 0, 5)]),
        ({"endingTimestamp": "0"}, []),
        ({"startingTimestamp": "0", "endingTimestamp": AFTER}, [(0, 0, 10), (2, 0, 5)]),
    ],
)
def test_options_choose_the_ranges(
    broker: FakeBroker, given: dict[str, str], found: list[tuple[int, int, int]]
) -> None:
    assert planned(broker, **given) == [("orders", *part) for part in found]


def test_times_are_asked_for_once_and_after_what_there_is(broker: FakeBroker) -> None:
    planned(broker, startingTimestamp="0", endingTimestamp=AFTER)

    assert asked(broker) == [Op.HELLO, Op.ROUTE, Op.RANGES, Op.OFFSETS_AT, Op.OFFSETS_AT]


def test_several_topics_are_read_in_the_order_they_are_named(broker: FakeBroker) -> None:
    broker.create("a", queues=2)
    broker.append("a", 1, Rows([b"z"], 0))

    assert planned(broker, topic="orders,a") == [("orders", 0, 0, 10), ("orders", 2, 0, 5), ("a", 1, 0, 1)]
    assert planned(broker, topic="a,orders", queues="1") == [("a", 1, 0, 1)]


def test_offsets_are_by_topic(broker: FakeBroker) -> None:
    broker.create("a")
    broker.append("a", 0, Rows([b"z"] * 4, 0))
    starts = json.dumps({"a": {"0": 3}, "orders": {"0": 9, "1": 0, "2": 5}})

    assert planned(broker, topic="a,orders", startingOffsets=starts) == [("a", 0, 3, 4), ("orders", 0, 9, 10)]


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("orders", ["orders"]),
        ("order", []),
        ("rders", []),
        ("orders.*", ["orders", "orders_eu"]),
        (".*", ["orders", "orders_eu"]),
        ("a|orders_eu", ["orders_eu"]),
        (".*%.*", ["%DLQ%billing"]),
    ],
)
def test_a_pattern_has_to_match_whole_names_and_finds_copies_only_when_it_names_them(
    broker: FakeBroker, pattern: str, topics: list[str]
) -> None:
    for topic in ("orders_eu", "%DLQ%billing"):
        broker.create(topic)
        broker.append(topic, 0, Rows([b"z"], 0))
    if not topics:
        with pytest.raises(TopicNotFound, match=r"no topic matches; there are %DLQ%billing, orders, orders_eu"):
            planned(broker, topicPattern=pattern)
        return

    found = planned(broker, topicPattern=pattern)

    assert sorted({topic for topic, *_ in found}) == topics


def test_a_pattern_sees_all_pages_of_topics(broker: FakeBroker) -> None:
    for i in range(5):
        broker.create(f"t{i}")
        broker.append(f"t{i}", 0, Rows([b"z"], 0))
    broker.topics_a_page = 2

    assert [topic for topic, *_ in planned(broker, topicPattern=r"t\d")] == [f"t{i}" for i in range(5)]


def test_many_queues_are_asked_for_in_several_requests(broker: FakeBroker) -> None:
    broker.create("wide", queues=ops.MAX_ENTRIES + 1)
    broker.append("wide", ops.MAX_ENTRIES, Rows([b"z"], 0))

    assert planned(broker, topic="wide") == [("wide", ops.MAX_ENTRIES, 0, 1)]
    assert asked(broker) == [Op.HELLO, Op.ROUTE, Op.RANGES, Op.RANGES]


def test_an_empty_topic_has_no_ranges(broker: FakeBroker) -> None:
    broker.create("empty", queues=2)

    assert plan(options(broker, topic="empty")) == []


def test_a_missing_topic_is_told_with_those_that_exist(broker: FakeBroker) -> None:
    with pytest.raises(TopicNotFound, match=rf"broker {broker.address}: there is no topic order; there are orders"):
        planned(broker, topic="order")


def test_a_broker_without_topics_says_so(fake_broker: FakeBroker) -> None:
    with pytest.raises(TopicNotFound, match="there is no topic at all"):
        planned(fake_broker)


def test_a_queue_that_does_not_exist_is_named(broker: FakeBroker) -> None:
    with pytest.raises(QueueNotFound, match="topic orders has no queue 7; the topic has the queues 0, 1, 2"):
        planned(broker, queues="0,7")


def test_missing_and_extra_queues_of_offsets_are_named(broker: FakeBroker) -> None:
    with pytest.raises(ConfigError, match=r"but 0, 1, 2 are read: 1, 2 missing and 7 too many"):
        planned(broker, startingOffsets='{"orders": {"0": 1, "7": 1}}')


def test_missing_and_extra_topics_of_offsets_are_named(broker: FakeBroker) -> None:
    with pytest.raises(ConfigError, match=r"names the topics other, but orders are read: orders missing and other too"):
        planned(broker, endingOffsets='{"other": {"0": 1}}')


def test_deleted_messages_that_were_asked_for_are_an_error(broker: FakeBroker) -> None:
    broker.topics["orders"][0].min_offset = 4
    starts = '{"orders": {"0": 2, "1": 0, "2": 0}}'

    with pytest.raises(OffsetOutOfRange, match=r"topic orders, queue 0: the messages from offset 2 to 4 are deleted"):
        planned(broker, startingOffsets=starts)
    assert planned(broker, startingOffsets=starts, failOnDataLoss="false")[0] == ("orders", 0, 2, 10)


def test_no_broker_is_told_with_the_topic(broker: FakeBroker) -> None:
    with pytest.raises(ConnectionLost, match=r"topic orders, broker 127\.0\.0\.1:1: no broker at 127\.0\.0\.1:1"):
        planned(broker, broker="127.0.0.1:1")
    with pytest.raises(ConnectionLost, match=rf"topics {re.escape('a.*')}, broker 127\.0\.0\.1:1: no broker"):
        planned(broker, broker="127.0.0.1:1", topicPattern="a.*")


def test_a_refusal_of_one_queue_is_told_with_it(broker: FakeBroker) -> None:
    def gone(answer: list[ops.Range]) -> list[ops.Range]:
        return [*answer[:2], ops.Range(TopicNotFound.code, text="the topic 'orders' does not exist")]

    broker.fail_next(Op.RANGES, gone)

    with pytest.raises(TopicNotFound, match="queue 2 of topic orders: the topic 'orders' does not exist"):
        planned(broker)


QUEUES = [MessageQueue("orders", queue_id) for queue_id in range(2)]
NOON_US = 1_798_718_400_000_000  # of a clock that stands still
EPOCH = 1  # of all messages of the fake broker
DAYS_US = 10 * 86_400_000_000


# ---- what is asked, and what answers mean


@pytest.fixture
def history_broker(fake_broker: FakeBroker) -> FakeBroker:
    """Queues with 10 and 5 messages."""
    fake_broker.create("orders", queues=2)
    fake_broker.append("orders", 0, Rows([b"x"] * 10, 0))
    fake_broker.append("orders", 1, Rows([b"y"] * 5, 0))
    return fake_broker


def with_history(starts: dict[str, Any], epochs: dict[str, int], store_id: int = STORE_ID) -> str:
    history = {"store": f"{store_id:016x}", "epochs": {"orders": epochs}}
    return json.dumps({"orders": starts, "@history": history})


def planned_after(history_broker: FakeBroker, **given: str) -> list[tuple[int, int, int]]:
    options = ScanOptions.parse({"broker": history_broker.address, "topic": "orders", **given})
    return [(part.queue_id, part.start, part.end) for part in plan(options)]


def compared(history_broker: FakeBroker) -> list[list[Any]]:
    """Return queue, offset and log epoch of every pull; an epoch is given where the broker has to judge."""
    pulls = [payload for op, payload in history_broker.requests if op is Op.PULL]
    assert all(pull[:3] == [None, 0, 1] and len(pull[3]) == 1 for pull in pulls)
    return [[pull[3][0][1], pull[3][0][2], pull[3][0][5]] for pull in pulls]


def refusing(code: int, next_offset: int, text: str | None = "the text of the broker") -> Callable[[Any], Any]:
    return lambda answer: [ops.PullResult(0, code, next_offset, 0, 10, b"", text)]


def right(answer: Any) -> Any:
    return answer


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "rmq.client.scan.plan"]


def test_each_offset_is_compared_by_the_message_before_it_and_then_read_as_it_is(
    history_broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    starts = with_history({"0": 7, "1": 5}, {"0": EPOCH, "1": EPOCH})

    assert planned_after(history_broker, startingOffsets=starts) == [(0, 7, 10)]
    assert compared(history_broker) == [[0, 6, 0], [1, 4, 0]]
    assert warnings(caplog) == []


def test_where_another_message_lies_before_an_offset_the_broker_judges(history_broker: FakeBroker) -> None:
    history_broker.fail_next(Op.PULL, right, refusing(LogTruncated.code, 3))

    assert planned_after(history_broker, startingOffsets=with_history({"0": 7, "1": 5}, {"0": 900, "1": EPOCH})) == [
        (0, 3, 10)
    ]
    assert compared(history_broker) == [[0, 6, 0], [0, 7, 900], [1, 4, 0]]


def test_an_offset_that_the_broker_agrees_with_although_the_message_is_another_is_refused(
    history_broker: FakeBroker,
) -> None:
    with pytest.raises(OtherHistory, match=r"orders/0 has another message before offset 7 .*: start again with"):
        planned_after(history_broker, startingOffsets=with_history({"0": 7, "1": 0}, {"0": 900}))


def test_before_offset_0_and_at_the_earliest_there_is_nothing_to_compare(history_broker: FakeBroker) -> None:
    starts = with_history({"0": 0, "1": "earliest"}, {"0": 900, "1": 900})

    assert planned_after(history_broker, startingOffsets=starts) == [(0, 0, 10), (1, 0, 5)]
    assert compared(history_broker) == []


def test_offsets_of_a_store_that_this_one_never_was_are_refused(history_broker: FakeBroker) -> None:
    with pytest.raises(OtherHistory) as caught:
        planned_after(history_broker, startingOffsets=with_history({"0": 7, "1": 0}, {"0": 900}, store_id=5))

    assert str(caught.value) == (
        f'broker {history_broker.address}: "startingOffsets" is of the store 0000000000000005; '
        f"this one is {STORE_ID:016x}, "
        "which is not a copy of it: read from the store that the offsets were saved of, or start again with "
        '"earliest"'
    )
    assert compared(history_broker) == []


def test_another_history_is_an_error_that_names_where_the_histories_part(history_broker: FakeBroker) -> None:
    history_broker.fail_next(Op.PULL, right, refusing(OtherHistory.code, 3, "up to offset 3"))

    with pytest.raises(OtherHistory, match=rf"^broker {history_broker.address}: up to offset 3$"):
        planned_after(history_broker, startingOffsets=with_history({"0": 7, "1": 5}, {"0": 900, "1": 900}))


def test_a_log_that_lost_messages_is_read_from_there_with_one_warning(
    history_broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    history_broker.fail_next(Op.PULL, right, refusing(LogTruncated.code, 3, "the log lost"), right)
    history_broker.fail_next(Op.PULL, refusing(LogTruncated.code, 4))

    assert planned_after(history_broker, startingOffsets=with_history({"0": 7, "1": 5}, {"0": 900, "1": 900})) == [
        (0, 3, 10),
        (1, 4, 5),
    ]
    assert warnings(caplog) == [
        f"broker {history_broker.address}: the log lost; reading from offset 3 of orders/0, 4 of orders/1"
    ]


def test_the_warning_names_ten_queues_at_most(history_broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    history_broker.create("orders", queues=12)
    for queue_id in range(12):
        history_broker.append("orders", queue_id, Rows([b"x"] * 2, 0))
    history_broker.fail_next(Op.PULL, *[right, refusing(LogTruncated.code, 1)] * 12)
    starts = {str(queue_id): 2 for queue_id in range(12)}

    planned_after(history_broker, startingOffsets=with_history(starts, dict.fromkeys(starts, 900)))

    (line,) = warnings(caplog)
    assert line.endswith("1 of orders/9 and 2 other queues") and "orders/10" not in line


@pytest.mark.parametrize("code", [ops.EMPTY, MessagesLost.code, OffsetOutOfRange.code, Damaged.code])
def test_a_message_before_the_offset_that_cannot_be_read_is_left_to_the_broker(
    history_broker: FakeBroker, code: int
) -> None:
    history_broker.fail_next(Op.PULL, refusing(code, 3), refusing(code, 3))

    assert planned_after(history_broker, startingOffsets=with_history({"0": 7, "1": 0}, {"0": 900})) == [
        (0, 7, 10),
        (1, 0, 5),
    ]


def test_a_start_beyond_the_end_is_an_error_as_without_a_history(history_broker: FakeBroker) -> None:
    with pytest.raises(OffsetOutOfRange, match="queue 0 holds 0 to 10: startingOffsets is 11"):
        planned_after(history_broker, startingOffsets=with_history({"0": 11, "1": 0}, {"0": 900}))


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"startingOffsets": '{"orders": {"0": 7, "1": 5}}'}, 1),
        ({"startingOffsets": '{"orders": {"0": 7, "1": 0}, "@history": null}'}, 1),
        ({"startingOffsets": '{"orders": {"0": 0, "1": "earliest"}}'}, 0),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingTimestamp": "0"}, 0),
        ({"endingOffsets": '{"orders": {"0": 7, "1": 5}}'}, 0),
    ],
)
def test_offsets_without_a_history_are_read_as_they_are_with_one_warning(
    history_broker: FakeBroker, caplog: pytest.LogCaptureFixture, given: dict[str, str], count: int
) -> None:
    planned_after(history_broker, **given)

    assert compared(history_broker) == []
    expected = [f'broker {history_broker.address}: the option "startingOffsets" has no "@history"'] * count
    assert [line.split(": if")[0] for line in warnings(caplog)] == expected


# ---- real stores


def send(broker: BrokerThread, *bodies: str) -> None:
    """Store each message in a batch of its own, in queue 0."""
    with BlockingConnection(broker.address) as connection:
        for body in bodies:
            batch = ops.OutgoingBatch(0, bytes(encode("orders", 0, Rows([body.encode()], 0))))
            connection.request(Op.SEND, ops.Send([batch]))


def ends(broker: BrokerThread) -> dict[str, Any]:
    async def asked() -> dict[str, Any]:
        async with Admin(broker.address) as admin:
            return starting_offsets(QUEUES, await admin.ranges(QUEUES))

    return asyncio.run(asked())


def accept(broker: BrokerThread) -> None:
    async def asked() -> None:
        async with Admin(broker.address) as admin:
            await admin.accept_history()

    asyncio.run(asked())


def read(place: BrokerThread | Path, start: dict[str, Any]) -> list[str]:
    where = {"broker": None, "path": place} if isinstance(place, Path) else {"broker": place.address}
    return [body.decode() for body in read_table(topic="orders", start=start, **where).column("body").to_pylist()]


def restored(backup: Path, target: Path) -> None:
    restore(backup, target)


def copied(backup: Path, target: Path) -> None:
    shutil.copytree(backup, target)


AHEAD = {"a clock that goes on": None, "a clock that stands still": 0, "a clock that was 10 days ahead": DAYS_US}


@pytest.mark.parametrize("clock", AHEAD)
@pytest.mark.parametrize("starts", range(4))
@pytest.mark.parametrize("how", [restored, copied])
def test_after_a_restore_a_saved_range_stops_until_it_is_accepted_and_then_misses_nothing(
    memory_path: Path, caplog: pytest.LogCaptureFixture, how: Callable[[Path, Path], None], starts: int, clock: str
) -> None:
    ahead = AHEAD[clock]
    before: dict[str, Any] = {} if ahead is None else {"wall_us": lambda: NOON_US + ahead}
    after: dict[str, Any] = {} if ahead is None else {"wall_us": lambda: NOON_US}
    live, backup, data = memory_path / "live", memory_path / "backup", memory_path / "data"
    with BrokerThread(data_dir=str(live), **before) as broker:
        broker.create_topic("orders", 2)
        send(broker, "a", "b", "c")
    shutil.copytree(live, backup)
    for _ in range(starts):
        with BrokerThread(data_dir=str(live), **before):
            pass
    with BrokerThread(data_dir=str(live), **before) as broker:
        at_backup = ends(broker)
        send(broker, "d", "e")
        saved = ends(broker)
    how(backup, data)

    with BrokerThread(data_dir=str(data), **after) as broker:
        with pytest.raises(OtherHistory, match=r"orders/0 is what the reader has read up to offset 3, not 5"):
            read(broker, saved)  # the queue ends before the saved offset
        send(broker, "D", "E", "F")
        with pytest.raises(OtherHistory, match="`rmq-admin broker accept-history` lets readers continue at 3"):
            read(broker, saved)  # and now after it
        assert read(broker, at_backup) == ["D", "E", "F"]  # both histories have what was read
    with pytest.raises(OtherHistory, match="up to offset 3, not 5"):
        read(data, saved)
    assert read(data, at_backup) == ["D", "E", "F"]
    assert warnings(caplog) == []

    with BrokerThread(data_dir=str(data), **after) as broker:
        accept(broker)
        assert read(broker, saved) == ["D", "E", "F"]
        (line,) = warnings(caplog)
        assert line.endswith("up to offset 3, not 5; reading from offset 3 of orders/0")
        following = ends(broker)
    assert read(data, saved) == ["D", "E", "F"]
    assert read(data, following) == []


def test_offsets_that_were_saved_in_the_restored_store_are_read_on_after_more_restarts(memory_path: Path) -> None:
    live, data = memory_path / "live", memory_path / "data"
    with BrokerThread(data_dir=str(live)) as broker:
        broker.create_topic("orders", 2)
        send(broker, "a")
    shutil.copytree(live, data)
    with BrokerThread(data_dir=str(data)) as broker:
        send(broker, "b")
        saved = ends(broker)
    with BrokerThread(data_dir=str(data)) as broker:
        send(broker, "c")
        assert read(broker, saved) == ["c"]
    with BrokerThread(data_dir=str(live)) as broker:
        send(broker, "x", "y")
        with pytest.raises(OtherHistory, match="is not a copy of it"):
            read(broker, saved)  # the original has never been this copy


def test_a_stopped_folder_that_ends_before_the_offsets_were_saved_is_not_called_a_copy(memory_path: Path) -> None:
    live, backup = memory_path / "live", memory_path / "backup"
    with BrokerThread(data_dir=str(live)) as broker:
        broker.create_topic("orders", 2)
        send(broker, "a", "b", "c")
    shutil.copytree(live, backup)
    with BrokerThread(data_dir=str(live)) as broker:
        send(broker, "d", "e")
        saved = ends(broker)

    with pytest.raises(OtherHistory, match=r"backup ends before offset 5 of orders/0 was saved: read a later backup$"):
        read(backup, saved)


def test_a_log_that_a_disk_rolled_back_is_read_again_from_what_is_left(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live, snapshot = memory_path / "live", memory_path / "snapshot"
    with BrokerThread(data_dir=str(live)) as broker:
        broker.create_topic("orders", 2)
        send(broker, "a", "b", "c")
    shutil.copytree(live, snapshot)
    with BrokerThread(data_dir=str(live)) as broker:
        send(broker, "d", "e")
        saved = ends(broker)

    later = wall_us() + 7_200_000_000  # further than chance takes the epoch of a start
    with BrokerThread(data_dir=str(snapshot), recognise_copies=False, wall_us=lambda: later) as broker:
        send(broker, "D", "E", "F")
        assert read(broker, saved) == ["D", "E", "F"]
    assert read(snapshot, saved) == ["D", "E", "F"]
    assert [line.split("; ")[1] for line in warnings(caplog)] == ["reading from offset 3 of orders/0"] * 2


def test_a_broker_that_was_started_too_often_to_know_where_histories_part_is_not_believed(memory_path: Path) -> None:
    live, data = memory_path / "live", memory_path / "data"
    with BrokerThread(data_dir=str(live)) as broker:
        broker.create_topic("orders", 2)
        send(broker, "a")
        at_backup = ends(broker)
    shutil.copytree(live, data)
    with BrokerThread(data_dir=str(live)) as broker:
        send(broker, "b", "c")
        saved = ends(broker)
    later = [str(number) for number in range(MAX_EPOCHS + 3)]
    for body in later:
        with BrokerThread(data_dir=str(data)) as broker:
            send(broker, body)

    with BrokerThread(data_dir=str(data)) as broker:
        with pytest.raises(OtherHistory, match="nothing shows how far"):
            read(broker, saved)
        assert read(broker, at_backup) == later
    with pytest.raises(OtherHistory, match="nothing shows how far"):
        read(data, saved)
    assert read(data, at_backup) == later


def test_without_a_history_the_same_range_misses_messages_as_the_warning_says(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live, data = memory_path / "live", memory_path / "data"
    with BrokerThread(data_dir=str(live)) as broker:
        broker.create_topic("orders", 2)
        send(broker, "a")
    shutil.copytree(live, data)
    with BrokerThread(data_dir=str(live)) as broker:
        send(broker, "b", "c")
        saved = ends(broker)
    with BrokerThread(data_dir=str(data)) as broker:
        send(broker, "B", "C", "D")
        assert read(broker, {"orders": saved["orders"]}) == ["D"]
    (line,) = warnings(caplog)
    assert "messages are missed and nothing shows it; save what rmq.client.starting_offsets() returns" in line
