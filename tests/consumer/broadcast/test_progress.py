"""
The progress of a broadcasting member: what counts in which store, and what came into being later.

When the progress of a broadcasting member is written, and that two writes never meet.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rmq.consumer.broadcast.offsets_file import OffsetsContent, QueueProgress
from rmq.consumer.broadcast.progress import OF_ANOTHER_LOG, LocalOffsets, LocalProgress, in_copy
from rmq.consumer.config import ConsumerConfig
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import Assignment, LeaseBelief
from rmq.wire.model import MessageQueue
from rmq.wire.stores import StoreIds

from ..recorder import QUEUE

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

FOUND = OffsetsContent("g", "a", 7, frozenset({"t", "later"}), {QUEUE: QueueProgress(3, 17, 2)})


def test_progress_that_was_found_counts_in_its_store() -> None:
    progress = LocalProgress("g", "a", FOUND)

    assert progress.enter(7) is None
    assert progress.of(QUEUE, 3) == QueueProgress(3, 17, 2)
    assert progress.content() == FOUND


def test_progress_in_another_store_counts_for_nothing_and_is_given_back() -> None:
    progress = LocalProgress("g", "a", FOUND)

    assert progress.enter(8) == FOUND
    assert progress.of(QUEUE, 3) is None
    assert not progress.is_known("t")
    assert progress.content() == OffsetsContent("g", "a", 8)


def test_progress_that_was_kept_of_a_store_counts_when_that_is_back() -> None:
    progress = LocalProgress("g", "a", FOUND)
    progress.enter(8)

    progress.enter(7, FOUND)

    assert progress.content() == FOUND


def test_a_member_that_has_none_gives_none_back() -> None:
    progress = LocalProgress("g", "a")

    assert progress.enter(8) is None
    assert progress.enter(9) is None
    assert progress.store_id == 9


def test_progress_in_another_generation_of_the_topic_counts_for_nothing() -> None:
    progress = LocalProgress("g", "a", FOUND)

    assert progress.of(QUEUE, 4) is None
    assert progress.of(QUEUE, 2) is None
    assert progress.of(QUEUE, None) is None


def test_a_topic_that_was_made_again_is_forgotten_and_stays_known() -> None:
    progress = LocalProgress("g", "a", FOUND)

    assert progress.forget_others({"t": 3, "u": 9}) == []
    assert progress.forget_others({"t": 4}) == ["t"]

    assert progress.content().queues == {}
    assert progress.is_known("t")


def test_a_topic_is_known_from_the_decision_on_also_without_a_queue() -> None:
    progress = LocalProgress("g", "a")
    assert not progress.is_known("t")

    progress.known(["t"])

    assert progress.is_known("t")
    assert LocalProgress("g", "a", progress.content()).is_known("t")


def test_what_was_handed_out_does_not_change() -> None:
    progress = LocalProgress("g", "a")
    before = progress.content()

    progress.note(QUEUE, QueueProgress(1, 5, 1))
    progress.known(["t"])

    assert before == OffsetsContent("g", "a", 0)
    assert progress.content().queues == {QUEUE: QueueProgress(1, 5, 1)}


def test_progress_counts_in_a_copy_with_epochs_that_both_can_have() -> None:
    first, newest = MessageQueue("t", 2), MessageQueue("t", 3)
    queues = {
        QUEUE: QueueProgress(3, 17, 2),
        MessageQueue("t", 1): QueueProgress(3, 5, 0),  # an older version did not know it
        first: QueueProgress(3, 0, 0),
        newest: QueueProgress(3, 9, 70),  # the original ran on for long
    }
    found = OffsetsContent("g", "a", 7, frozenset({"t"}), queues)

    copied = in_copy(found, 8, log_epoch=40)

    assert (copied.store_id, copied.topics) == (8, found.topics)
    assert [at.log_epoch for at in copied.queues.values()] == [2, 40, 0, 40]
    assert [at.offset for at in copied.queues.values()] == [17, 5, 0, 9]


def test_positions_of_a_start_that_the_store_has_not_seen_are_of_an_epoch_that_no_broker_has() -> None:
    progress = LocalProgress("g", "a", FOUND)

    progress.disown(3)
    assert progress.of(QUEUE, 3) == QueueProgress(3, 17, 2)

    progress.disown(2)
    assert progress.of(QUEUE, 3) == QueueProgress(3, 17, OF_ANOTHER_LOG)


class FakeFile:
    """Keeps what is written; ``gate`` holds a write up, ``errors`` are raised in turn."""

    def __init__(self) -> None:
        self.writes: list[tuple[float, int]] = []
        self.errors: list[OSError] = []
        self.gate = threading.Event()
        self.gate.set()
        self.running = 0
        self.closed_after: int | None = None
        self.loop = asyncio.get_running_loop()
        self.aside: list[OffsetsContent] = []

    def put_aside(self, content: OffsetsContent) -> None:
        assert not self.running, "put aside while it is written"
        self.aside.append(content)

    def kept(self, store_id: int) -> OffsetsContent | None:
        return next((content for content in self.aside if content.store_id == store_id), None)

    def write(self, content: OffsetsContent) -> None:
        self.running += 1
        assert self.running == 1, "two writes at a time"
        assert self.closed_after is None, "a write after the file was given away"
        try:
            self.gate.wait(10)
            if self.errors:
                raise self.errors.pop(0)
            self.writes.append((round(self.loop.time(), 6), content.queues[QUEUE].offset))
        finally:
            self.running -= 1

    def close(self) -> None:
        assert not self.running, "given away while it is written"
        self.closed_after = len(self.writes)


class Rig:
    """An assignment whose progress a test sets, and the offsets that are written of it."""

    def __init__(self, **settings: Any) -> None:
        self.file = FakeFile()
        self.assignments: dict[MessageQueue, Assignment] = {}
        progress = LocalProgress("g", "a")
        progress.enter(7)
        config = ConsumerConfig(group="g", **settings)
        self.busy = False
        time = asyncio.get_running_loop().time
        self.offsets = LocalOffsets(self.assignments, config, progress, self.file, now=time, busy=lambda: self.busy)
        self.at(0)

    def at(self, offset: int, log_epoch: int = 0) -> Assignment:
        cache = ProcessQueue(offset)
        if log_epoch:
            cache.log_epochs.fetched(offset - 1, log_epoch)
        assignment = Assignment(LeaseBelief(QUEUE, 0, 0.0), cache, on_lost=lambda *_: None, topic_generation=1)
        self.assignments[QUEUE] = assignment
        return assignment

    def progressed(self, offset: int) -> Assignment:
        assignment = self.at(offset)
        self.offsets.turned()
        return assignment


async def running(rig: Rig) -> Callable[[], Any]:
    task = asyncio.create_task(rig.offsets.run())

    async def stop() -> None:
        task.cancel()
        await asyncio.wait([task])

    return stop


async def test_progress_is_written_5_s_after_it_began_and_not_before() -> None:
    rig = Rig()
    stop = await running(rig)
    rig.progressed(3)

    await asyncio.sleep(4.999)
    assert rig.file.writes == []
    await asyncio.sleep(0.002)

    assert rig.file.writes == [(5.0, 3)]
    await stop()


async def test_while_turns_run_it_is_written_every_5_s_and_once_after_the_last() -> None:
    rig = Rig()
    stop = await running(rig)
    rig.busy = True
    rig.progressed(1)
    await asyncio.sleep(7)
    rig.at(2)
    await asyncio.sleep(7)
    rig.busy = False
    rig.at(3)
    await asyncio.sleep(60)

    assert rig.file.writes == [(5.0, 1), (10.0, 2), (15.0, 3)]
    await stop()


async def test_nothing_is_written_while_nothing_changes() -> None:
    rig = Rig()
    stop = await running(rig)
    rig.busy = True
    rig.progressed(1)

    await asyncio.sleep(60)

    assert rig.file.writes == [(5.0, 1)]
    await stop()


async def test_nothing_is_written_before_a_store_is_known() -> None:
    rig = Rig()
    rig.offsets.progress = LocalProgress("g", "a")

    assert await rig.offsets.write()

    assert rig.file.writes == []


async def test_the_progress_in_another_store_is_put_aside_before_the_next_write(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    rig.at(3)
    await rig.offsets.write()
    before = rig.offsets.progress.content()

    rig.offsets.enter(StoreIds(7))
    rig.offsets.enter(StoreIds(8))
    rig.at(0)
    await rig.offsets.write()

    assert rig.file.aside == [before]
    assert [offset for _, offset in rig.file.writes] == [3, 0]
    assert "offsets.other_store" in caplog.text


@pytest.mark.parametrize("is_written", [False, True], ids=["at once", "after a write"])
async def test_a_store_that_comes_back_is_gone_on_with_where_it_was_left(is_written: bool) -> None:
    rig = Rig()
    rig.at(3)  # done, and not written yet
    rig.offsets.enter(StoreIds(8))
    rig.at(0)
    if is_written:
        await rig.offsets.write()
    rig.assignments.clear()

    rig.offsets.enter(StoreIds(7))

    assert rig.offsets.progress.of(QUEUE, 1) == QueueProgress(1, 3, 0)


async def test_a_store_that_changes_while_another_is_put_aside_is_put_aside_as_well() -> None:
    rig = Rig()
    inner = rig.file.put_aside

    def put_aside(content: OffsetsContent) -> None:
        rig.file.put_aside = inner  # type: ignore[method-assign]
        rig.offsets.enter(StoreIds(9))  # the loop's turn, as this runs in a thread
        inner(content)

    rig.file.put_aside = put_aside  # type: ignore[method-assign]
    rig.at(3)
    rig.offsets.enter(StoreIds(8))
    rig.at(5)
    await rig.offsets.write()

    assert [(content.store_id, content.queues[QUEUE].offset) for content in rig.file.aside] == [(7, 3), (8, 5)]


async def test_a_store_that_is_met_first_is_no_other_one(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.offsets.progress = LocalProgress("g", "a")

    rig.offsets.enter(StoreIds(8))

    assert "offsets.other_store" not in caplog.text


async def test_the_offset_goes_with_the_log_epoch_of_the_message_before_it() -> None:
    rig = Rig()
    assignment = rig.at(5, log_epoch=3)

    await rig.offsets.write()

    assert rig.offsets.progress.of(QUEUE, 1) == QueueProgress(1, 5, 3)
    assert assignment.reported == 5


@pytest.mark.parametrize("why", ["not begun", "its topic is gone", "its topic is unknown"])
async def test_progress_that_means_nothing_is_not_noted(why: str) -> None:
    rig = Rig()
    assignment = rig.at(-1 if why == "not begun" else 4)
    assignment.topic_gone = why == "its topic is gone"
    if why == "its topic is unknown":
        assignment.topic_generation = None

    rig.offsets.note(assignment)

    assert rig.offsets.progress.content().queues == {}


async def test_a_write_that_fails_is_tried_again_and_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    stop = await running(rig)
    rig.file.errors = [OSError(28, "No space left on device")] * 14
    rig.progressed(3)

    await asyncio.sleep(80)

    assert rig.file.writes == [(75.0, 3)]
    told = [record for record in caplog.records if "offsets.not_written" in record.getMessage()]
    assert len(told) == 2
    assert "No space left on device" in told[0].getMessage()
    await stop()


async def test_a_stop_writes_at_once_and_gives_the_file_away() -> None:
    rig = Rig()
    rig.at(9)

    await rig.offsets.close()

    assert rig.file.writes == [(0.0, 9)]
    assert rig.file.closed_after == 1


async def test_a_stop_during_a_write_waits_for_it_and_writes_what_came_since() -> None:
    rig = Rig()
    rig.at(3)
    rig.file.gate.clear()
    writing = asyncio.create_task(rig.offsets.write())
    await asyncio.sleep(0)
    rig.at(4)
    closing = asyncio.create_task(rig.offsets.close())
    await asyncio.sleep(0)

    rig.file.gate.set()
    await closing

    assert [offset for _, offset in rig.file.writes] == [3, 4]
    assert rig.file.closed_after == 2
    await writing


async def test_a_cancelled_write_goes_on_and_the_next_one_waits_for_it() -> None:
    rig = Rig()
    rig.at(3)
    rig.file.gate.clear()
    writing = asyncio.create_task(rig.offsets.write())
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    rig.at(4)
    closing = asyncio.create_task(rig.offsets.close())
    await asyncio.sleep(0)

    rig.file.gate.set()
    await closing

    assert [offset for _, offset in rig.file.writes] == [3, 4]


async def test_a_cancelled_stop_gives_the_file_away_when_its_write_has_ended() -> None:
    rig = Rig()
    rig.at(3)
    rig.file.gate.clear()
    closing = asyncio.create_task(rig.offsets.close())
    await asyncio.sleep(0)

    closing.cancel()
    await asyncio.wait([closing])
    assert rig.file.closed_after is None
    rig.file.gate.set()
    while rig.file.closed_after is None:
        await asyncio.sleep(0.001)

    assert rig.file.closed_after == 1


async def test_a_stop_whose_write_fails_gives_the_file_away_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.at(3)
    rig.file.errors = [OSError(28, "No space left on device")] * 2
    await rig.offsets.write()

    await rig.offsets.close()

    assert rig.file.closed_after == 0
    assert sum("offsets.not_written" in record.getMessage() for record in caplog.records) == 2


async def test_nothing_is_written_after_the_file_was_given_away() -> None:
    rig = Rig()
    stop = await running(rig)
    rig.file.errors = [OSError(28, "No space left on device")] * 2
    rig.progressed(3)
    await asyncio.sleep(6)  # the first failed, and is due again in 4 s

    await rig.offsets.close()
    rig.progressed(4)

    assert not await rig.offsets.write()
    await asyncio.sleep(60)
    assert rig.file.writes == []
    await stop()


async def test_a_program_that_ends_without_a_stop_writes_all_the_same() -> None:
    """No pool begins anything then, and the loop of a consumer without asyncio runs on in its thread."""
    rig = Rig()
    pool = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(pool)
    pool.shutdown()
    rig.at(3)

    await rig.offsets.close()

    assert [offset for _, offset in rig.file.writes] == [3]
    assert rig.file.closed_after == 1


async def test_two_that_wait_for_a_write_do_not_write_at_the_same_time() -> None:
    rig = Rig()
    rig.at(3)
    rig.file.gate.clear()
    tasks = [asyncio.create_task(rig.offsets.write()) for _ in range(3)]
    await asyncio.sleep(0)
    rig.at(4)

    rig.file.gate.set()
    await asyncio.gather(*tasks)

    assert [offset for _, offset in rig.file.writes] == [3, 4]
