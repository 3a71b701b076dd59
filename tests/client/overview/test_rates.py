from __future__ import annotations

import pytest

from rmq.client.overview.rates import Span, TopicRates, grown, per
from rmq.client.overview.sample import MOST_TOPICS

from ...cli.top_samples import group, sample


@pytest.mark.parametrize(("before", "after", "growth"), [(0, 5, 5), (5, 5, 0), (5, 12, 7), (100, 3, 3)])
def test_a_total_that_fell_has_begun_anew(before: int, after: int, growth: int) -> None:
    assert grown(before, after) == growth


@pytest.mark.parametrize(
    ("amount", "each", "quotient"), [(10, 2.0, 5.0), (None, 2.0, None), (10, 0.0, None), (0, 1.0, 0.0)]
)
def test_a_quotient_needs_both_sides(amount: float | None, each: float, quotient: float | None) -> None:
    assert per(amount, each) == quotient


def test_a_rate_is_what_a_total_grew_by_over_the_time_between_the_looks() -> None:
    before = sample(10.0, traffic={"messages_in": 100})
    after = sample(12.0, traffic={"messages_in": 150})

    assert Span(before, after).rate("traffic", "messages_in") == 25.0


def test_before_the_second_look_no_rate_is_known() -> None:
    span = Span(None, sample(10.0, topics={"orders": (1, 2, 3, 4)}))

    assert span.rate("traffic", "messages_in") is None
    assert span.mean("flush", "total_sync_s", "syncs") is None
    assert span.topic("orders") == TopicRates()
    assert span.trend("billing", 7) is None


@pytest.mark.parametrize(
    ("up_s", "elapsed_s"),
    [(2.0, 2.0), (100.0, 10.0)],  # it is up for less than the time between the looks; its clock is not ours
)
def test_of_a_broker_that_was_started_again_all_is_growth_since_it_is_up(up_s: float, elapsed_s: float) -> None:
    before = sample(10.0, epoch=1, traffic={"messages_in": 100}, topics={"orders": (100, 0, 0, 0)})
    after = sample(20.0, epoch=2, up_s=up_s, traffic={"messages_in": 300}, topics={"orders": (300, 0, 0, 0)})

    span = Span(before, after)

    assert span.is_restart
    assert span.rate("traffic", "messages_in") == 300 / elapsed_s
    assert span.topic("orders").messages_in == 300 / elapsed_s


def test_another_broker_at_the_same_address_counts_as_started_again() -> None:
    after = sample(11.0, log={"store_id": "bb"}, up_s=1.0)

    assert Span(sample(10.0), after).is_restart


def test_two_looks_at_the_same_moment_have_no_rate() -> None:
    assert Span(sample(10.0), sample(10.0)).rate("traffic", "messages_in") is None


def test_a_mean_is_of_what_was_counted_between_the_looks() -> None:
    before = sample(10.0, flush={"syncs": 10, "total_sync_s": 1.0})
    after = sample(11.0, flush={"syncs": 14, "total_sync_s": 3.0})

    assert Span(before, after).mean("flush", "total_sync_s", "syncs") == 0.5
    assert Span(after, after._replace(at=12.0)).mean("flush", "total_sync_s", "syncs") is None


@pytest.mark.parametrize(
    ("was", "now", "rate"),
    [((100, 0, 50, 0), (120, 0, 50, 0), 10.0), (None, (120, 0, 0, 0), 60.0), ((100, 0, 0, 0), (20, 0, 0, 0), 10.0)],
)  # one that goes on; a new one; one that was deleted and made again
def test_the_rate_of_a_topic(
    was: tuple[int, int, int, int] | None, now: tuple[int, int, int, int], rate: float
) -> None:
    before = sample(10.0, topics={"orders": was} if was else {})

    assert Span(before, sample(12.0, topics={"orders": now})).topic("orders").messages_in == rate


def test_a_topic_that_was_perhaps_not_told_before_has_no_rate_yet() -> None:
    others = {f"t{i}": (9, 0, 0, 0) for i in range(MOST_TOPICS)}
    after = sample(12.0, topics={"orders": (50_000, 0, 0, 0), **others})

    assert Span(sample(10.0, topics=others), after).topic("orders") == TopicRates()
    assert Span(sample(10.0, topics={"t1": (9, 0, 0, 0)}), after).topic("orders").messages_in == 25_000.0


@pytest.mark.parametrize(("was", "now", "trend"), [(100, 300, 100.0), (300, 100, -100.0), (7, 7, 0.0)])
def test_the_trend_of_a_group_is_how_its_lag_changes(was: int, now: int, trend: float) -> None:
    before = sample(10.0, groups=[group("other", 9), group("billing", was)])

    assert Span(before, sample(12.0)).trend("billing", now) == trend
    assert Span(before, sample(12.0)).trend("new", now) is None


def test_a_lag_is_no_total_and_has_its_trend_over_a_restart_too() -> None:
    before = sample(10.0, epoch=1, groups=[group("billing", 100)])

    assert Span(before, sample(20.0, epoch=2, up_s=1.0)).trend("billing", 50) == -5.0


def test_a_number_that_a_broker_does_not_tell_counts_as_0() -> None:
    assert Span(sample(10.0), sample(11.0)).rate("traffic", "unheard_of") == 0.0
    assert Span(sample(10.0), sample(11.0)).rate("nothing", "unheard_of") == 0.0
