"""Every member computes the same shares: disjoint, complete, and as equal as can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer.allocation import evenly
from rmq.wire.model import MessageQueue

from support.batches import quick


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("orders", i) for i in range(count)]


def ids(of: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in of]


def test_ten_queues_over_four_members_are_runs_of_three_three_two_two() -> None:
    members = ["a", "b", "c", "d"]

    shares = [ids(evenly(queues(10), members, member)) for member in members]

    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]


def test_more_members_than_queues_leave_the_last_ones_without() -> None:
    shares = [ids(evenly(queues(2), ["a", "b", "c"], member)) for member in ("a", "b", "c")]

    assert shares == [[0], [1], []]


def test_who_is_not_in_the_list_gets_nothing() -> None:
    assert evenly(queues(4), ["a", "b"], "c") == []
    assert evenly(queues(4), [], "c") == []


@quick
@given(
    st.integers(0, 40),
    st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=12, unique=True),
    st.randoms(use_true_random=False),
)
def test_shares_are_disjoint_cover_everything_and_differ_by_at_most_one(count: int, members: list[str], chance) -> None:  # type: ignore[no-untyped-def]
    mixed, shuffled = queues(count), list(members)
    chance.shuffle(mixed)
    chance.shuffle(shuffled)

    shares = [evenly(queues(count), members, member) for member in members]

    assert sorted(queue for share in shares for queue in share) == queues(count)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    # Neither the order of the queues nor that of the members changes the answer.
    assert [evenly(mixed, shuffled, member) for member in members] == shares
