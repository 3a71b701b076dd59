"""Replays with threads, turns and the disk by hand: whatever comes between the request and its copies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.state.dead_letters import MAX_RUNS
from rmq.broker.store.changes import DeadHandled
from rmq.broker.store.rebuild import read_head
from rmq.wire.batch import layout
from rmq.wire.errors import OK, BadRequest, Damaged, Internal, MessagesLost, StoreFailed, TopicNotFound
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, WAITING, DeadRun, DropDead

from ..builders import ORDERS, segment_files
from ..copy_rig import DEAD, RETRIES, Rig, found_by_a_start
from ..fakes import request
from ..faulty_files import flip


def with_letters(path: Path, **more: Any) -> Rig:
    """A group with the dead letters 0 to 5, which hold the messages of these offsets."""
    rig = Rig(path, **more)
    rig.begin()
    rig.ask(0, *range(6), commit=6)
    rig.run()
    assert rig.answers() == [(0, OK)]
    return rig


@pytest.fixture
def rig(memory_path: Path) -> Iterator[Rig]:
    rig = with_letters(memory_path)
    yield rig
    rig.close()


def results(rig: Rig) -> list[tuple[int, int, bool]]:
    """(status, state, is_new) of each message of the one answer that came."""
    ((_, _, status, payload),) = rig.peer.answers()
    assert status == OK
    return [tuple(result[:3]) for result in payload]


def replayed(rig: Rig) -> str:
    """The dead letters whose copies lie in the retry topic, in their order."""
    return "".join(message.properties["RMQ_ORIGIN_OFFSET"] for message in rig.stored(RETRIES))


def drop(rig: Rig, *offsets: int) -> None:
    rig.peer.send(request(9, Op.DROP_DEAD, DropDead("g", list(offsets))))
    rig.peer.answers()


NEW, BEFORE = (OK, REPLAYED, True), (OK, REPLAYED, False)


def test_nothing_is_appended_before_a_thread_has_made_the_copies(rig: Rig) -> None:
    rig.ask_replay(1, 2, 4)
    assert (rig.peer.answers(), replayed(rig), len(rig.pool)) == ([], "", 1)

    rig.run()

    assert (results(rig), replayed(rig)) == ([NEW, NEW], "24")


def test_what_is_dropped_while_it_is_read_is_not_replayed(rig: Rig) -> None:
    rig.ask_replay(1, 2, 3, 4)
    drop(rig, 3)
    rig.run()

    assert (results(rig), replayed(rig)) == ([NEW, (OK, DROPPED, False), NEW], "24")


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_ends_while_it_is_read_ends_the_request_too(rig: Rig, again: bool) -> None:
    rig.ask_replay(1, 2)
    generation = rig.tables.topics.delete(DEAD.topic).generation
    rig.store.drop_topic(DEAD.topic, generation)
    if again:
        rig.make_topic(DEAD.topic)
    rig.run()

    assert rig.answers() == [(1, TopicNotFound.code)]
    assert replayed(rig) == ""


def test_two_requests_for_the_same_replay_it_once(rig: Rig) -> None:
    rig.ask_replay(1, 1, 2)
    rig.ask_replay(2, 2, 3)
    rig.run()

    payloads = [payload for _, _, _, payload in rig.peer.answers()]
    assert [[result[2] for result in payload] for payload in payloads] == [[True, True], [False, True]]
    assert replayed(rig) == "123"


def test_a_damaged_dead_letter_is_refused_and_the_others_are_replayed(rig: Rig) -> None:
    place = rig.store.locator(DEAD).position_of(3)
    assert place is not None
    flip(segment_files(rig.path)[0], place[0] + place[1] - 20)
    rig.ask_replay(1, 2, 3, 4)
    rig.run()

    assert (results(rig), replayed(rig)) == ([NEW, (Damaged.code, WAITING, False), NEW], "24")


def test_dead_letters_that_retention_has_taken_are_refused_and_forgotten(memory_path: Path) -> None:
    rig = with_letters(memory_path, segment_bytes=2500)
    drop(rig, 0, 5)
    rig.turn()
    rig.store.log.sync()
    segment = rig.store.log.segments[-1]
    head = read_head(rig.files, str(segment.path), segment.start)
    assert head is not None
    gone, _ = rig.store.forget_before(segment.start, head.changes)
    for old in gone:
        old.path.unlink()
    first = rig.store.queue(DEAD).min_offset
    assert first > 0

    rig.ask_replay(1, 0)
    rig.run()

    assert results(rig) == [(MessagesLost.code, WAITING, False)]
    assert rig.tables.ledger.handled.runs(DEAD.topic, 0, 9) == ([DeadRun(5, 6, DROPPED)] if first < 6 else [])
    rig.close()


def test_a_disk_that_cannot_be_read_and_a_defect_are_told(rig: Rig) -> None:
    rig.files.fail("open_to_read", "commitlog")
    rig.ask_replay(1, 2)
    rig.run()
    rig.files.heal()
    rig.ask_replay(2, 2)
    ((_, done),) = rig.pool.jobs
    rig.pool.jobs.clear()
    done(ZeroDivisionError("a defect"))
    rig.ask_replay(3, 2)
    rig.run()

    assert rig.answers() == [(1, StoreFailed.code), (2, Internal.code), (3, OK)]
    assert replayed(rig) == "2"


def test_a_failed_write_is_the_result_of_all_that_are_left(rig: Rig) -> None:
    rig.make_topic(RETRIES.topic)
    rig.turn()
    rig.ask_replay(1, 2, 3)
    rig.files.fail("write", "commitlog", after=200)
    rig.run()
    rig.files.heal()

    assert results(rig) == [(StoreFailed.code, WAITING, False)] * 2
    rig.ask_replay(2, 2, 3)
    rig.run()
    assert (results(rig), replayed(rig)) == ([NEW, NEW], "23")
    assert found_by_a_start(rig).ledger.handled.counts(DEAD.topic) == (2, 0)


def ends_of_copies(data: bytes, at: int) -> list[int]:
    """Where each of the copies behind a place of the log ends, that place included."""
    ends = [at]
    while at + layout.FIXED_HEADER <= len(data) and (header := layout.parse_header(data, at)).size:
        at += header.size
        if header.origin:
            ends.append(at)
        if at == len(data):
            break
    return ends


@pytest.mark.parametrize("to_topic", [False, True])
@pytest.mark.parametrize("copies", [0, 1, 2, 3])
def test_a_replay_that_is_torn_anywhere_is_completed_by_asking_again(
    memory_path: Path, to_topic: bool, copies: int
) -> None:
    rig = with_letters(memory_path)
    before = rig.store.log.written
    rig.ask_replay(1, 1, 3, 4, to_topic=to_topic)
    rig.run()
    written = rig.store.log.written
    rig.store.log.sync()
    rig.close()
    (segment,) = segment_files(memory_path)
    data = segment.read_bytes()[:written]
    segment.write_bytes(data[: ends_of_copies(data, before)[copies]])
    for start in range(2):  # also if the start after the tear comes to nothing but that
        rig = Rig(memory_path)
        if not start:
            rig.turn()
            rig.store.log.sync()
            rig.close()

    rig.ask_replay(1, 1, 3, 4, to_topic=to_topic)
    rig.run()

    assert results(rig) == [BEFORE] * copies + [NEW] * (3 - copies)
    where = ORDERS if to_topic else RETRIES
    assert [message.body[:1] for message in rig.stored(where)][6 if to_topic else 0 :] == [b"1", b"3", b"4"]
    rig.close()


def test_who_picks_here_and_there_may_do_so_only_so_often(rig: Rig) -> None:
    many = [DeadRun(10 + 2 * i, 11 + 2 * i, DROPPED) for i in range(MAX_RUNS - 1)]
    rig.tables.ledger.apply(DeadHandled(DEAD.topic, many))
    rig.ask_replay(1, 2)
    rig.ask_replay(2, 4)
    rig.ask_replay(3, 3)  # beside 2: no run more
    rig.run()

    assert sorted(rig.answers()) == [(1, OK), (2, BadRequest.code), (3, OK)]
    assert replayed(rig) == "23"
