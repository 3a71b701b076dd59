"""How long answers wait for the disk, as the committer measures it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq.broker.store.changes import Committed, TopicMade
from rmq.broker.store.committer import RETRY_S, Committer
from rmq.wire.batch import layout
from rmq.wire.model import MessageQueue

from ..builders import ORDERS, PAYMENTS, Opened, log_bytes
from rigs.disk.faulty import FaultyFiles


class ManualLoop:
    """A loop whose turns and timers run when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []

    def call_soon(self, callback: Callable[..., object], *args: object) -> object:
        self.soon.append(lambda: callback(*args))
        return None

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> object:
        self.later.append((delay, lambda: callback(*args)))
        return None

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def fire(self) -> list[float]:
        later, self.later = self.later, []
        for _, callback in later:
            callback()
        return [delay for delay, _ in later]


class Ticket:
    """A send that notes what became of it."""

    def __init__(self, name: str, story: list[str]) -> None:
        self.name = name
        self.story = story

    def stored(self) -> None:
        self.story.append(f"{self.name} stored")

    def failed(self, error: OSError) -> None:
        assert error.errno == errno.ENOSPC
        self.story.append(f"{self.name} failed")


class Rig:
    """A committer over a real store and a manual loop."""

    def __init__(self, path: Path, *, sync: bool, segment_bytes: int = 1 << 30) -> None:
        self.files = FaultyFiles()
        self.loop = ManualLoop()
        self.opened = Opened(path, files=self.files, segment_bytes=segment_bytes)
        self.store = self.opened.store
        self.exposed: list[MessageQueue] = []
        self.flushes = 0
        self.story: list[str] = []
        self.committer = Committer(self.store, self.loop, sync=sync, exposed=self.exposed.extend)
        self.committer.attach(self.flush)

    def break_disk(self) -> None:
        self.files.fail("write", "commitlog", errno.ENOSPC, after=100)

    def flush(self) -> None:
        self.flushes += 1

    def send(self, name: str, to: MessageQueue = ORDERS) -> int:
        placed = self.opened.stage(name.encode(), to=to)
        self.committer.add_send(Ticket(name, self.story))
        return placed.end

    def answer(self, name: str) -> None:
        self.committer.when_durable(lambda: self.story.append(f"{name} answered"))

    def synced(self) -> None:
        self.committer.synced(self.store.log.sync())


@pytest.fixture
def rig(memory_path: Path) -> Iterator[Rig]:
    rig = Rig(memory_path, sync=True)
    yield rig
    rig.opened.close()


@pytest.fixture
def async_rig(memory_path: Path) -> Iterator[Rig]:
    rig = Rig(memory_path, sync=False)
    yield rig
    rig.opened.close()


def test_a_turn_is_written_at_its_end_with_one_request_to_flush(rig: Rig) -> None:
    rig.send("a")
    rig.send("b", PAYMENTS)
    rig.committer.record(Committed("g", *ORDERS, 0))
    rig.answer("commit")
    assert len(rig.loop.soon) == 1
    assert rig.store.log.written == 0

    rig.loop.turn()

    assert rig.store.log.written == rig.store.log.end > 0
    assert rig.flushes == 1


def test_with_sync_nothing_is_answered_or_readable_before_the_disk_has_it(rig: Rig) -> None:
    end = rig.send("a")
    rig.answer("x")
    rig.loop.turn()
    assert (rig.story, rig.exposed, rig.store.queue(ORDERS).readable) == ([], [], 0)

    rig.committer.synced(end - 1)
    assert (rig.story, rig.exposed) == ([], [])
    assert rig.flushes == 2  # somebody still waits: asked again
    rig.committer.synced(end)

    assert rig.story == ["a stored", "x answered"]
    assert (rig.exposed, rig.store.queue(ORDERS).readable) == ([ORDERS], 1)
    assert rig.committer.idle


