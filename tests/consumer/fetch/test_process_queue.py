"""
The cache of a queue against a list: order kept, nothing lost, progress exact, memory counted.

The cursors of a process queue in the hands of whoever calls the listener: as good as its methods, and as safe.

The cache of a queue whose log lost messages: a hole is passed when its turn comes, a cut takes back what it can.

Messages that leave the line in another way than by the listener: the others stay, and progress is exact.

Messages made a few at a time are the messages of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmq.consumer.fetch.process_queue import MOST_RUNS, UNKNOWN, LogEpochs, ProcessQueue, UnreadBatch
from rmq.consumer.group.tag_filter import Subscription
from rmq.wire.batch import batch, layout
from rmq.wire.batch.batch import Batch, Rows
from rmq.wire.batch.compression import CODECS, Codec
from rmq.wire.errors import BadBatch
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.stores import StoreIds

from rigs.batches import FULL, STAMP, STORE_ID, any_rows, quick, stamped


def made_plain(base: int, count: int, tags: list[str | None] | None = None, attempts: list[int] | None = None) -> Batch:
    bodies = [b"%d" % i for i in range(base, base + count)]
    encoded = batch.encode("orders", 2, Rows(bodies, 1, tags=tags, attempts=attempts))
    by = layout.Stamp(**{**STAMP._asdict(), "base_offset": base})
    return batch.read(stamped(encoded, by), stores=StoreIds(1))


def offsets_plain(messages: list[StoredMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


def test_what_is_taken_comes_in_order_and_across_batches() -> None:
    queue = ProcessQueue(0)
    for base in (0, 2, 4):
        queue.put(made_plain(base, 2))

    assert offsets_plain(queue.take(3)) == [0, 1, 2]
    assert offsets_plain(queue.take(9)) == [3, 4, 5]
    assert queue.take(1) == []


def test_what_was_not_asked_for_or_is_here_already_is_left_out() -> None:
    queue = ProcessQueue(3)

    assert queue.put(made_plain(0, 5))
    assert not queue.put(made_plain(0, 5))
    assert not queue.put(made_plain(2, 3))
    assert queue.put(made_plain(4, 3))
    assert queue.messages == 4
    assert offsets_plain(queue.take(9)) == [3, 4, 5, 6]


def test_a_batch_with_a_hole_before_it_is_refused() -> None:
    queue = ProcessQueue(3)

    with pytest.raises(BadBatch, match="begins at 4, and 3 was asked for"):
        queue.put(made_plain(4, 2))

    assert (queue.messages, queue.size, queue.end_offset) == (0, 0, 3)


def test_whoever_waits_for_room_is_told_once_when_nothing_is_left_to_take() -> None:
    queue, told = ProcessQueue(0), []
    queue.put(made_plain(0, 4))
    queue.when_room(1, 1 << 20, lambda: told.append("room"))
    queue.take(4)
    assert told == []

    queue.starved()
    queue.starved()

    assert told == ["room"]


def test_a_commit_passes_everything_in_flight() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 4))

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
    queue.put(made_plain(0, 5))
    queue.take(1)
    queue.commit()
    queue.take(1)
    queue.take(2)

    assert offsets_plain(queue.rollback()) == [1, 2, 3]
    assert offsets_plain(queue.take(9)) == [1, 2, 3, 4]


def test_again_gives_only_the_last_batch_again() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 5))
    queue.take(2)
    failed = queue.take(2)

    queue.again(len(failed))

    assert offsets_plain(queue.in_flight) == [0, 1]
    assert offsets_plain(queue.take(2)) == [2, 3]


def test_bytes_are_held_until_the_last_message_of_their_batch_is_done() -> None:
    first, second = made_plain(0, 2), made_plain(2, 1)
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
    queue.put(made_plain(0, 3, ["new", "paid", "new"]))
    queue.put(made_plain(3, 2, ["new", "new"]))
    queue.put(made_plain(5, 1))

    assert offsets_plain(queue.take(1)) == [1]
    assert queue.commit_offset == 0
    queue.commit()
    assert queue.commit_offset == 3
    assert queue.take(1) == []
    assert (queue.commit_offset, queue.size, queue.messages) == (6, 0, 0)


def test_a_long_run_of_unwanted_messages_is_passed_in_pieces() -> None:
    queue = ProcessQueue(0, subscription=Subscription("paid"))
    for i in range(5):
        queue.put(made_plain(i * 4096, 4096, ["new"] * 4096))
    queue.put(made_plain(5 * 4096, 1, ["paid"]))

    pieces = 0
    while not (taken := queue.take(1)):
        assert queue.ready
        pieces += 1

    assert (pieces, offsets_plain(taken)) == (2, [5 * 4096])
    assert queue.commit_offset == 5 * 4096


def test_unwanted_messages_behind_one_in_flight_wait_for_it() -> None:
    queue = ProcessQueue(0, subscription=Subscription("paid"))
    queue.put(made_plain(0, 1, ["paid"]))
    queue.put(made_plain(1, 2, ["new", "new"]))

    taken = queue.take(1)
    assert queue.take(1) == []
    assert queue.commit_offset == 0
    queue.again(len(taken))
    assert offsets_plain(queue.take(1)) == [0]
    queue.commit()
    assert queue.commit_offset == 3


def test_the_message_an_owner_before_failed_at_goes_on_counting() -> None:
    queue = ProcessQueue(0, runs=[AttemptRun(1, 2, 4)])
    queue.put(made_plain(0, 3))

    assert [message.attempt for message in queue.take(3)] == [1, 5, 1]


def test_attempts_of_before_the_batch_was_made_count() -> None:
    queue = ProcessQueue(1)
    queue.put(made_plain(0, 3, attempts=[9, 2, 0]))

    assert [message.attempt for message in queue.take(3)] == [3, 1]


@pytest.mark.parametrize(("messages", "has_room"), [(1000, True), (1001, False)])
def test_a_thousand_messages_have_room_for_a_pull_and_one_more_has_not(messages: int, has_room: bool) -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, messages))

    assert queue.has_room(1000, 1 << 30) is has_room


def test_one_batch_is_always_let_in() -> None:
    queue = ProcessQueue(0)
    assert queue.has_room(1000, 1)

    queue.put(made_plain(0, 1))
    assert not queue.has_room(1000, 1)


def test_who_waits_for_room_is_told_once_when_few_enough_messages_are_left() -> None:
    queue, told = ProcessQueue(0), []
    queue.put(made_plain(0, 10))
    queue.when_room(7, 1 << 30, lambda: told.append(queue.messages))

    while queue.take(1):
        queue.commit()

    assert told == [7]


def test_who_waits_for_room_is_told_when_few_enough_bytes_are_left() -> None:
    first, second = made_plain(0, 3), made_plain(3, 3)
    queue, told = ProcessQueue(0), []
    queue.put(first)
    queue.put(second)
    queue.when_room(1000, second.header.size + 1, lambda: told.append(queue.commit_offset))

    while queue.take(1):
        queue.commit()

    assert told == [3]


def test_uncommitted_messages_take_room() -> None:
    queue, told = ProcessQueue(0), []
    queue.put(made_plain(0, 10))
    queue.when_room(5, 1 << 30, lambda: told.append(queue.messages))

    queue.take(10)
    assert (told, queue.messages) == ([], 10)
    queue.commit()
    assert told == [0]


def test_discarding_keeps_the_progress_and_nothing_else() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 3))
    queue.put(made_plain(3, 3))
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

    queue.put(made_plain(5, 1))
    queue.skip_to(9)
    assert queue.commit_offset == 5
    queue.put(made_plain(9, 1))
    assert offsets_plain(queue.take(5)) == [5, 9]
    queue.commit()
    assert queue.commit_offset == 10


def test_skips_behind_a_message_that_waits_are_one_hole() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 1))
    for queue_offset in range(2, 1000):
        queue.skip_to(queue_offset)

    assert len(queue._arrived) == 2
    assert offsets_plain(queue.take(5)) == [0]
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
        assert self.queue.put(made_plain(self.end, len(tags), tags))
        self.all += [self.end + i for i, tag in enumerate(tags) if tag == "a"]
        self.end += len(tags)

    @rule(most=st.integers(1, 40))
    def take(self, most: int) -> None:
        self.last = self.queue.take(most)
        assert offsets_plain(self.last) == self.all[self.taken : self.taken + most]
        assert [message.body for message in self.last] == [b"%d" % offset for offset in offsets_plain(self.last)]
        self.taken += len(self.last)

    @rule()
    def commit(self) -> None:
        self.queue.commit()
        self.done, self.last = self.taken, []

    @rule()
    def rollback(self) -> None:
        assert offsets_plain(self.queue.rollback()) == self.all[self.done : self.taken]
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
        assert offsets_plain(self.queue.in_flight) == self.all[self.done : self.taken]

    @invariant()
    def nothing_is_held_for_what_is_done(self) -> None:
        assert self.queue.messages >= len(self.all) - self.done
        if not self.queue.messages:
            assert self.queue.size == 0


AgainstAList.TestCase.settings = settings(deadline=None, max_examples=80, stateful_step_count=40)


TestAgainstAList = AgainstAList.TestCase


Told = list[int]


def by_methods(queue: ProcessQueue) -> Iterator[int]:
    while messages := queue.take(1):
        yield messages[0].queue_offset
        queue.commit()


def by_cursors(queue: ProcessQueue) -> Iterator[int]:
    """As the orderly scheduler does it: along a copy of the line, and no further than the mark."""
    while queue.ready:
        for message in queue.line[queue.fill() :]:
            queue.next += 1
            yield message.queue_offset
            queue.first = queue.next
            if queue.first >= queue.mark:
                queue.settle()
                break


def filled() -> ProcessQueue:
    queue = ProcessQueue(0, subscription=Subscription("a || b"))
    tags = ["a", None, "b", "c", "a"]
    for base, count in ((0, 1), (1, 299), (300, 2), (302, 130), (432, 4)):
        queue.put(made_plain(base, count, tags=[tags[i % 5] for i in range(base, base + count)]))
    queue.skip_to(440)
    return queue


@pytest.mark.parametrize(("messages", "size"), [(0, 1 << 20), (200, 1 << 20), (1000, 1), (431, 9000), (3, 2000)])
def test_progress_memory_and_room_are_the_same_at_every_message(messages: int, size: int) -> None:
    def seen(walk: Callable[[ProcessQueue], Iterator[int]]) -> list[object]:
        queue, told = filled(), Told()
        queue.when_room(messages, size, lambda: told.append(queue.commit_offset))
        return [(at, queue.commit_offset, queue.messages, queue.size, queue.head, list(told)) for at in walk(queue)]

    assert seen(by_cursors) == seen(by_methods)


def test_everything_is_done_in_the_end() -> None:
    queue = filled()

    given = list(by_cursors(queue))

    assert given == [at for at in range(436) if at % 5 in (0, 2, 4)]
    assert (queue.commit_offset, queue.messages, queue.size) == (440, 0, 0)


@pytest.mark.parametrize("cut_at", [1, 2, 100, 127, 128, 129, 299, 300, 301, 350, 500])
@pytest.mark.parametrize("during", [0, 1, 99, 126, 127, 128, 250, 299, 300])
def test_what_the_log_lost_during_a_call_is_not_given_from_the_copy(during: int, cut_at: int) -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 300))
    queue.put(made_plain(300, 200))
    given = []

    for offset in by_cursors(queue):
        given.append(offset)
        if offset == during:
            assert queue.cut(cut_at) == (cut_at > during)

    assert given == list(range(cut_at if cut_at > during else 500))
    assert queue.commit_offset == len(given)


def test_a_hole_behind_cached_messages_is_passed_when_they_are_done() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 3))
    queue.skip_to(10)

    assert offsets_plain(queue.take(2)) == [0, 1]
    queue.commit()
    assert queue.commit_offset == 2
    assert offsets_plain(queue.take(2)) == [2]
    queue.commit()
    assert queue.take(1) == []

    assert (queue.commit_offset, queue.end_offset, queue.size, queue.ready) == (10, 10, 0, False)


def test_a_hole_that_is_met_while_messages_are_in_flight_is_passed_with_them() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 2))
    taken = queue.take(5)
    queue.skip_to(4)
    assert queue.ready
    assert queue.take(5) == []
    assert queue.commit_offset == 0

    queue.again(len(taken))
    assert offsets_plain(queue.take(5)) == [0, 1]
    queue.commit()

    assert queue.commit_offset == 4


def test_a_hole_after_a_hole_is_passed_as_well() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 1))
    queue.skip_to(4)
    queue.skip_to(6)
    queue.put(made_plain(6, 1))

    assert offsets_plain(queue.take(5)) == [0, 6]
    queue.commit()

    assert queue.commit_offset == 7


def test_a_cut_discards_what_is_cached_and_keeps_what_runs() -> None:
    queue = ProcessQueue(0)
    for base in (0, 2, 4):
        queue.put(made_plain(base, 2))
    assert offsets_plain(queue.take(1)) == [0]

    assert queue.cut(2)

    queue.commit()
    assert offsets_plain(queue.take(5)) == [1]
    queue.commit()
    assert (queue.commit_offset, queue.end_offset, queue.size) == (2, 2, 0)
    assert queue.put(made_plain(2, 1))


def test_a_cut_lowers_the_progress_that_was_made() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 6))
    queue.take(5)
    queue.commit()

    assert queue.cut(3)

    assert (queue.commit_offset, queue.end_offset, queue.messages, queue.size) == (3, 3, 0, 0)
    queue.put(made_plain(3, 1))
    assert offsets_plain(queue.take(5)) == [3]


def test_a_cut_through_what_the_listener_has_is_refused_and_changes_nothing() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 6))
    queue.take(4)

    assert not queue.cut(3)

    assert (queue.end_offset, queue.messages) == (6, 6)
    assert offsets_plain(queue.in_flight) == [0, 1, 2, 3]
    assert queue.cut(4)


def test_attempts_of_a_lost_message_are_not_counted_for_its_successor() -> None:
    queue = ProcessQueue(0, runs=[AttemptRun(1, 2, 4)])
    queue.put(made_plain(0, 2))

    assert queue.cut(1)
    queue.put(made_plain(1, 1))

    assert [message.attempt for message in queue.take(5)] == [1, 1]


def test_a_cut_may_go_through_a_batch() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 300))
    queue.take(10)  # which makes 128
    queue.commit()

    assert queue.cut(100)

    assert offsets_plain(queue.take(500)) == list(range(10, 100))
    queue.commit()
    assert queue.take(1) == []
    assert (queue.commit_offset, queue.size) == (100, 0)


def test_a_cut_behind_the_last_wanted_message_of_a_batch_still_lets_the_progress_get_there() -> None:
    queue = ProcessQueue(0, subscription=Subscription("a"))
    queue.put(made_plain(0, 3, ["a", "b", "b"]))
    assert offsets_plain(queue.take(1)) == [0]

    assert queue.cut(2)

    queue.commit()
    assert (queue.commit_offset, queue.size) == (2, 0)


@pytest.mark.parametrize("cut_at", [4, 7, 12])
def test_a_cut_goes_through_a_hole_or_before_or_behind_it(cut_at: int) -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 5))
    queue.skip_to(10)
    queue.put(made_plain(10, 5))

    assert queue.cut(cut_at)

    assert offsets_plain(queue.take(50)) == [i for i in (*range(5), *range(10, 15)) if i < cut_at]
    queue.commit()
    queue.take(1)
    assert (queue.commit_offset, queue.end_offset) == (cut_at, cut_at)


class AgainstAListCut(RuleBasedStateMachine):
    """Any order of operations with holes and cuts, compared with a list of offsets and two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(0, subscription=Subscription("a"))
        self.all: list[int] = []  # the wanted offsets that were put, and are not lost
        self.done = 0  # how many of them are committed
        self.taken = 0  # how many of them are committed or in flight
        self.last: list[StoredMessage] = []
        self.end = 0

    @rule(tags=st.lists(st.sampled_from(["a", "a", "b", None]), min_size=1, max_size=30))
    def put(self, tags: list[str | None]) -> None:
        assert self.queue.put(made_plain(self.end, len(tags), tags))
        self.all += [self.end + i for i, tag in enumerate(tags) if tag == "a"]
        self.end += len(tags)

    @rule(count=st.integers(1, 20))
    def skip(self, count: int) -> None:
        self.end += count
        self.queue.skip_to(self.end)

    @rule(back=st.integers(0, 40))
    def cut(self, back: int) -> None:
        at = max(0, self.end - back)
        could = self.queue.cut(at)
        assert could == (self.taken == self.done or self.all[self.taken - 1] < at)
        if could:
            self.all = [offset for offset in self.all if offset < at]
            self.done = min(self.done, len(self.all))
            self.taken = min(self.taken, len(self.all))
            self.end = at
            assert self.queue.commit_offset <= at

    @rule(most=st.integers(1, 40))
    def take(self, most: int) -> None:
        self.last = self.queue.take(most)
        assert offsets_plain(self.last) == self.all[self.taken : self.taken + most]
        self.taken += len(self.last)

    @rule()
    def commit(self) -> None:
        self.queue.commit()
        self.done, self.last = self.taken, []

    @precondition(lambda self: self.last and self.taken - self.done >= len(self.last))
    @rule()
    def again(self) -> None:
        self.queue.again(len(self.last))
        self.taken -= len(self.last)
        self.last = []

    @rule()
    def work_off(self) -> None:
        while self.queue.ready:
            assert offsets_plain(self.queue.take(7)) == self.all[self.taken : self.taken + 7]
            self.taken = min(len(self.all), self.taken + 7)
        self.commit()
        assert (self.queue.commit_offset, self.queue.end_offset) == (self.end, self.end)
        assert (self.queue.messages, self.queue.size) == (0, 0)

    @invariant()
    def progress_is_behind_the_last_done_and_not_beyond_the_first_undone(self) -> None:
        offset = self.queue.commit_offset
        assert offset > (self.all[self.done - 1] if self.done else -1)
        assert offset <= (self.all[self.done] if self.done < len(self.all) else self.end)
        assert self.queue.end_offset == self.end

    @invariant()
    def in_flight_is_what_was_taken_and_not_committed(self) -> None:
        assert offsets_plain(self.queue.in_flight) == self.all[self.done : self.taken]


