"""T.cli.top.test_view"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.cli.output.render import to_json
from rmq.cli.top import view as figures
from rmq.cli.top.view import LATE_S, view_object, view_of

from ..top_samples import group, lease, sample


def test_the_group_with_the_most_before_it_comes_first() -> None:
    rows = [
        group("b", 5),
        group("shared", model="broadcasting", lag=900),
        group("a", 5),
        group("worst", 70),
        group("idle"),
    ]

    view = view_of(None, sample(groups=rows, behind_s={"worst": 12.5, "b": 3.0}))

    assert [line.group for line in view.groups] == ["worst", "b", "a", "idle", "shared"]
    assert [line.behind_s for line in view.groups] == [12.5, 3.0, None, 0.0, None]


def test_a_broadcasting_group_has_no_lag_of_its_own() -> None:
    (line,) = view_of(None, sample(groups=[group("shared", 900, model="broadcasting")])).groups

    assert (line.lag, line.lag_per_s, line.mode) == (None, None, "broadcasting")


def test_a_group_without_members_has_no_mode() -> None:
    (line,) = view_of(None, sample(groups=[group("old", 3, model=None, members=0)])).groups

    assert (line.mode, line.lag) == (None, 3)


def test_the_busiest_topic_comes_first() -> None:
    before = sample(0.0, topics={"a": (0, 0, 0, 0), "b": (0, 0, 0, 0), "c": (5, 0, 5, 0)})
    after = sample(1.0, topics={"a": (10, 900, 0, 0), "b": (5, 0, 15, 0), "c": (5, 0, 5, 0)})

    view = view_of(before, after)

    assert [line.topic for line in view.topics] == ["b", "a", "c"]
    assert view.topics[1].flow.bytes_in == 900.0


def test_leases_in_trouble_come_first_and_the_others_do_not_move() -> None:
    rows = [
        lease(3, left_s=41.0), lease(2, left_s=59.0), lease(1, state="grace", left_s=4.0),
        lease(0, state="held, retrying offset 7 (attempt 3)"), lease(4, renewed_ago_s=LATE_S + 1, left_s=29.0),
    ]  # fmt: skip

    view = view_of(None, sample(locks=rows))

    assert [line.queue_id for line in view.lease_lines] == [1, 4, 0, 2, 3]
    assert [line.is_well for line in view.lease_lines] == [False, False, False, True, True]
    assert view.lease_states == {"held": 4, "grace": 1, "late": 1, "retrying": 1, "careful": 0}


def test_sync_time_is_shown_next_to_the_wait_for_it() -> None:
    before = sample(0.0)
    after = sample(2.0, flush={"syncs": 30, "total_sync_s": 1.2}, commit={"waited_turns": 20, "total_wait_s": 2.3})

    view = view_of(before, after)

    assert (view.syncs_per_s, round(view.sync_s or 0, 6), round(view.wait_s or 0, 6)) == (10.0, 0.01, 0.03)


def test_the_log_has_no_rate_where_it_may_be_another_one() -> None:
    before, after = sample(0.0, log={"log_written": 9_000}), sample(1.0, log={"log_written": 9_500})

    assert view_of(before, after).log_bytes_per_s == 500.0
    assert view_of(before, sample(1.0, epoch=2, log={"log_written": 9_500})).log_bytes_per_s is None
    assert view_of(None, after).log_bytes_per_s is None


def test_when_the_next_delayed_message_is_due() -> None:
    waiting = {"waiting_messages": 3, "next_due_at": 1_002_500_000}

    assert view_of(None, sample(delays=waiting)).next_delay_s == 2.5
    assert view_of(None, sample(delays={**waiting, "next_due_at": 1})).next_delay_s == 0.0
    assert view_of(None, sample()).next_delay_s is None


def test_troubles_are_listed_in_words() -> None:
    assert view_of(None, sample()).troubles == []
    troubles = view_of(
        None,
        sample(
            broker={"refuses_sends": "the disk has 3 MiB free", "damaged_places": 2}, commit={"failed_writes": 1},
            upkeep={"failures": 4}, serving={"rescued_pulls": 1},
        ),
    ).troubles  # fmt: skip

    assert troubles[0] == "sends are refused: the disk has 3 MiB free"
    assert [text.split(":")[0] for text in troubles[1:]] == [
        "2 damaged places in the log", "1 writes to the log failed since the broker started", "upkeep failed 4 times",
        "1 pulls were woken late",
    ]  # fmt: skip


def test_a_view_without_lease_list_says_why() -> None:
    view = view_of(None, sample(serving={"leases": 5000})._replace(locks=None))

    assert (view.leases, view.lease_lines, view.lease_states) == (5000, [], {})
    assert "more than 2000 leases" in view.troubles[0]


def test_the_view_is_data() -> None:
    before = sample(0.0, groups=[group("billing", 3)], locks=[lease()], topics={"orders": (1, 2, 3, 4)})

    told = json.loads(to_json(view_object(view_of(before, before._replace(at=1.0)))))

    rates = {"messages_in_per_s": 0.0, "bytes_in_per_s": 0.0, "messages_out_per_s": 0.0, "bytes_out_per_s": 0.0}
    assert told["traffic"] == rates
    assert told["topics"] == [{"topic": "orders", **rates}]
    assert told["groups"][0]["lag"] == 3
    assert told["lease_lines"][0]["epoch"] == str(5 << 32)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"), (0, "0"), (999, "999"), (12_345, "12,345"), (99_999, "99,999"), (99_999.7, "100k"),
        (123_456, "123k"), (999_400, "999k"), (999_600, "1.00M"), (4_560_000, "4.56M"), (-123_456, "-123k"),
    ],
)  # fmt: skip
def test_counts(value: float | None, shown: str) -> None:
    assert figures.count(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0, "0/s"), (0.3, "0.3/s"), (9.94, "9.9/s"), (9.96, "10/s"), (12_345, "12,345/s")]
)
def test_rates(value: float | None, shown: str) -> None:
    assert figures.rate(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), (0, "0/s"), (12, "+12/s"), (-0.5, "-0.5/s"), (-40, "-40/s")])
def test_trends_have_a_sign(value: float | None, shown: str) -> None:
    assert figures.trend(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (70_900_000_000, "70.9 GB"), (5e21, "5000 EB")],
)
def test_sizes(value: float | None, shown: str) -> None:
    assert figures.size(value) == shown
    assert figures.size_rate(value) == (shown if value is None else f"{shown}/s")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.00021, "0.21 ms"), (0.0123, "12.3 ms"), (0.9994, "999.4 ms"), (1.25, "1.25 s")],
)
def test_times_of_the_disk(value: float | None, shown: str) -> None:
    assert figures.short_time(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.04, "0.0s"), (12.34, "12.3s"), (130, "2m10s"), (3 * 3600, "3h00m"), (55 * 3600, "2d07h")],
)
def test_ages(value: float | None, shown: str) -> None:
    assert figures.long_time(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), (0.0, "0%"), (0.456, "46%"), (1.9, "190%")])
def test_shares(value: float | None, shown: str) -> None:
    assert figures.percent(value) == shown


@given(st.floats(0, 1e20))
def test_no_number_takes_more_room_than_it_was_given(value: float) -> None:
    assert len(figures.count(value)) <= 7
    assert len(figures.rate(value)) <= 9
    assert len(figures.size(value)) <= 7
