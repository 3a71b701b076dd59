"""What several measurements come to."""

from __future__ import annotations

import pytest

from rmq.cli.bench_figures import Figure, as_table


def test_a_figure_is_its_worst_its_middle_and_its_best() -> None:
    figure = Figure("kill", "from here to there", 10.0, [5.5, 5.1, 7.0])

    assert figure.as_object() == {
        "figure": "kill",
        "max_s": 7.0,
        "median_s": 5.5,
        "min_s": 5.1,
        "spread_s": 1.9,
        "count": 3,
        "limit_s": 10.0,
        "held": True,
    }


@pytest.mark.parametrize(("limit_s", "held"), [(2.0, True), (1.999, False), (None, True)])
def test_the_worst_alone_decides_whether_a_limit_held(limit_s: float | None, held: bool) -> None:
    assert Figure("stop", "", limit_s, [0.1, 0.1, 2.0]).held is held


def test_the_table_says_where_a_limit_did_not_hold_and_what_each_figure_means() -> None:
    figures = [Figure("kill", "after a kill", 10.0, [5.0]), Figure("stop", "after a stop", 1.0, [1.5])]

    heading, kill, stop, *meanings = as_table(figures).splitlines()

    assert heading.split() == ["FIGURE", "COUNT", "MAX_S", "MEDIAN_S", "MIN_S", "SPREAD_S", "LIMIT_S", "HELD"]
    assert kill.split() == ["kill", "1", "5.0", "5.0", "5.0", "0.0", "10.0", "yes"]
    assert stop.split()[-1] == "NO"
    assert meanings == ["kill: after a kill", "stop: after a stop"]