AgainstAListCut.TestCase.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)


def test_each_message_goes_on_counting_where_its_run_says() -> None:
    queue = ProcessQueue(0, runs=[AttemptRun(4, 6, 1), AttemptRun(1, 3, 4)])
    queue.put(made_plain(0, 5))
    queue.put(made_plain(5, 3))

    assert [message.attempt for message in queue.take(9)] == [1, 5, 5, 1, 2, 2, 1, 1]


def test_a_run_that_goes_over_several_readings_counts_for_all_of_them() -> None:
    queue = ProcessQueue(0, runs=[AttemptRun(0, 700, 2)])
    queue.put(made_plain(0, 1000))

    taken = [queue.take(1)[0].attempt for _ in range(1000)]

    assert taken == [3] * 700 + [1] * 300


def test_a_run_below_what_is_read_is_forgotten() -> None:
    queue = ProcessQueue(5, runs=[AttemptRun(1, 3, 7), AttemptRun(6, 7, 1)])
    queue.put(made_plain(5, 3))

    assert [message.attempt for message in queue.take(9)] == [1, 2, 1]


def test_a_removed_message_in_the_middle_is_passed_with_the_one_before_it() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 4))
    batch = queue.take(3)
    queue.again(3)

    assert queue.commit_offset_without([batch[1]]) == 0
    queue.remove([batch[1]])
    assert (queue.commit_offset, queue.messages) == (0, 3)
    assert offsets_plain(queue.take(1)) == [0]
    queue.commit()
    assert queue.commit_offset == 2
    assert offsets_plain(queue.take(5)) == [2, 3]
    queue.commit()
    assert (queue.commit_offset, queue.messages, queue.size) == (4, 0, 0)


