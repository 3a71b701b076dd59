"""The cache of a queue whose messages are finished in any order: the progress is the first that is not done."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.consumer.fetch.concurrent_queue import Chunk, ConcurrentQueue
from rmq.consumer.group.tag_filter import Subscription
from rmq.wire.protocol.hello import AttemptRun

from .test_process_queue import made_plain, offsets_plain


def filled(start: int, count: int, **settings: int) -> ConcurrentQueue:
    queue = ConcurrentQueue(start, **settings)
    queue.put(made_plain(start, count))
    return queue


def all_chunks(queue: ConcurrentQueue, most: int) -> list[Chunk]:
    """Every chunk that can be taken, in order."""
    chunks = []
    while (taken := queue.take_chunk(most)) is not None:
        chunks.append(taken[0])
    return chunks


def test_ten_messages_with_a_batch_of_four_are_chunks_of_4_4_and_2() -> None:
    queue = filled(0, 10)

    taken = [queue.take_chunk(4) for _ in range(4)]

    assert [None if each is None else offsets_plain(each[1]) for each in taken] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9], None,
    ]  # fmt: skip
    assert offsets_plain(queue.in_flight) == list(range(10))


@pytest.mark.parametrize(
    ("done", "progress"),
    [(range(1001, 1011), 1011), (range(1001, 1009), 1009), (range(1005, 1011), 1001), ((), 1001)],
)
def test_the_progress_is_the_first_offset_that_is_not_done(done: range, progress: int) -> None:
    """RocketMQ: 1001 to 1010 are held; all done 1011, 1001 to 1008 done 1009, the first of them pending 1001."""
    queue = filled(1001, 10)
    chunks = all_chunks(queue, 1)

    for offset in reversed(done):
        queue.done(chunks[offset - 1001])

    assert queue.commit_offset == progress
    assert queue.messages == 10 - len(done)


@settings(deadline=None)  # a machine that is busy is not slow code
@given(st.data())
def test_any_order_of_completions_gives_the_right_progress(data: st.DataObject) -> None:
    """Batches of any size, chunks of any size, ended whole or bit by bit, in any order, while more are taken."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5), label="batches")
    queue, open_chunks, undone, total = ConcurrentQueue(0), list[Chunk](), set(range(sum(sizes))), sum(sizes)
    base = 0
    for size in sizes:
        queue.put(made_plain(base, size))
        base += size
    while undone:
        if queue.ready and (not open_chunks or data.draw(st.booleans(), label="take")):
            taken = queue.take_chunk(data.draw(st.integers(1, 4), label="most"))
            assert taken is not None
            open_chunks.append(taken[0])
            continue
        chunk = data.draw(st.sampled_from(open_chunks), label="which")
        messages = offsets_plain(queue.messages_of(chunk))
        if data.draw(st.integers(0, 3), label="again") == 3:
            open_chunks.remove(chunk)
            queue.try_again(chunk)
            assert queue.ready
            continue
        count = data.draw(st.integers(1, chunk.count), label="count")
        foretold = queue.progress_without(chunk, count)
        queue.done_first(chunk, count)
        undone -= set(messages[:count])
        assert queue.commit_offset == min(undone, default=total) == foretold
        assert queue.messages == len(undone)
        if not chunk.count:
            open_chunks.remove(chunk)
            queue.done(chunk)  # what is gone is gone
    assert (queue.size, queue.in_flight, queue.ready) == (0, [], False)


def test_what_is_tried_again_comes_first_and_is_the_same_chunk() -> None:
    queue = filled(0, 6)
    first, second, _ = all_chunks(queue, 2)
    queue.put(made_plain(6, 2))

    queue.try_again(second)
    queue.try_again(first)

    for chunk, expected in ((second, [2, 3]), (first, [0, 1])):
        taken = queue.take_chunk(9)
        assert taken is not None
        assert (taken[0], offsets_plain(taken[1])) == (chunk, expected)
    taken = queue.take_chunk(9)
    assert taken is not None
    assert offsets_plain(taken[1]) == [6, 7]


def test_a_part_that_is_done_leaves_the_rest_of_its_chunk() -> None:
    queue = filled(0, 4)
    (chunk,) = all_chunks(queue, 4)

    queue.done_first(chunk, 0)
    queue.done_first(chunk, 3)

    assert (queue.commit_offset, offsets_plain(queue.messages_of(chunk)), chunk.gone) == (3, [3], 3)
    queue.done_first(chunk, 9)
    assert (queue.commit_offset, chunk.count, chunk.gone) == (4, 0, 4)


