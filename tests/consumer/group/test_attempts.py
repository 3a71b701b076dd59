"""Counts of failed deliveries, each message with its own; and what is feared of a queue whose owners were lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer.group.assignment import Suspicion, exhausted, failed_runs, runs_of
from rmq.wire.batch import batch
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.core import NO_OFFSET, Grant

from ..fetch.test_process_queue import made


def messages(*attempts: int, base: int = 0) -> list[StoredMessage]:
    made_of: batch.Batch = made(base, len(attempts))
    picked = made_of.pick(list(range(len(attempts))))
    for message, attempt in zip(picked, attempts, strict=True):
        message.attempt = attempt
    return picked


def test_a_grant_tells_of_all_messages_or_of_the_first_only() -> None:
    runs = [AttemptRun(7, 9, 1), AttemptRun(3, 4, 2)]

    assert runs_of(Grant(0)) == []
    assert runs_of(Grant(0, attempt_offset=5, attempts=2)) == [AttemptRun(5, 6, 2)]
    assert runs_of(Grant(0, attempt_offset=3, attempts=2, runs=runs)) == [AttemptRun(3, 4, 2), AttemptRun(7, 9, 1)]


@pytest.mark.parametrize(
    ("attempts", "runs"),
    [
        ([1], [(0, 1, 1)]),
        ([1, 1, 1], [(0, 3, 1)]),
        ([3, 1, 1], [(0, 1, 3), (1, 3, 1)]),
        ([1, 2, 1], [(0, 1, 1), (1, 2, 2), (2, 3, 1)]),
    ],
)
def test_neighbours_that_failed_equally_often_make_one_run(
    attempts: list[int], runs: list[tuple[int, int, int]]
) -> None:
    assert failed_runs(messages(*attempts)) == [AttemptRun(*run) for run in runs]


def test_a_run_goes_over_what_other_tags_left_out() -> None:
    first, _, third = messages(2, 9, 2)

    assert failed_runs([first, third]) == [AttemptRun(0, 3, 2)]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=50))
def test_runs_say_of_each_message_what_it_says_itself(attempts: list[int]) -> None:
    runs = failed_runs(messages(*attempts))

    assert [run.attempts for run in runs for _ in range(run.from_offset, run.end_offset)] == attempts


@pytest.mark.parametrize(("most", "dead"), [(-1, []), (1, [0, 1, 2, 3]), (3, [1, 2]), (4, [2]), (5, [])])
def test_exhausted_is_what_was_delivered_as_often_as_it_may_be(most: int, dead: list[int]) -> None:
    assert [message.queue_offset for message in exhausted(messages(1, 3, 4, 2), most)] == dead


def test_nothing_is_feared_of_a_queue_whose_owners_gave_it_back() -> None:
    assert Suspicion.of(Grant(0)) is None


@pytest.mark.parametrize(
    ("abandoned", "until", "queue_offset", "careful", "convicted"),
    [
        (1, NO_OFFSET, 7, False, False),
        (2, 20, 7, True, False),
        (2, 20, 19, True, False),
        (2, 20, 20, False, False),
        (0, 20, 7, True, False),  # the suspect was another, and what was fetched with it is not done yet
        (4, 20, 7, True, False),
        (5, 20, 7, True, True),
        (6, 20, 7, True, True),
    ],
)
def test_care_is_taken_as_far_as_the_broker_says_and_a_verdict_comes_with_the_fifth_lost_owner(
    abandoned: int, until: int, queue_offset: int, careful: bool, convicted: bool
) -> None:
    suspicion = Suspicion.of(Grant(0, abandoned=abandoned, suspect_offset=7, careful_until=until))

    assert suspicion is not None
    assert suspicion.careful(queue_offset) is careful
    assert suspicion.convicted(5) is convicted


def test_without_its_suspect_a_queue_is_still_delivered_with_care() -> None:
    suspicion = Suspicion(5, 7, 20).acquitted()

    assert not suspicion.convicted(5)
    assert suspicion.careful(8)
    assert suspicion.suspect_offset == NO_OFFSET