def test_removed_messages_at_the_front_are_progress_at_once() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 4))
    batch = queue.take(3)
    queue.again(3)

    assert queue.commit_offset_without(batch[:2]) == 2
    queue.remove(batch[:2])
    assert queue.commit_offset == 2
    assert offsets_plain(queue.take(5)) == [2, 3]


def test_what_is_in_flight_before_a_removed_message_keeps_the_progress_back() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 3))
    queue.take(1)  # not committed
    failed = queue.take(1)
    queue.again(1)

    assert queue.commit_offset_without(failed) == 0
    queue.remove(failed)
    assert (queue.commit_offset, offsets_plain(queue.in_flight)) == (0, [0])
    queue.commit()
    assert queue.commit_offset == 2


def test_the_last_of_a_batch_may_be_removed_and_its_memory_goes_with_it() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 2))
    queue.put(made_plain(2, 2))
    messages = queue.take(4)
    queue.again(4)

    queue.remove(messages[:2])
    assert queue.size == made_plain(2, 2).header.size
    queue.remove(messages[2:])
    assert (queue.size, queue.messages, queue.commit_offset) == (0, 0, 4)


def test_what_the_log_lost_is_not_held_any_more() -> None:
    queue = ProcessQueue(0)
    queue.put(made_plain(0, 3))
    messages = queue.take(3)
    queue.again(3)

    assert queue.cut(1)
    queue.put(made_plain(1, 2))  # others with the same offsets
    assert queue.still_queued(messages) == messages[:1]
    queue.remove(messages)
    assert offsets_plain(queue.take(5)) == [1, 2]


