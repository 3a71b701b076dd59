"""The in-flight window: which batches may be cut again, which must stay as they are."""

from __future__ import annotations

import pytest

from rmq.client.producer.outbox import Outbox
from rmq.client.producer.window import InFlightWindow, SentBatch, is_temporary
from rmq.wire import errors

OUTBOX = Outbox("orders", 0)


def window_of(count: int) -> tuple[InFlightWindow, list[SentBatch]]:
    window = InFlightWindow()
    return window, [window.add([bytearray(10)], OUTBOX, []) for _ in range(count)]


def numbers(batches: list[SentBatch]) -> list[int]:
    return [batch.sequence for batch in batches]


def test_the_first_number_is_one_and_numbers_ascend() -> None:
    window, batches = window_of(3)

    assert numbers(batches) == [1, 2, 3]
    assert (window.first_unresolved, window.next_sequence, window.span, window.size, window.flying) == (1, 4, 3, 30, 3)


def test_answers_may_come_in_any_order_and_the_first_unresolved_waits_for_all_before_it() -> None:
    window, batches = window_of(3)

    window.resolved(batches[1])
    assert (window.first_unresolved, window.span, len(window)) == (1, 3, 3)
    window.resolved(batches[0])
    assert (window.first_unresolved, window.span, len(window), window.size, window.flying) == (3, 1, 1, 10, 1)


def test_after_a_loss_all_unanswered_are_sent_again_under_their_numbers() -> None:
    window, batches = window_of(4)
    window.resolved(batches[1])

    window.lost()

    assert window.take_back() == []
    assert numbers(window.resend()) == [1, 3, 4]
    assert window.flying == 3


def test_what_a_full_disk_refused_is_cut_anew_with_all_behind_it() -> None:
    window, batches = window_of(3)
    window.resolved(batches[0])
    window.refused(batches[1], errors.DiskFull("full"))
    assert window.take_back() == [], "one is still under way"

    window.refused(batches[2], errors.OutOfSequence("gap"))

    assert numbers(window.take_back()) == [3, 2]
    assert (window.next_sequence, window.span, window.size) == (2, 0, 0)


@pytest.mark.parametrize("error", [errors.Internal("?"), errors.StoreFailed("?")])
def test_what_may_be_stored_in_spite_of_the_refusal_keeps_its_number_and_bytes(error: errors.Refused) -> None:
    window, batches = window_of(2)
    window.refused(batches[0], error)
    window.refused(batches[1], errors.OutOfSequence("gap"))

    assert numbers(window.take_back()) == [2]
    assert window.head is batches[0] and batches[0].refusal is error
    assert numbers(window.resend()) == [1]


def test_one_whose_answer_was_lost_stays_doubtful_when_it_is_refused_later() -> None:
    window, batches = window_of(1)
    window.lost()
    window.resend()

    window.refused(batches[0], errors.DiskFull("full"))

    assert window.take_back() == []


def test_a_gap_proves_that_an_earlier_copy_was_not_stored() -> None:
    window, batches = window_of(2)
    window.lost()
    window.resend()
    window.refused(batches[0], errors.Internal("?"))

    window.refused(batches[1], errors.OutOfSequence("gap"))

    assert numbers(window.take_back()) == [2]


def test_behind_one_that_is_not_stored_nothing_is_doubtful_after_a_loss() -> None:
    window, batches = window_of(3)
    window.refused(batches[0], errors.DiskFull("full"))

    window.lost()

    assert numbers(window.take_back()) == [3, 2, 1]


def test_when_the_broker_says_which_number_is_next_the_line_is_empty_and_goes_on_there() -> None:
    window, batches = window_of(4)
    window.resolved(batches[2])
    window.lost()
    window.resolved(batches[0])

    assert numbers(window.restart(2)) == [4, 2]
    assert (window.next_sequence, window.first_unresolved, window.span, window.size, window.flying, len(window)) == (
        2,
        2,
        0,
        0,
        0,
        0,
    )


def test_the_line_counts_how_often_the_broker_failed_at_a_batch() -> None:
    window, batches = window_of(1)

    for error in (errors.Internal("?"), errors.DiskFull("full"), errors.Internal("?")):
        window.refused(batches[0], error)
        window.resend()

    assert batches[0].defects == 2


def test_temporary_are_the_refusals_that_spend_no_number() -> None:
    temporary = {kind.__name__ for code, kind in errors.WireError.by_code.items() if is_temporary(code)}

    assert temporary == {"OutOfSequence", "DiskFull", "TooManyInFlight", "StoreFailed", "Internal", "ShuttingDown"}


def test_giving_up_returns_what_had_no_answer() -> None:
    window, batches = window_of(3)
    window.resolved(batches[1])

    assert numbers(window.clear()) == [1, 3]
    assert (len(window), window.size, window.flying) == (0, 0, 0)
