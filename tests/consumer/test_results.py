"""How an answer of the listener is read: one row for each cell, and the type of each result."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.consumer.listener import (
    ResultType,
    acknowledged,
    failure_of,
    is_success,
    read_concurrent_status,
    read_status,
    result_type,
)
from rmq.wire.model import ConsumeStatus

SUCCESS_RESULTS, SUSPEND_RESULTS = ConsumeStatus.SUCCESS, ConsumeStatus.SUSPEND
COMMIT_RESULTS, ROLLBACK_RESULTS = ConsumeStatus.COMMIT, ConsumeStatus.ROLLBACK
RETRY = ConsumeStatus.RETRY


@pytest.mark.parametrize(
    ("auto_commit", "status", "read", "warning"),
    [
        (True, SUCCESS_RESULTS, COMMIT_RESULTS, None),
        (True, COMMIT_RESULTS, COMMIT_RESULTS, "listener.commits_itself"),
        # RocketMQ commits here; whoever asks for messages again does not want them committed.
        (True, ROLLBACK_RESULTS, SUSPEND_RESULTS, "listener.rolls_back_itself"),
        (True, SUSPEND_RESULTS, SUSPEND_RESULTS, None),
        (False, SUCCESS_RESULTS, SUCCESS_RESULTS, None),
        (False, COMMIT_RESULTS, COMMIT_RESULTS, None),
        (False, ROLLBACK_RESULTS, ROLLBACK_RESULTS, None),
        (False, SUSPEND_RESULTS, SUSPEND_RESULTS, None),
        # In order nothing is given back: the message itself is tried again.
        (True, RETRY, SUSPEND_RESULTS, "listener.asks_to_retry"),
        (False, RETRY, SUSPEND_RESULTS, "listener.asks_to_retry"),
        (True, None, SUSPEND_RESULTS, "listener.returned_nothing"),
        (False, None, SUSPEND_RESULTS, "listener.returned_nothing"),
        (True, "success", SUSPEND_RESULTS, "listener.returned_no_status"),
        (False, 0, SUSPEND_RESULTS, "listener.returned_no_status"),
    ],
)
def test_the_eight_cells_of_status_and_auto_commit(
    auto_commit: bool, status: Any, read: ConsumeStatus, warning: str | None
) -> None:
    reading = read_status(status, auto_commit)

    assert reading.status is read
    assert (reading.warning and reading.warning[0]) == warning


@pytest.mark.parametrize(
    ("status", "error", "timed_out", "expected", "success"),
    [
        (SUCCESS_RESULTS, None, False, ResultType.SUCCESS, True),
        (COMMIT_RESULTS, None, False, ResultType.SUCCESS, True),
        (SUCCESS_RESULTS, None, True, ResultType.TIME_OUT, True),
        (SUSPEND_RESULTS, None, True, ResultType.TIME_OUT, False),
        (SUSPEND_RESULTS, None, False, ResultType.FAILED, False),
        (ROLLBACK_RESULTS, None, False, ResultType.FAILED, False),
        ("done", None, False, ResultType.FAILED, False),
        (None, None, False, ResultType.RETURNED_NULL, False),
        (None, None, True, ResultType.RETURNED_NULL, False),
        (None, ValueError(), False, ResultType.EXCEPTION, False),
        (None, ValueError(), True, ResultType.EXCEPTION, False),
    ],
)
def test_types_of_results(
    status: Any, error: BaseException | None, timed_out: bool, expected: ResultType, success: bool
) -> None:
    assert result_type(status, error, timed_out=timed_out) is expected
    assert is_success(status, error) is success


@pytest.mark.parametrize(
    ("status", "read", "warning"),
    [
        (SUCCESS_RESULTS, SUCCESS_RESULTS, None),
        (RETRY, RETRY, None),
        (SUSPEND_RESULTS, RETRY, "listener.returned_ordered_status"),
        (ROLLBACK_RESULTS, RETRY, "listener.returned_ordered_status"),
        (COMMIT_RESULTS, SUCCESS_RESULTS, "listener.returned_ordered_status"),
        (None, RETRY, "listener.returned_nothing"),
        (True, RETRY, "listener.returned_no_status"),
    ],
)
def test_where_messages_are_finished_in_any_order_an_answer_is_success_or_retry(
    status: Any, read: ConsumeStatus, warning: str | None
) -> None:
    reading = read_concurrent_status(status)

    assert reading.status is read
    assert (reading.warning and reading.warning[0]) == warning


@pytest.mark.parametrize(
    ("ack_index", "done"),
    [(None, 4), (3, 4), (4, 4), (99, 4), (1, 2), (0, 1), (-1, 0), (-9, 0), (True, None), ("1", None), (1.0, None)],
)
def test_an_ack_index_counts_the_messages_up_to_it(ack_index: Any, done: int | None) -> None:
    assert acknowledged(ack_index, 4) == done


class Unreadable(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        (None, ValueError("no such order: 17"), "ValueError: no such order: 17"),
        (None, TimeoutError(), "TimeoutError"),
        (None, Unreadable(), "Unreadable: its text cannot be read"),
        (
            None,
            None,
            "the listener returned nothing; it must return ConsumeStatus.SUCCESS when messages are done",
        ),
        (True, None, "the listener returned a bool, which is not a ConsumeStatus"),
        (0, None, "the listener returned an int, which is not a ConsumeStatus"),
        (SUSPEND_RESULTS, None, "the listener asked for it again"),
        (ROLLBACK_RESULTS, None, "the listener asked for it again"),
        (SUCCESS_RESULTS, None, "the listener asked for it again"),  # with an ack_index before the last
    ],
)
def test_a_failure_tells_whether_the_listener_raised_forgot_to_answer_or_asked_again(
    status: object, error: Exception | None, told: str
) -> None:
    assert failure_of(status, error) == told