@pytest.mark.parametrize("size", [1, 3, 7])
@given(data=st.data())
def test_any_removals_leave_the_others_in_order_and_the_progress_before_the_first_of_them(
    size: int, data: st.DataObject
) -> None:
    tags = data.draw(st.lists(st.sampled_from(["a", "a", "b"]), min_size=1, max_size=40))
    cut = data.draw(st.integers(1, len(tags)))
    queue = ProcessQueue(0, subscription=Subscription("a"))
    queue.put(made_plain(0, cut, tags[:cut]))
    if tags[cut:]:
        queue.put(made_plain(cut, len(tags) - cut, tags[cut:]))
    left = [offset for offset, tag in enumerate(tags) if tag == "a"]
    seen: list[int] = []

    while batch := queue.take(size):
        gone = data.draw(st.lists(st.sampled_from(batch), unique_by=id))
        if data.draw(st.booleans()) and gone:
            queue.again(len(batch))
            expected = queue.commit_offset_without(gone)
            queue.remove(gone)
            assert queue.commit_offset >= expected
            left = [offset for offset in left if offset not in offsets_plain(gone)]
        else:
            seen += offsets_plain(batch)
            if data.draw(st.booleans()):
                queue.commit()
        unseen = [offset for offset in left if offset not in seen]
        assert queue.commit_offset <= (unseen[0] if unseen else len(tags))
    queue.commit()

    assert seen == left
    assert (queue.commit_offset, queue.messages, queue.size) == (len(tags), 0, 0)


