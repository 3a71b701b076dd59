"""The progress of a broadcasting member: kept by itself, and used only where it still means what it meant."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rmq.consumer import Consumer
from rmq.engine.native.connection import Connection
from rmq.wire.errors import ConfigError, GroupMismatch
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from .broadcast_rig import LOCKING, by_queue, fill, saved
from .fake_broker import FakeBroker
from .recorder import Make, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


# What is kept


async def test_a_clean_stop_leaves_nothing_to_be_delivered_again(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    fill(broker)
    recorder = Recorder()
    async with member(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)

    assert saved(tmp_path / "a") == {"t/0": 3, "t/1": 3}
    async with member(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.send("t", 1, b"3")
        await asyncio.sleep(1)

    assert by_queue(recorder) == {0: [0, 1, 2], 1: [0, 1, 2, 3]}


async def test_a_stop_waits_for_the_running_call_and_writes_what_it_did(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    slow = Recorder(takes_s=4)
    consumer = member(slow, topics={"t": "*"})
    consumer.start()
    await asyncio.sleep(1)

    await consumer.stop()

    assert slow.offsets == [0]
    assert saved(tmp_path / "a") == {"t/0": 1}


async def test_a_file_of_now_is_at_most_5_s_old_while_messages_are_consumed(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    """Feature 121: what a killed member would get again is what it did in the last 5 s."""
    fill(broker, queues=1, count=100)
    steady = Recorder(takes_s=1)
    async with member(steady, topics={"t": "*"}):
        ages = []
        for _ in range(30):
            await asyncio.sleep(1.01)
            ages.append(len(steady.ended) - saved(tmp_path / "a")["t/0"])

    assert max(ages) == 5
    assert min(ages) == 0


async def test_the_file_names_store_log_epoch_and_generation(broker: FakeBroker, member: Make, tmp_path: Path) -> None:
    fill(broker, queues=1)
    async with member(topics={"t": "*"}):
        await asyncio.sleep(1)

    found = json.loads((tmp_path / "a" / "offsets.json").read_text())
    assert found["store_id"] == f"{broker.store_id:016x}"
    assert found["topics"] == ["t"]
    assert found["queues"] == [{"topic": "t", "generation": 1, "queue_id": 0, "offset": 3, "log_epoch": 1}]


# A broker that is not what it was


async def test_a_restart_of_the_broker_changes_nothing(broker: FakeBroker, member: Make) -> None:
    fill(broker, queues=1)
    recorder = Recorder(takes_s=0.4)
    async with member(recorder, topics={"t": "*"}):
        await asyncio.sleep(0.5)
        broker.go_down()
        broker.log_epoch += 1
        await asyncio.sleep(60)
        assert recorder.offsets == [0, 1, 2]
        assert broker.members["g"] == {}
        broker.come_up()
        broker.send("t", 0, b"3")
        await asyncio.sleep(1)
        assert len(broker.members["g"]) == 1

    assert recorder.offsets == [0, 1, 2, 3]
    assert not [request for request in broker.requests if request.op in LOCKING]


async def test_a_log_that_was_cut_while_the_member_was_away_is_found_out(broker: FakeBroker, member: Make) -> None:
    fill(broker, queues=1)
    async with member(topics={"t": "*"}):
        await asyncio.sleep(1)
    broker.crash(MessageQueue("t", 0), batches=1)
    broker.send("t", 0, b"other 1")
    broker.send("t", 0, b"other 2")
    broker.send("t", 0, b"other 3")
    broker.come_up()
    recorder = Recorder()

    async with member(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)

    assert recorder.offsets == [1, 2, 3]


async def test_a_log_that_is_cut_under_a_running_call_is_read_again_from_there(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    recorder = Recorder(takes_s=2)
    async with member(recorder, topics={"t": "*"}):
        await asyncio.sleep(3)  # 0 is done, and the listener has 1
        broker.crash(MessageQueue("t", 0), batches=1)
        broker.send("t", 0, b"other 1")
        broker.come_up()
        await asyncio.sleep(10)

    assert recorder.offsets == [0, 1, 1]
    assert saved(tmp_path / "a") == {"t/0": 2}


async def test_another_store_is_told_and_begun_anew_with_the_old_progress_put_aside(
    broker: FakeBroker, member: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, queues=1)
    async with member(topics={"t": "*"}):
        await asyncio.sleep(1)
    broker.store_id += 1
    recorder = Recorder()

    async with member(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)

    assert recorder.offsets == [0, 1, 2]
    assert "offsets.other_store" in caplog.text
    assert (tmp_path / "a" / f"offsets-{broker.store_id - 1:016x}.json").exists()


async def test_a_store_that_was_away_for_another_one_is_read_from_where_it_was_left(
    broker: FakeBroker, member: Make
) -> None:
    """Somebody started the broker with the wrong directory, and noticed."""
    fill(broker, queues=1)
    recorder = Recorder()
    async with member(recorder, topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(1)
        broker.go_down()
        topics, broker.topics, broker.store_id = broker.topics, {}, broker.store_id + 1
        broker.come_up()
        await asyncio.sleep(1)
        broker.go_down()
        broker.topics, broker.store_id = topics, broker.store_id - 1
        broker.send("t", 0, b"before anybody was back")
        broker.come_up()
        await asyncio.sleep(2)

    assert recorder.offsets == [3]


async def test_a_queue_whose_beginning_cannot_be_written_is_not_read_until_it_can(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    """Else a member that begins at the end and crashes would begin at a later one, and pass what came between."""
    fill(broker, queues=1)
    recorder = Recorder()
    async with member(recorder, topics={"t": "*"}, start_from="last") as consumer:
        (tmp_path / "a").rename(tmp_path / "b")
        await asyncio.sleep(1)
        assert consumer.assignment == []
        broker.send("t", 0, b"new")
        (tmp_path / "b").rename(tmp_path / "a")
        await asyncio.sleep(4)

    assert recorder.offsets == [3]
    assert saved(tmp_path / "a") == {"t/0": 4}


async def test_a_broker_that_comes_back_with_another_store_is_read_as_a_new_one(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    recorder = Recorder(takes_s=0.3)
    async with member(recorder, topics={"t": "*"}):
        await asyncio.sleep(0.5)  # the listener has 1
        broker.go_down()
        broker.store_id += 1
        del broker.logs[MessageQueue("t", 0)][1:]
        broker.come_up()
        await asyncio.sleep(5)

    assert recorder.offsets == [0, 1, 0]
    assert saved(tmp_path / "a") == {"t/0": 1}


async def test_retention_that_was_faster_than_the_member_stops_its_queue_as_everywhere(
    broker: FakeBroker, member: Make
) -> None:
    fill(broker, queues=1)
    async with member(topics={"t": "*"}):
        await asyncio.sleep(1)
    for number in range(3, 7):
        broker.send("t", 0, b"%d" % number)
    broker.min_offsets[MessageQueue("t", 0)] = 5

    async with member(topics={"t": "*"}) as consumer:
        await asyncio.sleep(1)
        assert list(consumer.stopped_queues) == [MessageQueue("t", 0)]
    recorder = Recorder()
    async with member(recorder, topics={"t": "*"}, on_gap="skip"):
        await asyncio.sleep(1)

    assert recorder.offsets == [5, 6]


async def test_running_info_tells_the_progress_and_of_no_lock(broker: FakeBroker, member: Make) -> None:
    fill(broker, queues=1)
    async with member(topics={"t": "*"}) as consumer:
        await asyncio.sleep(6)
        (queue,) = consumer.running_info()["queues"]

    assert (queue["commit_offset"], queue["reported_offset"]) == (3, 3)
    assert queue["lock_age_s"] is None


# Who has it


async def test_a_second_member_of_the_same_instance_is_refused_when_it_starts(broker: FakeBroker, member: Make) -> None:
    async with member(topics={"t": "*"}):
        with pytest.raises(ConfigError, match="instance 'a' of group 'g' runs already"):
            member(topics={"t": "*"}).start()

    async with member(topics={"t": "*"}):
        await asyncio.sleep(1)


async def test_a_member_that_cannot_be_made_has_locked_nothing(member: Make, tmp_path: Path) -> None:
    def nowhere(*_: object, **__: object) -> Connection:
        raise ConfigError("no such address")

    consumer = Consumer(
        "fake:1", group="g", listener=Recorder(), connect=nowhere, model="broadcasting", instance="a",
        offsets_dir=str(tmp_path / "a"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="no such address"):
        consumer.start()

    async with member(topics={"t": "*"}):
        await asyncio.sleep(1)


async def test_a_member_that_fails_gives_its_file_away(broker: FakeBroker, member: Make) -> None:
    broker.refuse[Op.JOIN] = [GroupMismatch("another mode")]
    with pytest.raises(GroupMismatch):
        await member(topics={"t": "*"}).run()

    async with member(topics={"t": "*"}):
        await asyncio.sleep(1)


async def test_progress_that_cannot_be_read_is_for_people_and_leaves_the_file_unlocked(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "offsets.json").write_text("{")
    with pytest.raises(ConfigError, match="repair it, or remove it to start over"):
        member(topics={"t": "*"}).start()

    (tmp_path / "a" / "offsets.json").unlink()
    async with member(topics={"t": "*"}):
        await asyncio.sleep(1)
