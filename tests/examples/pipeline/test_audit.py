"""``pipeline.audit``: every fault has its name, and what is right has none."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit import (
    IMPOSSIBLE,
    OUT_OF_ORDER,
    REPEAT,
    SCATTERED,
    Fault,
    GroupAudit,
    Place,
    audit_order,
    audit_queue,
    legal_paths,
)
from pipeline.orders import NEXT_STATES

PATHS = legal_paths(NEXT_STATES, "created")


def came(*states: str, queue_id: int = 3) -> list[tuple[str, Place]]:
    return [(state, Place(queue_id, offset)) for offset, state in enumerate(states)]


# Queues


def steps_of(offsets: list[int]) -> list[tuple[int | None, int | None]]:
    """What the job hands over: neighbours that do not follow each other, and both ends."""
    found = sorted(offsets)
    if not found:
        return []
    odd = [(before, after) for before, after in pairwise(found) if after != before + 1]
    return [(None, found[0]), *odd, (found[-1], None)]


@pytest.mark.parametrize(
    ("offsets", "gaps", "repeats"),
    [
        ([4, 5, 6, 7], (), ()),
        ([], ((4, 8),), ()),
        ([5, 6, 7], ((4, 5),), ()),
        ([4, 5], ((6, 8),), ()),
        ([4, 7], ((5, 7),), ()),
        ([4, 4, 5, 6, 7, 7, 7], (), (4, 7, 7)),
        ([5, 5], ((4, 5), (6, 8)), (5,)),
    ],
)
def test_gaps_and_repeats_of_a_queue_are_named(
    offsets: list[int], gaps: tuple[tuple[int, int], ...], repeats: tuple[int, ...]
) -> None:
    found = audit_queue(2, (4, 8), len(offsets), steps_of(offsets))

    assert (found.gaps, found.repeats) == (gaps, repeats)
    assert found.missing == sum(end - start for start, end in gaps)


@given(st.lists(st.integers(10, 30), max_size=30), st.randoms(use_true_random=False))
def test_whatever_is_there_the_gaps_and_repeats_make_up_the_difference(offsets: list[int], random_: object) -> None:
    steps = steps_of(offsets)
    random_.shuffle(steps)  # type: ignore[attr-defined]

    found = audit_queue(0, (10, 31), len(offsets), steps)

    missing = [offset for start, end in found.gaps for offset in range(start, end)]
    assert missing == sorted(set(range(10, 31)) - set(offsets))
    assert sorted([*set(offsets), *found.repeats]) == sorted(offsets)


# Orders


def test_the_paths_of_an_order_are_all_its_histories_so_far() -> None:
    assert [" ".join(path) for path in PATHS] == [
        "created",
        "created paid",
        "created cancelled",
        "created paid packed",
        "created paid cancelled",
        "created paid packed shipped",
        "created paid packed shipped delivered",
    ]


@pytest.mark.parametrize("path", PATHS)
def test_an_order_that_went_through_its_states_has_no_fault(path: tuple[str, ...]) -> None:
    assert audit_order("o-1", came(*path), PATHS) == []


def test_a_repeat_is_named_with_both_places_and_is_no_disorder() -> None:
    assert audit_order("o-1", came("created", "paid", "packed", "paid"), PATHS) == [
        Fault(REPEAT, "o-1", "paid came again: first at queue 3 offset 1, again at queue 3 offset 3")
    ]


def test_two_states_that_are_swapped_are_named_with_their_places() -> None:
    assert audit_order("o-1", came("created", "paid", "shipped", "packed", "delivered"), PATHS) == [
        Fault(
            OUT_OF_ORDER,
            "o-1",
            "shipped (queue 3 offset 2) came before packed (queue 3 offset 3): "
            "came as created -> paid -> shipped -> packed -> delivered",
        )
    ]


def test_a_state_that_comes_early_is_named_against_each_it_passed() -> None:
    (fault,) = audit_order("o-1", came("packed", "created", "paid"), PATHS)

    assert fault.kind == OUT_OF_ORDER
    assert fault.text.startswith(
        "packed (queue 3 offset 0) came before created (queue 3 offset 1); "
        "packed (queue 3 offset 0) came before paid (queue 3 offset 2): "
    )


@pytest.mark.parametrize(
    "states", [("paid",), ("created", "packed"), ("created", "paid", "packed", "cancelled"), ("created", "lost")]
)
def test_states_that_make_no_path_in_any_order_are_impossible(states: tuple[str, ...]) -> None:
    (fault,) = audit_order("o-1", came(*states), PATHS)

    assert fault == Fault(IMPOSSIBLE, "o-1", f"no order can go through {' -> '.join(states)}")


def test_an_order_in_two_queues_is_scattered_also_if_its_states_are_right() -> None:
    (fault,) = audit_order("o-1", [("created", Place(0, 5)), ("paid", Place(1, 2))], PATHS)

    assert fault == Fault(
        SCATTERED,
        "o-1",
        "the events of one order lie in several queues: created at queue 0 offset 5, paid at queue 1 offset 2",
    )


def test_an_order_may_have_several_faults() -> None:
    faults = audit_order("o-1", came("created", "packed", "paid", "created"), PATHS)

    assert [fault.kind for fault in faults] == [REPEAT, OUT_OF_ORDER]


# Groups


@pytest.mark.parametrize(("consumed", "dead", "nowhere"), [(99, 1, 0), (99, 0, 1), (0, 0, 100)])
def test_what_a_group_passed_without_finishing_or_burying_it_is_unaccounted(
    consumed: int, dead: int, nowhere: int
) -> None:
    group = GroupAudit(
        "g", 120, 0, wanted=100, consumed=consumed, repeated=0, retried=0, dead_lettered=dead, disordered=0
    )

    assert group.unaccounted == nowhere