@quick
@given(any_rows(), st.integers(995, 1010), st.integers(1, 4), st.sampled_from([None, CODECS.by_name("zlib")]))
def test_reading_in_pieces_gives_what_reading_at_once_gives(
    rows: batch.Rows, from_offset: int, most: int, codec: Codec | None
) -> None:
    rows = rows._replace(bodies=[body * 20 for body in rows.bodies])
    whole = batch.read(stamped(batch.encode("orders", 2, rows, codec=codec)), stores=StoreIds(STORE_ID))
    unread = UnreadBatch(whole, from_offset)
    expected = whole.messages(from_offset)
    assert max(unread.left, 0) == len(expected)

    made = []
    while unread.left > 0:
        made += unread.read(most, Subscription())

    assert [(m.queue_offset, m.body, m.tag, m.index_keys) for m in made] == [
        (m.queue_offset, m.body, m.tag, m.index_keys) for m in expected
    ]
    assert unread.end_offset == 1000 + len(rows.bodies)


def test_only_wanted_messages_are_made_and_carry_their_deliveries() -> None:
    whole = batch.read(stamped(batch.encode("orders", 2, FULL)), stores=StoreIds(STORE_ID))
    unread = UnreadBatch(whole, 0)

    (message,) = unread.read(10, Subscription("bezahlt-€"))

    assert (message.queue_offset, message.attempt) == (1002, 65536)
    assert unread.left == 0


