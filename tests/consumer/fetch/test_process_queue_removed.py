"""Messages that leave the line in another way than by the listener: the others stay, and progress is exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.tag_filter import Subscription
from rmq.wire.protocol.hello import AttemptRun

from .test_process_queue import made, offsets


def test_each_message_goes_on_counting_where_its_run_says() -> None:
    queue = ProcessQueue(0, runs=[AttemptRun(4, 6, 1), AttemptRun(1, 3, 4)])
    queue.put(made(0, 5))
    queue.put(made(5, 3))

    assert [message.attempt for message in queue.take(9)] == [1, 5, 5, 1, 2, 2, 1, 1]


def test_a_run_that_goes_over_several_readings_counts_for_all_of_them() -> None:
    queue = ProcessQueue(0, runs=[AttemptRun(0, 700, 2)])
    queue.put(made(0, 1000))

    taken = [queue.take(1)[0].attempt for _ in range(1000)]

    assert taken == [3] * 700 + [1] * 300


def test_a_run_below_what_is_read_is_forgotten() -> None:
    queue = ProcessQueue(5, runs=[AttemptRun(1, 3, 7), AttemptRun(6, 7, 1)])
    queue.put(made(5, 3))

    assert [message.attempt for message in queue.take(9)] == [1, 2, 1]


def test_a_removed_message_in_the_middle_is_passed_with_the_one_before_it() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 4))
    batch = queue.take(3)
    queue.again(3)

    assert queue.commit_offset_without([batch[1]]) == 0
    queue.remove([batch[1]])
    assert (queue.commit_offset, queue.messages) == (0, 3)
    assert offsets(queue.take(1)) == [0]
    queue.commit()
    assert queue.commit_offset == 2
    assert offsets(queue.take(5)) == [2, 3]
    queue.commit()
    assert (queue.commit_offset, queue.messages, queue.size) == (4, 0, 0)


def test_removed_messages_at_the_front_are_progress_at_once() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 4))
    batch = queue.take(3)
    queue.again(3)

    assert queue.commit_offset_without(batch[:2]) == 2
    queue.remove(batch[:2])
    assert queue.commit_offset == 2
    assert offsets(queue.take(5)) == [2, 3]


def test_what_is_in_flight_before_a_removed_message_keeps_the_progress_back() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 3))
    queue.take(1)  # not committed
    failed = queue.take(1)
    queue.again(1)

    assert queue.commit_offset_without(failed) == 0
    queue.remove(failed)
    assert (queue.commit_offset, offsets(queue.in_flight)) == (0, [0])
    queue.commit()
    assert queue.commit_offset == 2


def test_the_last_of_a_batch_may_be_removed_and_its_memory_goes_with_it() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 2))
    queue.put(made(2, 2))
    messages = queue.take(4)
    queue.again(4)

    queue.remove(messages[:2])
    assert queue.size == made(2, 2).header.size
    queue.remove(messages[2:])
    assert (queue.size, queue.messages, queue.commit_offset) == (0, 0, 4)


def test_what_the_log_lost_is_not_held_any_more() -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 3))
    messages = queue.take(3)
    queue.again(3)

    assert queue.cut(1)
    queue.put(made(1, 2))  # others with the same offsets
    assert queue.still_held(messages) == messages[:1]
    queue.remove(messages)
    assert offsets(queue.take(5)) == [1, 2]


@pytest.mark.parametrize("size", [1, 3, 7])
@given(data=st.data())
def test_any_removals_leave_the_others_in_order_and_the_progress_before_the_first_of_them(
    size: int, data: st.DataObject
) -> None:
    tags = data.draw(st.lists(st.sampled_from(["a", "a", "b"]), min_size=1, max_size=40))
    cut = data.draw(st.integers(1, len(tags)))
    queue = ProcessQueue(0, subscription=Subscription("a"))
    queue.put(made(0, cut, tags[:cut]))
    if tags[cut:]:
        queue.put(made(cut, len(tags) - cut, tags[cut:]))
    left = [offset for offset, tag in enumerate(tags) if tag == "a"]
    seen: list[int] = []

    while batch := queue.take(size):
        gone = data.draw(st.lists(st.sampled_from(batch), unique_by=id))
        if data.draw(st.booleans()) and gone:
            queue.again(len(batch))
            expected = queue.commit_offset_without(gone)
            queue.remove(gone)
            assert queue.commit_offset >= expected
            left = [offset for offset in left if offset not in offsets(gone)]
        else:
            seen += offsets(batch)
            if data.draw(st.booleans()):
                queue.commit()
        unseen = [offset for offset in left if offset not in seen]
        assert queue.commit_offset <= (unseen[0] if unseen else len(tags))
    queue.commit()

    assert seen == left
    assert (queue.commit_offset, queue.messages, queue.size) == (len(tags), 0, 0)
