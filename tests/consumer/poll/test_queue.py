"""
What a pull consumer holds of a queue: returned, done, marked, and begun anew by a seek.

What a poll returns beside the messages.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmq.consumer.group.assignment import Assignment, LeaseBelief
from rmq.consumer.group.tag_filter import Subscription
from rmq.consumer.poll.queue import NotAssigned, PullCache, PulledBatch
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.hello import AttemptRun

from ..fetch.test_process_queue import made_plain, offsets_plain


def test_only_what_was_marked_is_told_to_the_broker() -> None:
    cache = PullCache(0)
    cache.put(made_plain(0, 6))

    cache.take(2)
    assert (cache.position, cache.finished_offset, cache.commit_offset, cache.unmarked) == (2, 0, 0, False)
    cache.mark_done()  # nothing is done yet
    assert cache.commit_offset == 0

    cache.commit()
    assert (cache.position, cache.finished_offset, cache.commit_offset, cache.unmarked) == (2, 2, 0, True)

    cache.mark_done()
    assert (cache.commit_offset, cache.unmarked) == (2, False)


def test_room_is_made_by_what_is_done_marked_or_not() -> None:
    cache, told = PullCache(0), []
    cache.put(made_plain(0, 4))
    assert (cache.messages, cache.ready, cache.used, cache.head) == (4, True, True, (0, 1))
    assert (cache.span, cache.may_starve) == (0, False)
    cache.when_room(0, 1 << 20, lambda: told.append("room"))

    cache.take(4)
    assert (told, offsets_plain(cache.in_flight), cache.has_room(0, 1 << 20)) == ([], [0, 1, 2, 3], False)
    cache.commit()

    assert (told, cache.messages, cache.size, cache.commit_offset) == (["room"], 0, 0, 0)


def test_where_a_group_begins_is_told_without_a_commit_and_what_is_skipped_later_is_not() -> None:
    cache = PullCache(-1)
    assert (cache.position, cache.commit_offset) == (-1, -1)

    cache.skip_to(7)
    assert (cache.position, cache.commit_offset) == (7, 7)

    cache.skip_to(9)
    assert (cache.position, cache.finished_offset, cache.commit_offset) == (9, 9, 7)


def test_a_seek_forwards_passes_what_lies_between_with_the_next_mark() -> None:
    cache = PullCache(0)
    cache.put(made_plain(0, 4))
    cache.take(2)

    cache.seek(100)
    assert (cache.position, cache.end_offset, cache.messages, cache.commit_offset) == (100, 100, 0, 0)

    cache.mark_done()
    assert cache.commit_offset == 100


def test_after_a_seek_backwards_progress_stays_until_it_is_passed() -> None:
    cache = PullCache(0)
    cache.put(made_plain(0, 4))
    cache.take(4)
    cache.commit()
    cache.mark_done()
    cache.durable = 4

    cache.seek(1)
    assert (cache.position, cache.finished_offset, cache.unmarked) == (1, 1, False)
    cache.put(made_plain(0, 6))
    told = []
    for _ in range(5):
        assert len(cache.take(1)) == 1
        cache.commit()
        cache.mark_done()
        told.append(cache.commit_offset)

    assert told == [4, 4, 4, 5, 6]


def test_the_broker_is_told_of_no_mark_beyond_what_was_fetched_again() -> None:
    """It has the mark; after a crash only a pull can show that the messages up to there are still the same."""
    cache = PullCache(0)
    cache.put(made_plain(0, 8))
    cache.take(8)
    cache.commit()
    cache.mark_done()

    cache.seek(2)
    assert cache.commit_offset == 2
    cache.put(made_plain(2, 3))
    assert cache.commit_offset == 5

    assert cache.cut(4)
    assert (cache.end_offset, cache.commit_offset) == (4, 4)


def test_a_log_that_lost_messages_takes_marks_back_unless_the_user_has_one_of_them() -> None:
    cache = PullCache(0)
    cache.put(made_plain(0, 6))
    cache.take(4)
    cache.commit()
    cache.mark_done()
    cache.durable = 4
    cache.take(1)

    assert not cache.cut(3)
    assert (cache.commit_offset, cache.durable) == (4, 4)
    cache.commit()
    assert cache.cut(3)

    assert (cache.position, cache.commit_offset, cache.durable) == (3, 3, 3)


def test_a_seek_keeps_the_subscription_and_the_numbers_of_deliveries() -> None:
    cache = PullCache(0, runs=[AttemptRun(1, 2, 3)])
    cache.subscription = Subscription("a")
    tags: list[str | None] = ["a", "a", "b"]
    cache.put(made_plain(0, 3, tags))
    assert [message.attempt for message in cache.take(9)] == [1, 4]

    cache.seek(0)
    cache.put(made_plain(0, 3, tags))

    assert [message.attempt for message in cache.take(9)] == [1, 4]
    assert cache.subscription.expression == "a"


class Polling(RuleBasedStateMachine):
    """Any order of pulls, polls, commits and seeks, against four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PullCache(0)
        self.end = self.position = self.done = self.marked = 0

    @rule(count=st.integers(1, 5))
    def put(self, count: int) -> None:
        self.cache.put(made_plain(self.end, count))
        self.end += count

    @rule(most=st.integers(1, 4))
    def take(self, most: int) -> None:
        taken = offsets_plain(self.cache.take(most))
        assert taken == list(range(self.position, min(self.position + most, self.end)))
        self.position += len(taken)

    @rule()
    def commit(self) -> None:
        self.cache.commit()
        self.done = self.position

    @rule()
    def mark(self) -> None:
        self.cache.mark_done()
        self.marked = max(self.marked, self.done)

    @rule(to=st.integers(0, 20))
    def seek(self, to: int) -> None:
        self.cache.seek(to)
        self.end = self.position = self.done = to

    @precondition(lambda self: self.done == self.position)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        to = data.draw(st.integers(0, self.end))
        assert self.cache.cut(to)
        self.end = min(self.end, to)
        self.position = self.done = min(self.done, to)
        self.marked = min(self.marked, to)

    @invariant()
    def agrees(self) -> None:
        cache = self.cache
        assert (cache.end_offset, cache.position, cache.finished_offset) == (self.end, self.position, self.done)
        assert cache.commit_offset == min(self.marked, self.end)
        assert cache.unmarked == (self.done > self.marked)
        assert cache.messages == self.end - self.done


TestPolling = Polling.TestCase
TestPolling.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def assignment() -> Assignment:
    return Assignment(LeaseBelief(MessageQueue("t", 0), 7, 0.0), PullCache(0), on_lost=lambda assignment, reason: None)


def test_a_batch_is_a_list_that_knows_its_queue_and_its_epoch() -> None:
    of = assignment()
    of.cache.put(made_plain(0, 2))
    messages = PullCache(0)
    messages.put(made_plain(0, 2))

    batch = PulledBatch(messages.take(2), of)

    assert isinstance(batch, list)
    assert (len(batch), batch.queue, batch.epoch, batch.lost) == (2, ("t", 0), 7, False)


def test_a_batch_is_lost_with_its_lease_or_when_its_queue_was_given_back_without_it() -> None:
    of = assignment()
    first, second = PulledBatch((), of), PulledBatch((), of)

    second.given_back = True
    assert (first.lost, second.lost) == (False, True)

    of.lose("somebody else has it")
    assert first.lost


def test_an_empty_batch_is_of_no_queue() -> None:
    batch = PulledBatch()

    assert (batch, batch.lost) == ([], False)
    for name in ("queue", "epoch"):
        with pytest.raises(NotAssigned, match="an empty batch is of no queue"):
            getattr(batch, name)