# The log epochs of what was fetched, against one number a message


def test_nothing_is_known_before_something_was_fetched() -> None:
    epochs = LogEpochs()
    assert epochs.before(0) == epochs.before(7) == UNKNOWN

    epochs.skipped(0)
    assert epochs.before(7) == UNKNOWN


def test_what_was_skipped_has_no_epoch_and_what_follows_has_one() -> None:
    epochs = LogEpochs()
    epochs.fetched(0, 3)
    epochs.skipped(10)
    assert (epochs.before(10), epochs.before(15)) == (3, UNKNOWN)

    epochs.fetched(20, 3)
    assert (epochs.before(20), epochs.before(21)) == (UNKNOWN, 3)


def test_what_was_passed_over_under_a_later_start_is_no_later_than_what_follows_it() -> None:
    epochs = LogEpochs()
    epochs.fetched(0, 3)
    epochs.fetched(10, 7)  # the broker of epoch 7 found nothing wanted here
    assert (epochs.before(10), epochs.before(11)) == (3, 7)

    epochs.fetched(20, 4)
    assert [epochs.before(at) for at in (10, 11, 20, 21)] == [3, 4, 4, 4]

    epochs.fetched(30, 7)
    epochs.fetched(40, 4)
    assert [epochs.before(at) for at in (11, 31, 41)] == [4, 4, 4]


