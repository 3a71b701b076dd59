"""The cache of a queue against a list: order kept, nothing lost, progress exact, memory counted."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.tag_filter import Subscription
from rmq.wire.batch import batch, layout
from rmq.wire.batch.batch import Batch, Rows
from rmq.wire.batch.compression import CODECS
from rmq.wire.errors import BadBatch
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.stores import StoreIds

from support.batches import STAMP, stamped


def made(base: int, count: int, tags: list[str | None] | None = None, attempts: list[int] | None = None) -> Batch:
    bodies = [b"%d" % i for i in range(base, base + count)]
    encoded = batch.encode("orders", 2, Rows(bodies, 1, tags=tags, attempts=attempts))
    by = layout.Stamp(**{**STAMP._asdict(), "base_offset": base})
    return batch.read(stamped(encoded, by), stores=StoreIds(1))


def offsets(messages: list[StoredMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


def test_what_is_taken_comes_in_order_and_across_batches() -> None:
    queue = ProcessQueue(0)
    for base in (0, 2, 4):
        queue.put(made(base, 2))

    assert offsets(queue.take(3)) == [0, 1, 2]
    assert offsets(queue.take(9)) == [3, 4, 5]
    assert queue.take(1) == []


def test_what_was_not_asked_for_or_is_here_already_is_left_out() -> None:
    queue = ProcessQueue(3)

    assert queue.put(made(0, 5))
    assert not queue.put(made(0, 5))
    assert not queue.put(made(2, 3))
    assert queue.put(made(4, 3))
    assert queue.messages == 4
    assert offsets(queue.take(9)) == [3, 4, 5, 6]


def test_a_batch_with_a_hole_before_it_is_refused() -> None:
    queue = ProcessQueue(3)

    with pytest.raises(BadBatch, match="begins at 4, and 3 was asked for"):
        queue.put(made(4, 2))

    assert (queue.messages, queue.size, queue.end_offset) == (0, 0, 3)


def test_whoever_waits_for_room_is_told_once_when_nothing_is_left_to_take() -> None:
    queue, told = ProcessQueue(0), []
    queue.put(made(0, 4))
    queue.when_room(1, 1 << 20, lambda: told.append("room"))
    queue.take(4)
    assert told == []

    queue.starved()
    queue.starved()

    assert told == ["room"]


def test_a_commit_passes_everything_in_flight() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 4))

    queue.take(1)
    queue.take(2)
    assert queue.commit_offset == 0
    queue.commit()

    assert queue.commit_offset == 3
    assert queue.messages == 1


def test_a_commit_of_nothing_changes_nothing() -> None:
    queue = ProcessQueue(5)
    queue.commit()

    assert queue.commit_offset == 5
    assert queue.rollback() == []


def test_a_rollback_gives_everything_since_the_last_commit_again_in_order() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 5))
    queue.take(1)
    queue.commit()
    queue.take(1)
    queue.take(2)

    assert offsets(queue.rollback()) == [1, 2, 3]
    assert offsets(queue.take(9)) == [1, 2, 3, 4]


def test_again_gives_only_the_last_batch_again() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 5))
    queue.take(2)
    failed = queue.take(2)

    queue.again(len(failed))

    assert offsets(queue.in_flight) == [0, 1]
    assert offsets(queue.take(2)) == [2, 3]


def test_bytes_are_held_until_the_last_message_of_their_batch_is_done() -> None:
    first, second = made(0, 2), made(2, 1)
    queue = ProcessQueue(0)
    queue.put(first)
    queue.put(second)
    assert queue.size == first.header.size + second.header.size

    queue.take(1)
    queue.commit()
    assert queue.size == first.header.size + second.header.size
    queue.take(1)
    assert queue.size == first.header.size + second.header.size
    queue.commit()
    assert queue.size == second.header.size
    queue.take(1)
    queue.commit()
    assert queue.size == 0


def test_compressed_batches_count_as_what_they_take_in_memory() -> None:
    rows = Rows([bytes(5000), bytes(5000)], 1)
    packed = batch.encode("orders", 2, rows, codec=CODECS.by_name("zlib"))
    queue = ProcessQueue(1000)

    queue.put(batch.read(stamped(packed), stores=StoreIds(1)))

    assert len(packed) < 1000
    assert queue.size > 10_000
    assert [message.body for message in queue.take(2)] == rows.bodies
    queue.commit()
    assert queue.size == 0


def test_unwanted_tags_are_passed_and_counted_as_progress() -> None:
    queue = ProcessQueue(0, subscription=Subscription("paid"))
    queue.put(made(0, 3, ["new", "paid", "new"]))
    queue.put(made(3, 2, ["new", "new"]))
    queue.put(made(5, 1))

    assert offsets(queue.take(1)) == [1]
    assert queue.commit_offset == 0
    queue.commit()
    assert queue.commit_offset == 3
    assert queue.take(1) == []
    assert (queue.commit_offset, queue.size, queue.messages) == (6, 0, 0)


def test_a_long_run_of_unwanted_messages_is_passed_in_pieces() -> None:
    queue = ProcessQueue(0, subscription=Subscription("paid"))
    for i in range(5):
        queue.put(made(i * 4096, 4096, ["new"] * 4096))
    queue.put(made(5 * 4096, 1, ["paid"]))

    pieces = 0
    while not (taken := queue.take(1)):
        assert queue.ready
        pieces += 1

    assert (pieces, offsets(taken)) == (2, [5 * 4096])
    assert queue.commit_offset == 5 * 4096


def test_unwanted_messages_behind_one_in_flight_wait_for_it() -> None:
    queue = ProcessQueue(0, subscription=Subscription("paid"))
    queue.put(made(0, 1, ["paid"]))
    queue.put(made(1, 2, ["new", "new"]))

    taken = queue.take(1)
    assert queue.take(1) == []
    assert queue.commit_offset == 0
    queue.again(len(taken))
    assert offsets(queue.take(1)) == [0]
    queue.commit()
    assert queue.commit_offset == 3


def test_the_message_an_owner_before_failed_at_goes_on_counting() -> None:
    queue = ProcessQueue(0, runs=[AttemptRun(1, 2, 4)])
    queue.put(made(0, 3))

    assert [message.attempt for message in queue.take(3)] == [1, 5, 1]


def test_attempts_of_before_the_batch_was_made_count() -> None:
    queue = ProcessQueue(1)
    queue.put(made(0, 3, attempts=[9, 2, 0]))

    assert [message.attempt for message in queue.take(3)] == [3, 1]


@pytest.mark.parametrize(("messages", "has_room"), [(1000, True), (1001, False)])
def test_a_thousand_messages_have_room_for_a_pull_and_one_more_has_not(messages: int, has_room: bool) -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, messages))

    assert queue.has_room(1000, 1 << 30) is has_room


def test_one_batch_is_always_let_in() -> None:
    queue = ProcessQueue(0)
    assert queue.has_room(1000, 1)

    queue.put(made(0, 1))
    assert not queue.has_room(1000, 1)


def test_who_waits_for_room_is_told_once_when_few_enough_messages_are_left() -> None:
    queue, told = ProcessQueue(0), []
    queue.put(made(0, 10))
    queue.when_room(7, 1 << 30, lambda: told.append(queue.messages))

    while queue.take(1):
        queue.commit()

    assert told == [7]


def test_who_waits_for_room_is_told_when_few_enough_bytes_are_left() -> None:
    first, second = made(0, 3), made(3, 3)
    queue, told = ProcessQueue(0), []
    queue.put(first)
    queue.put(second)
    queue.when_room(1000, second.header.size + 1, lambda: told.append(queue.commit_offset))

    while queue.take(1):
        queue.commit()

    assert told == [3]


def test_uncommitted_messages_take_room() -> None:
    queue, told = ProcessQueue(0), []
    queue.put(made(0, 10))
    queue.when_room(5, 1 << 30, lambda: told.append(queue.messages))

    queue.take(10)
    assert (told, queue.messages) == ([], 10)
    queue.commit()
    assert told == [0]


def test_discarding_keeps_the_progress_and_nothing_else() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 3))
    queue.put(made(3, 3))
    queue.take(1)
    queue.commit()
    queue.take(1)

    queue.discard()

    assert (queue.commit_offset, queue.messages, queue.size, queue.ready) == (1, 0, 0, False)
    assert queue.take(1) == []


def test_a_skip_moves_the_progress_only_of_an_empty_queue() -> None:
    queue = ProcessQueue(0)
    queue.skip_to(5)
    assert queue.commit_offset == 5

    queue.put(made(5, 1))
    queue.skip_to(9)
    assert queue.commit_offset == 5
    queue.put(made(9, 1))
    assert offsets(queue.take(5)) == [5, 9]
    queue.commit()
    assert queue.commit_offset == 10


def test_skips_behind_a_message_that_waits_are_one_hole() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 1))
    for queue_offset in range(2, 1000):
        queue.skip_to(queue_offset)

    assert len(queue._arrived) == 2
    assert offsets(queue.take(5)) == [0]
    assert queue.commit_offset == 0
    queue.commit()
    assert queue.commit_offset == 999


class AgainstAList(RuleBasedStateMachine):
    """Any order of operations, compared with a list of offsets and two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(0, subscription=Subscription("a"))
        self.all: list[int] = []  # the wanted offsets that were put
        self.done = 0  # how many of them are committed
        self.taken = 0  # how many of them are committed or in flight
        self.last: list[StoredMessage] = []  # the last batch, if it can be put back
        self.end = 0
        self.seen: list[int] = []

    @rule(tags=st.lists(st.sampled_from(["a", "a", "b", None]), min_size=1, max_size=100))
    def put(self, tags: list[str | None]) -> None:
        assert self.queue.put(made(self.end, len(tags), tags))
        self.all += [self.end + i for i, tag in enumerate(tags) if tag == "a"]
        self.end += len(tags)

    @rule(most=st.integers(1, 40))
    def take(self, most: int) -> None:
        self.last = self.queue.take(most)
        assert offsets(self.last) == self.all[self.taken : self.taken + most]
        assert [message.body for message in self.last] == [b"%d" % offset for offset in offsets(self.last)]
        self.taken += len(self.last)

    @rule()
    def commit(self) -> None:
        self.queue.commit()
        self.done, self.last = self.taken, []

    @rule()
    def rollback(self) -> None:
        assert offsets(self.queue.rollback()) == self.all[self.done : self.taken]
        self.taken, self.last = self.done, []

    @precondition(lambda self: self.last)
    @rule()
    def again(self) -> None:
        self.queue.again(len(self.last))
        self.taken -= len(self.last)
        self.last = []

    @invariant()
    def progress_is_behind_the_last_done_and_not_beyond_the_first_undone(self) -> None:
        offset = self.queue.commit_offset
        assert offset > (self.all[self.done - 1] if self.done else -1)
        assert offset <= (self.all[self.done] if self.done < len(self.all) else self.end)

    @invariant()
    def in_flight_is_what_was_taken_and_not_committed(self) -> None:
        assert offsets(self.queue.in_flight) == self.all[self.done : self.taken]

    @invariant()
    def nothing_is_held_for_what_is_done(self) -> None:
        assert self.queue.messages >= len(self.all) - self.done
        if not self.queue.messages:
            assert self.queue.size == 0


AgainstAList.TestCase.settings = settings(deadline=None, max_examples=80, stateful_step_count=40)
TestAgainstAList = AgainstAList.TestCase