def test_one_sync_releases_every_turn_that_it_covers_in_order(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.send(name)
        rig.loop.turn()
    position = rig.store.log.sync()
    rig.send("c")
    rig.loop.turn()

    rig.committer.synced(position)

    assert rig.story == ["a stored", "b stored"]
    assert rig.store.queue(ORDERS).readable == 2
    assert not rig.committer.idle
    rig.synced()
    assert rig.story == ["a stored", "b stored", "c stored"]


def test_readers_see_a_batch_before_its_reply(rig: Rig) -> None:
    seen: list[int] = []
    rig.opened.stage(b"a")
    rig.committer.when_durable(lambda: seen.append(rig.store.queue(ORDERS).readable))
    rig.loop.turn()
    rig.synced()

    assert seen == [1]


def test_a_position_never_falls(rig: Rig) -> None:
    rig.send("a")
    rig.loop.turn()
    rig.synced()
    durable = rig.store.log.durable

    rig.committer.synced(durable - 8)

    assert rig.store.log.durable == durable


def test_an_answer_without_anything_new_comes_at_once_if_all_is_durable(rig: Rig) -> None:
    rig.send("a")
    rig.loop.turn()
    rig.answer("early")
    rig.loop.turn()
    assert rig.story == []
    rig.synced()
    flushes = rig.flushes

    rig.answer("late")
    rig.loop.turn()

    assert rig.story == ["a stored", "early answered", "late answered"]
    assert rig.flushes == flushes


def test_without_sync_a_turn_is_answered_and_readable_once_written(async_rig: Rig) -> None:
    async_rig.send("a")
    async_rig.answer("x")
    assert async_rig.story == []

    async_rig.loop.turn()

    assert async_rig.story == ["a stored", "x answered"]
    assert async_rig.exposed == [ORDERS]
    assert async_rig.flushes == 1
    assert async_rig.store.log.durable == 0
    async_rig.synced()
    assert async_rig.store.log.durable == async_rig.store.log.written
    assert async_rig.exposed == [ORDERS]


@pytest.mark.parametrize("sync", [True, False])
def test_a_failed_write_fails_its_sends_newest_first(memory_path: Path, sync: bool) -> None:
    rig = Rig(memory_path, sync=sync)
    for name in ("a", "b", "c"):
        rig.send(name)
    rig.break_disk()

    rig.loop.turn()

    assert rig.story == ["c failed", "b failed", "a failed"]
    assert rig.committer.failed_writes == 1
    assert (rig.loop.soon, rig.loop.later) == ([], [])  # nothing of it is tried again
    assert rig.committer.idle
    assert (rig.exposed, rig.store.queue(ORDERS).end) == ([], 0)
    rig.files.heal()
    rig.opened.close()


def test_after_a_failed_write_the_next_turn_is_served(rig: Rig) -> None:
    rig.send("a")
    rig.break_disk()
    rig.loop.turn()
    rig.files.heal()

    rig.send("b")
    rig.loop.turn()
    rig.synced()

    assert rig.story == ["a failed", "b stored"]
    assert rig.opened.bodies() == [b"b"]


def test_changes_of_a_failed_write_are_kept_in_order_and_their_answers_wait(rig: Rig) -> None:
    rig.committer.record(Committed("g", *ORDERS, 1))
    rig.answer("first")
    rig.break_disk()
    rig.loop.turn()
    assert (rig.story, rig.committer.idle) == ([], False)

    rig.committer.record(Committed("g", *ORDERS, 2))
    rig.answer("second")
    assert rig.loop.soon == []  # the retry is already on its way
    assert rig.loop.fire() == [RETRY_S]
    assert rig.story == []
    rig.files.heal()
    assert rig.loop.fire() == [RETRY_S]
    rig.synced()

    assert rig.story == ["first answered", "second answered"]
    assert rig.committer.failed_writes == 2
    rig.opened.close()
    again = Opened(rig.opened.directory.path)
    assert again.changes == [Committed("g", *ORDERS, 1), Committed("g", *ORDERS, 2)]
    rig.opened = again


def test_tables_have_unwritten_changes_until_a_change_is_written(rig: Rig) -> None:
    rig.break_disk()
    rig.committer.record(Committed("g", *ORDERS, 1))
    rig.loop.turn()
    assert rig.committer.has_unwritten

    rig.files.heal()
    rig.loop.fire()

    assert not rig.committer.has_unwritten


def test_an_answer_alone_also_waits_for_a_failed_write_of_others(rig: Rig) -> None:
    rig.send("a")
    rig.answer("x")
    rig.break_disk()
    rig.loop.turn()
    assert rig.story == ["a failed"]
    rig.files.heal()

    rig.loop.fire()

    assert rig.story == ["a failed", "x answered"]


def test_a_send_that_comes_while_changes_are_retried_joins_them(rig: Rig) -> None:
    rig.committer.record(Committed("g", *ORDERS, 1))
    rig.break_disk()
    rig.loop.turn()
    rig.files.heal()
    rig.send("a")

    rig.loop.fire()
    rig.synced()

    assert rig.story == ["a stored"]


def test_an_answer_that_raises_does_not_hold_the_others_back(rig: Rig, logs: list[dict[str, object]]) -> None:
    def broken() -> None:
        raise RuntimeError("a defect")

    rig.send("a")
    rig.committer.when_durable(broken)
    rig.answer("x")
    rig.loop.turn()

    rig.synced()

    assert rig.story == ["a stored", "x answered"]
    assert [entry["event"] for entry in logs] == ["answer.failed"]


def test_a_ticket_that_raises_on_failure_does_not_delay_the_others(rig: Rig) -> None:
    class Broken(Ticket):
        def failed(self, error: OSError) -> None:
            raise RuntimeError("a defect")

    rig.send("a")
    rig.committer.add_send(Broken("b", rig.story))
    rig.committer.record(Committed("g", *ORDERS, 1))
    rig.answer("x")
    rig.break_disk()

    rig.loop.turn()
    rig.files.heal()
    rig.loop.fire()
    rig.synced()

    assert rig.story == ["a failed", "x answered"]


@pytest.mark.parametrize("fails_first", [False, True])
def test_a_topic_comes_before_its_first_batch_in_the_log_also_after_a_failed_write(
    memory_path: Path, fails_first: bool
) -> None:
    rig = Rig(memory_path, sync=True)
    if fails_first:
        rig.break_disk()
    rig.committer.record(TopicMade("orders", 1, 4, 4, 0))
    if fails_first:
        rig.loop.turn()
        rig.files.heal()
    rig.committer.before_send()
    rig.send("first")
    rig.committer.commit()
    rig.opened.close()

    kinds = [header.kind for header in _headers(memory_path)]

    assert kinds == [layout.KIND_STATE, layout.KIND_DATA]


def test_who_can_be_refused_is_refused_by_a_failed_write_and_is_not_answered_later(rig: Rig) -> None:
    rig.committer.record(Committed("g", *ORDERS, 1))
    rig.committer.when_durable(
        lambda: rig.story.append("answered"), lambda error: rig.story.append(f"{error.name}: {error}")
    )
    assert rig.committer.refusal is None
    rig.break_disk()
    rig.loop.turn()

    refusal = rig.committer.refusal
    assert refusal is not None
    assert rig.story == [f"{refusal.name}: {refusal}"]
    rig.files.heal()
    rig.loop.fire()
    rig.synced()
    assert len(rig.story) == 1
    assert rig.committer.refusal is None


def test_a_failed_write_that_left_nothing_refuses_nothing_further(rig: Rig) -> None:
    rig.send("a")
    rig.break_disk()
    rig.loop.turn()

    assert rig.committer.failed_writes == 1
    assert rig.committer.refusal is None


def test_a_snapshot_that_cannot_be_written_is_tried_again_after_a_while(memory_path: Path) -> None:
    """Not in the very next turn: a full disk would keep the loop busy with nothing else."""
    rig = Rig(memory_path, sync=False, segment_bytes=100)

    def turn_over() -> None:
        if rig.store.turn_over():
            rig.committer.schedule()

    rig.committer.turn_over = turn_over
    rig.send("a")
    rig.loop.turn()  # fills the segment: a snapshot is staged for the next turn
    rig.break_disk()
    rig.loop.turn()

    for _ in range(3):
        assert (rig.loop.soon, rig.committer.idle) == ([], False)
        assert rig.loop.fire() == [RETRY_S]
    rig.files.heal()
    rig.send("b")
    rig.loop.fire()
    assert rig.story == ["a stored", "b stored"]
    rig.opened.close()

    again = Opened(memory_path)
    assert again.bodies() == [b"a", b"b"]
    assert [header.kind for header in _headers(memory_path)][:3] == [
        layout.KIND_DATA, layout.KIND_STATE, layout.KIND_DATA,
    ]  # fmt: skip
    again.close()


def test_the_end_of_a_turn_and_what_is_durable_are_reported(rig: Rig) -> None:
    rig.committer.turn_over = lambda: rig.story.append("turn over")
    rig.committer.on_synced = lambda position: rig.story.append(f"synced {position}")

    end = rig.send("a")
    rig.loop.turn()
    rig.synced()

    assert rig.story == ["turn over", "a stored", f"synced {end}"]
    rig.break_disk()
    rig.send("b")
    rig.loop.turn()
    assert rig.story[3:] == ["b failed", "turn over"]


def _headers(path: Path) -> list[layout.Header]:
    data, at, found = log_bytes(path), 0, []
    while at < len(data):
        found.append(layout.parse_header(data, at))
        at += found[-1].size
    return found


def test_changes_that_hold_only_together_are_written_at_once_and_true_before_other_callbacks(rig: Rig) -> None:
    rig.committer.record(Committed("g", *ORDERS, 1))
    rig.opened.stage(b"copy")

    rig.committer.append_now(
        [Committed("g", *ORDERS, 2)], Ticket("copy", rig.story), lambda: rig.story.append("it is true")
    )
    assert rig.story == ["it is true"]
    rig.synced()

    assert rig.story == ["it is true", "copy stored"]
    rig.loop.turn()  # the one that was asked for finds nothing to do
    assert rig.committer.idle


def test_what_holds_only_together_was_never_there_if_it_cannot_be_written(rig: Rig, memory_path: Path) -> None:
    rig.committer.record(Committed("g", *ORDERS, 1))
    rig.committer.in_order()
    rig.opened.stage(b"copy")
    rig.break_disk()

    rig.committer.append_now([Committed("g", *ORDERS, 2)], Ticket("copy", rig.story), lambda: rig.story.append("true"))

    assert rig.story == ["copy failed"]
    rig.files.heal()
    rig.loop.turn()
    rig.loop.fire()
    rig.synced()
    rig.opened.close()
    rig.opened = Opened(memory_path)
    assert [change for change in rig.opened.changes if isinstance(change, Committed)] == [Committed("g", *ORDERS, 1)]
    assert rig.opened.headers == []


class Turns:
    """A loop whose turns the test makes."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[..., object], *args: object) -> object:
        self.soon.append(lambda: callback(*args))
        return None

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> object:
        raise AssertionError("nothing fails here")

    def turn(self) -> None:
        line, self.soon = self.soon, []
        for callback in line:
            callback()


def test_how_long_turns_wait_for_the_disk_is_measured(memory_path: Path) -> None:
    opened, turns, now = Opened(memory_path), Turns(), 10.0
    committer = Committer(opened.store, turns, sync=True, exposed=lambda queues: None, clock=lambda: now)
    for later_s in (0.0, 0.5):
        now += later_s
        opened.stage(b"x")
        committer.schedule()
        turns.turn()
    now = 11.0
    assert committer.stats()["longest_waiting_s"] == 1.0

    committer.synced(opened.store.log.sync())

    told = committer.stats()
    assert (told["waited_turns"], told["total_wait_s"], told["longest_waiting_s"]) == (2, 1.5, 0.0)
    opened.close()