def test_a_log_of_very_many_starts_is_remembered_from_its_newest() -> None:
    epochs = LogEpochs()
    for start in range(MOST_RUNS + 10):
        epochs.fetched(start, start + 1)

    assert epochs.before(10) == UNKNOWN
    assert epochs.before(11) == 11
    assert epochs.before(MOST_RUNS + 10) == MOST_RUNS + 10


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.integers(1, 5), st.integers(0, 1)),
        st.tuples(st.just("skip"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("cut"), st.integers(0, 12), st.just(0)),
    ),
    max_size=40,
)


@given(start=st.integers(0, 3), steps=STEPS)
def test_any_order_of_fetches_skips_and_cuts_equals_one_number_a_message(
    start: int, steps: list[tuple[str, int, int]]
) -> None:
    epochs, each, epoch = LogEpochs(), {}, 1
    end = start
    for what, count, restarted in steps:
        if what == "cut":
            end = max(start, end - count)
            epochs.cut(end)
            each = {offset: value for offset, value in each.items() if offset < end}
            continue
        epoch += restarted
        if what == "fetch":
            epochs.fetched(end, epoch)
            each.update(dict.fromkeys(range(end, end + count), epoch))
        else:
            epochs.skipped(end)
        end += count
    for offset in range(end + 1):
        assert epochs.before(offset) == each.get(offset - 1, UNKNOWN)
