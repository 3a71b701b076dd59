"""A report as text: numbers that can be read, targets with what was found, all in 80 columns."""

from __future__ import annotations

import pytest

from rmq.bench.figures import Figure, Report, Verdict
from rmq.bench.table import as_text, figures_text, found, number, verdicts_text, wanted


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.00012, "0.00012"),
        (0.0456, "0.0456"),
        (0.17, "0.170"),
        (0.9996, "1.00"),
        (5.625, "5.62"),
        (99.94, "99.9"),
        (99.96, "100"),
        (999.6, "1,000"),
        (1234567.8, "1,234,568"),
    ],
)
def test_a_number_has_as_many_digits_as_mean_something(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_figure_is_a_line_with_its_median_its_spread_and_its_durability() -> None:
    figures = [
        Figure("produce.bodies", "send_bodies", "msg/s", "async", [412345.6, 400000.0, 420000.0]),
        Figure("limit.echo", "empty echo", "ms", None, [0.05]),
    ]

    heading, bodies, echo = figures_text(figures).splitlines()

    assert heading.split() == ["WHAT", "DURABILITY", "MEDIAN", "MIN", "MAX", "UNIT"]
    assert bodies.split() == ["send_bodies", "async", "412,346", "400,000", "420,000", "msg/s"]
    assert echo.split() == ["empty", "echo", "-", "0.05", "0.05", "0.05", "ms"]
    assert bodies.index("412,346") + len("412,346") == heading.index("MEDIAN") + len("MEDIAN")  # to the right


def test_a_target_says_what_was_found_what_is_wanted_and_whether_it_is_met() -> None:
    verdicts = [
        Verdict("P1.floor", "of the floor", "x", "async", [0.63, 0.6, 0.66], at_least=0.6),
        Verdict("P7.wake.p99", "wake-up", "ms", "async", [3.5], at_most=3.0),
    ]

    heading, floor, wake = verdicts_text(verdicts).splitlines()

    assert heading.split() == ["TARGET", "WHAT", "FOUND", "WANTED", "RESULT"]
    assert " ".join(floor.split()) == "P1.floor of the floor (async) 0.630 (0.600 to 0.660) x >= 0.6 met"
    assert " ".join(wake.split()) == "P7.wake.p99 wake-up (async) 3.50 ms <= 3 NOT MET"


def test_a_target_that_is_not_shown_says_why_in_the_next_line() -> None:
    text = verdicts_text([Verdict("P1.redis", "against redis", why_not="redis-server is not installed", at_least=4)])

    _, row, why = text.splitlines()

    assert " ".join(row.split()) == "P1.redis against redis - >= 4 not shown"
    assert why.strip() == "not shown: redis-server is not installed"


def test_a_frequent_reason_is_printed_once_below_the_table() -> None:
    verdicts = [Verdict(f"P{number}.x", "words", why_not="too small") for number in range(1, 5)]

    text = verdicts_text([*verdicts, Verdict("P5.x", "words", why_not="no redis")])

    assert text.count("not shown: too small") == 1
    assert text.splitlines()[-1] == "not shown: too small"
    assert text.splitlines()[-2].strip() == "not shown: no redis"


def test_the_only_reason_is_printed_once_too() -> None:
    text = verdicts_text([Verdict("P1.x", "words", why_not="too small"), Verdict("P2.x", "more", why_not="too small")])

    assert text.splitlines()[1:] == [
        "P1.x    words  -      -       not shown",
        "P2.x    more   -      -       not shown",
        "not shown: too small",
    ]


def test_a_verdict_without_a_target_has_no_result() -> None:
    verdict = Verdict("P3.stretch", "half of the floor", samples=[0.4, 0.5])

    assert (found(verdict), wanted(verdict)) == ("0.450 (0.400 to 0.500) x", "-")
    assert verdicts_text([verdict]).splitlines()[1].endswith("-")


def test_every_line_fits_into_80_columns_and_long_texts_are_wrapped() -> None:
    long = "Message objects that were all made before the clock began to run, one call for each batch of them"
    report = Report(
        "produce",
        {
            "load": {"messages": 1_000_000, "keys": False, "queues": 8, "in_flight": 64},
            "rounds": 5,
            "note": long,
            "sizes": {"pings": 1.0},
        },
        [Figure("produce.objects", long, "msg/s", "synced every second", [1234567.0, 1234567.0])],
        [
            Verdict("P6.singles.sync", long, "msg/s", "sync", [1234567.0, 1234568.0], at_least=1_000_000),
            Verdict("P2.socket-to-file.messages_inside", long, samples=[0.61, 0.62], at_least=0.8),
            Verdict("P1.redis", long, why_not=long, at_least=4),
        ],
    )

    text = as_text(report)

    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("produce: messages 1,000,000, queues 8, in flight 64, rounds 5, note Message")
    assert "sizes" not in text  # that is for programs
    assert "began to run" in " ".join(text.split())


def test_a_distribution_is_a_line_with_its_percentiles() -> None:
    spread = {"p50": 0.7, "p90": 0.9, "p99": 2.0, "p99.9": 12.34, "max": 1234.5}

    text = as_text(Report("latency", {"percentiles": {"round_trip.sync": spread, "wake": spread}}))

    assert [line.split() for line in text.splitlines() if "1,234" in line] == [
        ["round", "trip.sync", "0.700", "0.900", "2.00", "12.3", "1,234"],
        ["wake", "0.700", "0.900", "2.00", "12.3", "1,234"],
    ]
    assert "MS, OF ALL ROUNDS    P50    P90" in text


def test_a_report_without_targets_is_its_figures_alone() -> None:
    text = as_text(Report("limit", {}, [Figure("limit.echo", "empty echo", "ms", None, [0.05])]))

    assert text.startswith("limit\n\nWHAT")
    assert "TARGET" not in text