def test_attempts_are_those_of_the_log_and_of_owners_before_us_and_one_more() -> None:
    queue = ConcurrentQueue(0, runs=[AttemptRun(1, 2, 5)])
    queue.put(made_plain(0, 3, attempts=[2, 0, 16]))

    taken = queue.take_chunk(3)

    assert taken is not None
    assert [message.attempt for message in taken[1]] == [3, 6, 17]


def test_unwanted_messages_are_passed_with_those_before_them() -> None:
    queue = ConcurrentQueue(0, subscription=Subscription("a"))
    queue.put(made_plain(0, 6, tags=["a", "b", "a", "b", "a", "b"]))
    first, second, third = all_chunks(queue, 1)

    queue.done(third)
    queue.done(second)
    assert queue.commit_offset == 0
    queue.done(first)
    assert (queue.commit_offset, queue.size) == (6, 0)


# The span


@pytest.mark.parametrize(("last", "span", "has_room"), [(2000, 2000, True), (2001, 2001, False)])
def test_the_span_is_from_the_first_to_the_last_that_is_not_done(last: int, span: int, has_room: bool) -> None:
    """RocketMQ: strictly more than 2000 stops the pulls."""
    queue = filled(0, last + 1)
    _, *others = all_chunks(queue, 1)
    for chunk in others[:-1]:
        queue.done(chunk)

    assert (queue.messages, queue.span) == (2, span)
    assert queue.has_room(1000, 1 << 30) is has_room


def test_nothing_held_and_what_was_left_out_have_no_span() -> None:
    queue = ConcurrentQueue(0)
    assert queue.span == 0
    queue.put(made_plain(0, 1))
    queue.skip_to(5000)  # nothing wanted lies there

    assert queue.span == 0
    (chunk,) = all_chunks(queue, 1)
    queue.done(chunk)
    assert (queue.span, queue.commit_offset) == (0, 5000)


def test_whoever_waits_for_room_is_told_when_the_first_is_done_or_enough_others_are() -> None:
    told: list[str] = []
    queue = filled(0, 10, max_span=5)
    chunks = all_chunks(queue, 1)
    queue.when_room(100, 1 << 20, lambda: told.append("span"))
    for chunk in chunks[1:5]:
        queue.done(chunk)
    assert told == []
    queue.done(chunks[0])
    assert told == ["span"]

    queue.when_room(3, 1 << 20, lambda: told.append("count"))
    queue.done(chunks[9])
    assert told == ["span"]
    queue.done(chunks[8])
    assert told == ["span", "count"]


# What expired


def test_heads_whose_calls_began_before_a_time_are_expired_up_to_16_messages() -> None:
    queue = filled(0, 40)
    chunks = all_chunks(queue, 5)
    for chunk in chunks:
        chunk.called_at = 100.0
    queue.done(chunks[1])

    assert queue.expired(100.0) == []  # exactly then is not before
    assert queue.expired(100.001) == [(chunks[0], 5), (chunks[2], 5), (chunks[3], 5), (chunks[4], 1)]
    chunks[2].called_at = None
    assert queue.expired(200.0) == [(chunks[0], 5)]
    chunks[0].called_at = 150.0
    assert queue.expired(150.0) == []


# A log that is not what it was


def test_a_cut_through_what_the_listener_has_or_had_is_refused() -> None:
    queue = filled(0, 6)
    first, second, _ = all_chunks(queue, 2)
    queue.done(second)

    assert not queue.cut(3)
    assert not queue.cut(5)
    assert queue.cut(6)
    queue.done(first)
    assert queue.commit_offset == 4


def test_a_cut_behind_what_was_taken_shortens_the_span() -> None:
    queue = filled(0, 10)
    taken = queue.take_chunk(2)
    assert taken is not None

    assert queue.cut(4)

    assert (queue.end_offset, queue.span, queue.messages) == (4, 3, 4)


def test_discarding_leaves_the_progress_and_nothing_to_take() -> None:
    queue = filled(0, 6)
    first, second, third = all_chunks(queue, 2)
    queue.done(first)
    queue.done(third)
    queue.try_again(second)

    queue.discard()

    assert (queue.commit_offset, queue.messages, queue.ready, queue.in_flight) == (2, 0, False, [])
    queue.put(made_plain(2, 4))
    assert [chunk.count for chunk in all_chunks(queue, 3)] == [3, 1]
