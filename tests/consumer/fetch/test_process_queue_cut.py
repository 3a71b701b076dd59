"""The cache of a queue whose log lost messages: a hole is passed when its turn comes, a cut takes back what it can."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.tag_filter import Subscription
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.hello import AttemptRun

from .test_process_queue import made, offsets


def test_a_hole_behind_cached_messages_is_passed_when_they_are_done() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 3))
    queue.skip_to(10)

    assert offsets(queue.take(2)) == [0, 1]
    queue.commit()
    assert queue.commit_offset == 2
    assert offsets(queue.take(2)) == [2]
    queue.commit()
    assert queue.take(1) == []

    assert (queue.commit_offset, queue.end_offset, queue.size, queue.ready) == (10, 10, 0, False)


def test_a_hole_that_is_met_while_messages_are_in_flight_is_passed_with_them() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 2))
    taken = queue.take(5)
    queue.skip_to(4)
    assert queue.ready
    assert queue.take(5) == []
    assert queue.commit_offset == 0

    queue.again(len(taken))
    assert offsets(queue.take(5)) == [0, 1]
    queue.commit()

    assert queue.commit_offset == 4


def test_a_hole_after_a_hole_is_passed_as_well() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 1))
    queue.skip_to(4)
    queue.skip_to(6)
    queue.put(made(6, 1))

    assert offsets(queue.take(5)) == [0, 6]
    queue.commit()

    assert queue.commit_offset == 7


def test_a_cut_discards_what_is_cached_and_keeps_what_runs() -> None:
    queue = ProcessQueue(0)
    for base in (0, 2, 4):
        queue.put(made(base, 2))
    assert offsets(queue.take(1)) == [0]

    assert queue.cut(2)

    queue.commit()
    assert offsets(queue.take(5)) == [1]
    queue.commit()
    assert (queue.commit_offset, queue.end_offset, queue.size) == (2, 2, 0)
    assert queue.put(made(2, 1))


def test_a_cut_lowers_the_progress_that_was_made() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 6))
    queue.take(5)
    queue.commit()

    assert queue.cut(3)

    assert (queue.commit_offset, queue.end_offset, queue.messages, queue.size) == (3, 3, 0, 0)
    queue.put(made(3, 1))
    assert offsets(queue.take(5)) == [3]


def test_a_cut_through_what_the_listener_has_is_refused_and_changes_nothing() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 6))
    queue.take(4)

    assert not queue.cut(3)

    assert (queue.end_offset, queue.messages) == (6, 6)
    assert offsets(queue.in_flight) == [0, 1, 2, 3]
    assert queue.cut(4)


def test_attempts_of_a_lost_message_are_not_counted_for_its_successor() -> None:
    queue = ProcessQueue(0, runs=[AttemptRun(1, 2, 4)])
    queue.put(made(0, 2))

    assert queue.cut(1)
    queue.put(made(1, 1))

    assert [message.attempt for message in queue.take(5)] == [1, 1]


def test_a_cut_may_go_through_a_batch() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 300))
    queue.take(10)  # which makes 128
    queue.commit()

    assert queue.cut(100)

    assert offsets(queue.take(500)) == list(range(10, 100))
    queue.commit()
    assert queue.take(1) == []
    assert (queue.commit_offset, queue.size) == (100, 0)


def test_a_cut_behind_the_last_wanted_message_of_a_batch_still_lets_the_progress_get_there() -> None:
    queue = ProcessQueue(0, subscription=Subscription("a"))
    queue.put(made(0, 3, ["a", "b", "b"]))
    assert offsets(queue.take(1)) == [0]

    assert queue.cut(2)

    queue.commit()
    assert (queue.commit_offset, queue.size) == (2, 0)


@pytest.mark.parametrize("cut_at", [4, 7, 12])
def test_a_cut_goes_through_a_hole_or_before_or_behind_it(cut_at: int) -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 5))
    queue.skip_to(10)
    queue.put(made(10, 5))

    assert queue.cut(cut_at)

    assert offsets(queue.take(50)) == [i for i in (*range(5), *range(10, 15)) if i < cut_at]
    queue.commit()
    queue.take(1)
    assert (queue.commit_offset, queue.end_offset) == (cut_at, cut_at)


class AgainstAList(RuleBasedStateMachine):
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
        assert self.queue.put(made(self.end, len(tags), tags))
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
        assert offsets(self.last) == self.all[self.taken : self.taken + most]
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
            assert offsets(self.queue.take(7)) == self.all[self.taken : self.taken + 7]
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
        assert offsets(self.queue.in_flight) == self.all[self.done : self.taken]


AgainstAList.TestCase.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)
TestAgainstAList = AgainstAList.TestCase
