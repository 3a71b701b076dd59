"""A scan that starts at saved offsets never misses what a restored store holds after them."""

from __future__ import annotations

import asyncio
import json
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
from rmq.runtime.clock import wall_us
from rmq.testing.broker import BrokerThread
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.errors import Damaged, LogTruncated, MessagesLost, OffsetOutOfRange, OtherHistory
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op

from support.threaded_broker import STORE_ID, FakeBroker

QUEUES = [MessageQueue("orders", queue_id) for queue_id in range(2)]
NOON_US = 1_798_718_400_000_000  # of a clock that stands still
EPOCH = 1  # of all messages of the fake broker
DAYS_US = 10 * 86_400_000_000


# ---- what is asked, and what answers mean


@pytest.fixture
def broker(fake_broker: FakeBroker) -> FakeBroker:
    """Queues with 10 and 5 messages."""
    fake_broker.create("orders", queues=2)
    fake_broker.append("orders", 0, Rows([b"x"] * 10, 0))
    fake_broker.append("orders", 1, Rows([b"y"] * 5, 0))
    return fake_broker


def with_history(starts: dict[str, Any], epochs: dict[str, int], store_id: int = STORE_ID) -> str:
    history = {"store": f"{store_id:016x}", "epochs": {"orders": epochs}}
    return json.dumps({"orders": starts, "@history": history})


def planned(broker: FakeBroker, **given: str) -> list[tuple[int, int, int]]:
    options = ScanOptions.parse({"broker": broker.address, "topic": "orders", **given})
    return [(part.queue_id, part.start, part.end) for part in plan(options)]


def compared(broker: FakeBroker) -> list[list[Any]]:
    """Return queue, offset and log epoch of every pull; an epoch is given where the broker has to judge."""
    pulls = [payload for op, payload in broker.requests if op is Op.PULL]
    assert all(pull[:3] == [None, 0, 1] and len(pull[3]) == 1 for pull in pulls)
    return [[pull[3][0][1], pull[3][0][2], pull[3][0][5]] for pull in pulls]


def refusing(code: int, next_offset: int, text: str | None = "the text of the broker") -> Callable[[Any], Any]:
    return lambda answer: [ops.PullResult(0, code, next_offset, 0, 10, b"", text)]


def right(answer: Any) -> Any:
    return answer


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "rmq.client.scan.plan"]


def test_each_offset_is_compared_by_the_message_before_it_and_then_read_as_it_is(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    starts = with_history({"0": 7, "1": 5}, {"0": EPOCH, "1": EPOCH})

    assert planned(broker, startingOffsets=starts) == [(0, 7, 10)]
    assert compared(broker) == [[0, 6, 0], [1, 4, 0]]
    assert warnings(caplog) == []


def test_where_another_message_lies_before_an_offset_the_broker_judges(broker: FakeBroker) -> None:
    broker.fail_next(Op.PULL, right, refusing(LogTruncated.code, 3))

    assert planned(broker, startingOffsets=with_history({"0": 7, "1": 5}, {"0": 900, "1": EPOCH})) == [(0, 3, 10)]
    assert compared(broker) == [[0, 6, 0], [0, 7, 900], [1, 4, 0]]


def test_an_offset_that_the_broker_agrees_with_although_the_message_is_another_is_refused(broker: FakeBroker) -> None:
    with pytest.raises(OtherHistory, match=r"orders/0 has another message before offset 7 .*: begin anew with"):
        planned(broker, startingOffsets=with_history({"0": 7, "1": 0}, {"0": 900}))


def test_before_offset_0_and_at_the_earliest_there_is_nothing_to_compare(broker: FakeBroker) -> None:
    starts = with_history({"0": 0, "1": "earliest"}, {"0": 900, "1": 900})

    assert planned(broker, startingOffsets=starts) == [(0, 0, 10), (1, 0, 5)]
    assert compared(broker) == []


def test_offsets_of_a_store_that_this_one_never_was_are_refused(broker: FakeBroker) -> None:
    with pytest.raises(OtherHistory) as caught:
        planned(broker, startingOffsets=with_history({"0": 7, "1": 0}, {"0": 900}, store_id=5))

    assert str(caught.value) == (
        f'broker {broker.address}: "startingOffsets" is of the store 0000000000000005; this one is {STORE_ID:016x}, '
        "which is not a copy of it: read from the store that the offsets were saved of, or begin anew with "
        '"earliest"'
    )
    assert compared(broker) == []


def test_another_history_is_an_error_that_names_where_the_histories_part(broker: FakeBroker) -> None:
    broker.fail_next(Op.PULL, right, refusing(OtherHistory.code, 3, "up to offset 3"))

    with pytest.raises(OtherHistory, match=rf"^broker {broker.address}: up to offset 3$"):
        planned(broker, startingOffsets=with_history({"0": 7, "1": 5}, {"0": 900, "1": 900}))


def test_a_log_that_lost_messages_is_read_from_there_with_one_warning(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.fail_next(Op.PULL, right, refusing(LogTruncated.code, 3, "the log lost"), right)
    broker.fail_next(Op.PULL, refusing(LogTruncated.code, 4))

    assert planned(broker, startingOffsets=with_history({"0": 7, "1": 5}, {"0": 900, "1": 900})) == [
        (0, 3, 10),
        (1, 4, 5),
    ]
    assert warnings(caplog) == [
        f"broker {broker.address}: the log lost; reading from offset 3 of orders/0, 4 of orders/1"
    ]


def test_the_warning_names_ten_queues_at_most(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.create("orders", queues=12)
    for queue_id in range(12):
        broker.append("orders", queue_id, Rows([b"x"] * 2, 0))
    broker.fail_next(Op.PULL, *[right, refusing(LogTruncated.code, 1)] * 12)
    starts = {str(queue_id): 2 for queue_id in range(12)}

    planned(broker, startingOffsets=with_history(starts, dict.fromkeys(starts, 900)))

    (line,) = warnings(caplog)
    assert line.endswith("1 of orders/9 and 2 other queues") and "orders/10" not in line


@pytest.mark.parametrize("code", [ops.EMPTY, MessagesLost.code, OffsetOutOfRange.code, Damaged.code])
def test_a_message_before_the_offset_that_cannot_be_read_is_left_to_the_broker(broker: FakeBroker, code: int) -> None:
    broker.fail_next(Op.PULL, refusing(code, 3), refusing(code, 3))

    assert planned(broker, startingOffsets=with_history({"0": 7, "1": 0}, {"0": 900})) == [
        (0, 7, 10),
        (1, 0, 5),
    ]


def test_a_start_beyond_the_end_is_an_error_as_without_a_history(broker: FakeBroker) -> None:
    with pytest.raises(OffsetOutOfRange, match="queue 0 holds 0 to 10: startingOffsets is 11"):
        planned(broker, startingOffsets=with_history({"0": 11, "1": 0}, {"0": 900}))


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
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, given: dict[str, str], count: int
) -> None:
    planned(broker, **given)

    assert compared(broker) == []
    expected = [f'broker {broker.address}: the option "startingOffsets" has no "@history"'] * count
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
