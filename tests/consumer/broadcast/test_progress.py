"""The progress of a broadcasting member: what counts in which store, and what came into being later."""

from __future__ import annotations

from rmq.consumer.broadcast.offsets_file import OffsetsContent, QueueProgress
from rmq.consumer.broadcast.progress import OF_ANOTHER_LOG, LocalProgress, in_copy
from rmq.wire.model import MessageQueue

QUEUE = MessageQueue("t", 0)
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
