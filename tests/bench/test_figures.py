"""Figures, verdicts, turns and percentiles."""

from __future__ import annotations

import pytest

from rmq.bench.figures import Figure, Report, Verdict, interleave, percentile, percentiles, ratio


def figure(key: str, *samples: float) -> Figure:
    return Figure(key, "words", "msg/s", "async", list(samples))


def test_a_figure_is_its_middle_and_its_spread() -> None:
    assert figure("produce.bodies", 5.5, 5.1, 7.0).as_object() == {
        "key": "produce.bodies",
        "meaning": "words",
        "unit": "msg/s",
        "flush": "async",
        "median": 5.5,
        "min": 5.1,
        "max": 7.0,
        "samples": [5.5, 5.1, 7.0],
    }


def test_the_middle_of_two_samples_lies_between_them() -> None:
    assert figure("x", 1.0, 2.0).middle == 1.5


def test_a_figure_without_samples_has_no_numbers() -> None:
    found = figure("x").as_object()

    assert (found["median"], found["min"], found["max"], found["samples"]) == (None, None, None, [])


@pytest.mark.parametrize(
    ("samples", "at_least", "at_most", "met"),
    [
        ([0.5, 0.6, 0.9], 0.6, None, True),  # the median decides
        ([0.5, 0.59, 0.9], 0.6, None, False),
        ([3.0], None, 3.0, True),
        ([3.01], None, 3.0, False),
        ([2.0], 1.0, 3.0, True),
        ([4.0], 1.0, 3.0, False),
        ([4.0], None, None, None),  # there is no target
        ([], 0.6, None, None),  # not shown, which is not the same as met
    ],
)
def test_the_median_decides_whether_a_target_is_met(
    samples: list[float], at_least: float | None, at_most: float | None, met: bool | None
) -> None:
    verdict = Verdict("P1.floor", "words", samples=samples, at_least=at_least, at_most=at_most)

    assert verdict.met is met
    assert verdict.as_object()["met"] is met


def test_a_ratio_is_taken_round_by_round() -> None:
    assert ratio(figure("a", 2.0, 9.0), figure("b", 1.0, 3.0)) == [2.0, 3.0]
    assert ratio(figure("a", 2.0, 9.0), figure("b", 1.0, 3.0), scale=2.0) == [1.0, 1.5]


def test_a_ratio_of_unlike_rounds_is_refused() -> None:
    with pytest.raises(ValueError):
        ratio(figure("a", 1.0), figure("b", 1.0, 2.0))


def test_sides_take_turns_and_every_other_round_is_reversed() -> None:
    taken: list[str] = []
    numbers = iter(range(100))
    sides = [(figure(key), lambda: float(next(numbers))) for key in ("a", "b", "c")]

    interleave(sides, 3, taken.append, settle=lambda: None)

    assert "".join(taken) == "abccbaabc"
    assert [side.samples for side, _ in sides] == [[0.0, 5.0, 6.0], [1.0, 4.0, 7.0], [2.0, 3.0, 8.0]]


def test_the_disk_comes_to_rest_before_every_sample() -> None:
    events: list[str] = []

    def take() -> float:
        events.append("sample")
        return 1.0

    interleave([(figure("a"), take), (figure("b"), take)], 2, lambda _: None, settle=lambda: events.append("rest"))

    assert events == ["rest", "sample"] * 4


def test_a_report_is_one_object() -> None:
    report = Report("limit", {"rounds": 2}, [figure("limit.echo", 1.0)], [Verdict("P5.echo", "words", why_not="no")])

    found = report.as_object()

    assert (found["benchmark"], found["rounds"]) == ("limit", 2)
    assert [one["key"] for one in found["figures"]] == ["limit.echo"]
    assert [(one["key"], one["why_not"]) for one in found["verdicts"]] == [("P5.echo", "no")]


@pytest.mark.parametrize(
    ("count", "share", "rank"),
    [
        (1, 0.5, 1), (1, 0.999, 1), (1, 1.0, 1),
        (2, 0.5, 1), (2, 0.51, 2),
        (100, 0.5, 50), (100, 0.9, 90), (100, 0.99, 99), (100, 0.999, 100),
        (160, 0.99, 159), (300, 0.99, 297), (1000, 0.999, 999), (80_000, 0.999, 79_920),
    ],
)  # fmt: skip
def test_a_percentile_is_the_smallest_value_that_its_share_does_not_exceed(count: int, share: float, rank: int) -> None:
    assert percentile(range(1, count + 1), share) == rank


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.1)])
def test_a_percentile_needs_values_and_a_share_up_to_one(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, share)


def test_values_may_come_in_any_order() -> None:
    assert percentiles([3.0, 1.0, 2.0, 5.0, 4.0]) == {"p50": 3.0, "p90": 5.0, "p99": 5.0, "p99.9": 5.0, "max": 5.0}
