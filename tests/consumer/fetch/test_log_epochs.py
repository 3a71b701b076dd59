"""The log epochs of what was fetched, against one number a message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer.fetch.process_queue import MOST_RUNS, UNKNOWN, LogEpochs


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
