"""Pulls of members that want some tags, where much is not wanted, is old, damaged or gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from rmq.broker.handlers.pull_read import PullRequest
from rmq.broker.net.connection import Connection
from rmq.broker.store.message_store import MAX_PULL_BATCHES
from rmq.broker.store.rebuild import read_head
from rmq.wire.batch.tags import wanted
from rmq.wire.errors import Damaged, MessagesLost
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import EMPTY, Op, Pull, PullQueue

from ..builders import ORDERS, segment_files
from ..fakes import request
from ..pull_rig import OTHER, Rig
from rigs.disk.faulty import flip


@pytest.fixture
def rig(memory_path: Path) -> Iterator[Rig]:
    rig = Rig(memory_path)
    yield rig
    rig.opened.close()


@pytest.fixture
def cold(memory_path: Path) -> Iterator[Rig]:
    rig = Rig(memory_path, recent_bytes=0, segment_bytes=900, entries_per_file=3)
    rig.files.cold = True
    yield rig
    rig.opened.close()


# ---- much that is not wanted


A_TURN = MAX_PULL_BATCHES + 1  # of batches, when a read takes 1.5 ms: the second one is too late for more than one


def backlog(rig: Rig, count: int) -> None:
    for _ in range(count):
        rig.opened.stage(b"b", tags=["b"])
    rig.opened.write()
    rig.opened.sync()


def costly(rig: Rig) -> None:
    rig.service.fine += 0.0015


def test_a_long_run_of_unwanted_batches_is_passed_in_turns_of_2_ms(rig: Rig) -> None:
    backlog(rig, 6 * A_TURN)
    rig.arrive("a")
    rig.store.before_read = lambda: costly(rig)

    rig.pull(1, 0)
    reads = [rig.store.reads]
    while rig.turns.soon:
        rig.turns.turn()
        reads.append(rig.store.reads)

    assert reads[:7] == [2, 4, 6, 8, 10, 12, 13]
    assert rig.results() == [(1, 0, 0, 6 * A_TURN + 1, [b"a"])]


def test_a_pull_that_does_not_wait_answers_after_one_turn_how_far_it_came(rig: Rig) -> None:
    backlog(rig, 6 * MAX_PULL_BATCHES)
    rig.store.before_read = lambda: costly(rig)

    rig.pull(1, 0, wait_ms=0)
    assert rig.results() == [(1, 0, EMPTY, A_TURN, [])]


def test_a_pull_whose_time_ends_on_the_way_answers_how_far_it_came(rig: Rig) -> None:
    backlog(rig, 6 * MAX_PULL_BATCHES)
    rig.store.before_read = lambda: costly(rig)
    rig.pull(1, 0, wait_ms=1000)
    rig.turns.turn()
    rig.service.time = 1.0
    rig.turns.turn()

    assert rig.results() == [(1, 0, EMPTY, 3 * A_TURN, [])]


def test_a_queue_with_much_that_is_unwanted_does_not_hold_up_another_one_of_the_pull(rig: Rig) -> None:
    backlog(rig, 20 * MAX_PULL_BATCHES)
    rig.arrive("a", to=OTHER)
    rig.store.before_read = lambda: costly(rig)

    rig.pull(1, 0, 0)
    turns = 0
    while rig.turns.soon:
        rig.turns.turn()
        turns += 1

    assert turns <= 2
    (passed, found) = sorted(rig.results())
    assert passed[:3] == (1, 0, EMPTY)
    assert A_TURN <= passed[3] < 3 * A_TURN
    assert found == (1, 1, 0, 1, [b"a"])


def test_a_parked_pull_passes_a_long_run_in_turns_too(rig: Rig) -> None:
    rig.pull(1, 0)
    backlog(rig, 6 * MAX_PULL_BATCHES)
    rig.store.before_read = lambda: costly(rig)
    rig.pulls.arrived([ORDERS])
    turns = 0
    while rig.turns.soon:
        rig.turns.turn()
        turns += 1
        rig.pulls.sweep()

    assert turns >= 3
    assert (rig.results(), len(rig.parked_pulls), rig.pulls.rescued) == ([], 1, 0)
    rig.expire(15.0)
    assert rig.results() == [(1, 0, EMPTY, 6 * MAX_PULL_BATCHES, [])]


# ---- threads


def fill(rig: Rig, *some: str, to: MessageQueue = ORDERS) -> None:
    for tag in some:
        rig.arrive(tag, to=to)


def test_a_thread_passes_what_is_not_wanted(cold: Rig) -> None:
    fill(cold, "b", "b", "a", "b", "a")
    cold.pull(1, 0)
    assert (cold.results(), len(cold.pool)) == ([], 1)

    cold.pool.run()

    assert cold.results() == [(1, 0, 0, 5, [b"a", b"a"])]


def test_a_pull_of_old_unwanted_messages_is_parked_after_them(cold: Rig) -> None:
    fill(cold, "b", "b", "b")
    cold.pull(1, 0)
    cold.pool.run()
    assert (cold.results(), len(cold.parked_pulls), len(cold.pool)) == ([], 1, 0)

    cold.expire(15.0)

    assert cold.results() == [(1, 0, EMPTY, 3, [])]


def test_an_arrival_that_is_not_in_memory_is_looked_at_by_a_thread(cold: Rig) -> None:
    cold.pull(1, 0)
    cold.arrive("b")
    assert (cold.results(), len(cold.pool)) == ([], 1)
    cold.pool.run()
    assert (cold.results(), len(cold.parked_pulls)) == ([], 1)

    cold.arrive("a")
    assert (cold.results(), len(cold.pool)) == ([], 1)
    cold.pool.run()
    assert cold.results() == [(1, 0, 0, 2, [b"a"])]


def test_what_a_thread_read_for_other_tags_is_read_again(cold: Rig) -> None:
    fill(cold, "b", "a")
    cold.pull(1, 0)
    cold.peer.answers()

    cold.member.expression = "b"
    cold.pool.run()
    assert (cold.results(), len(cold.pool)) == ([], 1)
    cold.pool.run()

    assert cold.results() == [(1, 0, 0, 2, [b"b"])]


def test_a_pull_that_reads_much_for_nothing_lets_others_of_its_connection_read_in_between(cold: Rig) -> None:
    fill(cold, *["b"] * (3 * MAX_PULL_BATCHES))
    fill(cold, "a", to=OTHER)
    cold.peer.answers()
    cold.pull(1, 0)
    cold.peer.send(request(2, Op.PULL, Pull("g", 15_000, 1 << 20, [PullQueue(*OTHER, 0)])))
    cold.peer.answers()

    cold.pool.run()
    assert cold.results() == []
    cold.pool.run()

    assert cold.results() == [(2, 0, 0, 1, [b"a"])]
    while cold.pool.run():
        assert cold.results() == []
    assert len(cold.parked_pulls) == 1


def test_a_pull_that_does_not_wait_reads_once_in_a_thread(cold: Rig) -> None:
    fill(cold, *["b"] * (2 * MAX_PULL_BATCHES))
    cold.pull(1, 0, wait_ms=0)
    cold.peer.answers()
    cold.pool.run()

    assert cold.results() == [(1, 0, EMPTY, MAX_PULL_BATCHES, [])]
    assert cold.pulls.cold_reads == 1


def test_what_one_queue_has_does_not_wait_for_a_slower_queue(cold: Rig) -> None:
    fill(cold, *["b"] * (2 * MAX_PULL_BATCHES))
    fill(cold, "a", to=OTHER)
    cold.pull(1, 0, 0)
    cold.peer.answers()
    while cold.pool.run():
        cold.peer.turns.turn()

    assert sorted(cold.results()) == [(1, 0, EMPTY, MAX_PULL_BATCHES, []), (1, 1, 0, 1, [b"a"])]


# ---- damage and loss


def spoil(rig: Rig, position: int) -> None:
    path = max((p for p in segment_files(rig.path) if int(p.name) <= position), key=str)
    flip(path, position - int(path.name))


def test_damage_is_reported_with_its_own_bounds_after_what_was_passed(cold: Rig) -> None:
    fill(cold, "b", "b")
    position = cold.opened.append(b"a", tags=["a"]).physical_offset
    fill(cold, "a")
    spoil(cold, position + 20)

    cold.pull(1, 0)
    while cold.pool.run():
        cold.peer.turns.turn()
    assert cold.results() == [(1, 0, EMPTY, 2, [])]
    assert cold.pulls.reader.damaged_reads == 0

    cold.pull(2, 2)
    cold.pool.run()
    assert cold.results() == [(2, 0, Damaged.code, 3, [])]
    assert cold.pulls.reader.damaged_reads == 1


def shorten(rig: Rig) -> int:
    """Retention removes all that it may; the first offset that is left."""
    segment = rig.opened.store.log.segments[-2]
    head = read_head(rig.files, str(segment.path), segment.start)
    assert head is not None
    for old in rig.opened.store.forget_before(segment.start, head.changes)[0]:
        old.path.unlink()
    return rig.opened.store.queue(ORDERS).min_offset


def test_retention_takes_nothing_from_a_pull_that_has_passed_it(cold: Rig) -> None:
    fill(cold, *["b"] * 30)
    cold.pull(1, 0)
    cold.pool.run()
    cold.peer.answers()
    assert shorten(cold) > 0

    cold.expire(15.0)

    assert cold.results() == [(1, 0, EMPTY, 30, [])]


def test_retention_that_overtakes_a_pull_is_reported_with_exact_bounds(rig: Rig) -> None:
    rig.pull(1, 0)
    rig.arrive("b")
    assert rig.results() == []
    for _ in range(3):
        rig.arrive("b", told=False)
    rig.opened.store.queue(ORDERS).raise_min(3)
    rig.pulls.arrived([ORDERS])

    assert rig.results() == [(1, 0, EMPTY, 1, [])]
    rig.pull(2, 1)
    assert rig.results() == [(2, 0, MessagesLost.code, 3, [])]


A, B = MessageQueue("orders", 0), MessageQueue("orders", 1)


def make(*offsets: int) -> PullRequest:
    queues = [PullQueue("orders", i % 2, offset) for i, offset in enumerate(offsets)]
    return PullRequest(cast(Connection, None), 7, Pull("g", 0, 1, queues), 1.0, [1] * len(offsets))


def test_a_new_pull_reads_everything_from_where_it_asks() -> None:
    request = make(5, 9)

    assert (request.queues, request.offsets, request.wanted) == ((A, B), [5, 9], [None, None])
    assert not request.is_filtered
    assert not request.has_passed(0)


def test_a_free_pull_for_some_tags_is_filtered_from_the_start() -> None:
    queues = [PullQueue("orders", 0, 5), PullQueue("orders", 1, 9)]
    pull = Pull(None, 0, 1, queues, "a")
    request = PullRequest(cast(Connection, None), 7, pull, 1.0, [1, 1], wanted=wanted("a"))

    assert request.wanted == [wanted("a")] * 2
    assert request.is_filtered


def test_what_was_passed_counts_as_long_as_the_same_is_wanted() -> None:
    request = make(5, 9)
    request.want(0, wanted("a"))
    request.offsets[0] = 20
    assert request.is_filtered
    assert (request.has_passed(0), request.has_passed(1)) == (True, False)

    request.want(0, wanted("a||a"))
    assert request.offsets == [20, 9]
    request.want(0, wanted("a||b"))
    assert request.offsets == [5, 9]


def test_a_pull_is_filtered_while_any_of_its_places_is() -> None:
    request = make(5, 9)
    request.want(0, wanted("a"))
    request.want(1, wanted("a"))
    request.want(0, None)
    assert request.is_filtered

    request.want(1, None)
    assert not request.is_filtered


def test_places_are_served_in_turn() -> None:
    request = make(0, 0, 0)
    assert request.order() == [0, 1, 2]

    request.first = 2
    assert request.order() == [2, 0, 1]


def test_a_queue_has_every_place_at_which_it_is_named() -> None:
    request = make(0, 0, 0)

    assert (request.places_of(A), request.places_of(B)) == ([0, 2], [1])
