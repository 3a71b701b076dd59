"""What the benchmarks printed is read back."""

from __future__ import annotations

from typing import Any

import pytest

from findings import NotAReport, is_target, read, score, whose
from rmq.bench.figures import Figure, Verdict

from rigs.bench_results import everything


def test_figures_and_targets_are_what_they_were() -> None:
    found = read(everything())

    assert [run.command for run in found.runs][:2] == ["rmq-bench produce --size 100", "rmq-bench latency"]
    assert found.runs[0].figures[0].middle == 100.0
    assert found.runs[0].about == {"messages": 1000, "size": 100, "rounds": 3}
    assert found.runs[1].percentiles["wake"] == {"p50": 0.4, "p99": 6.0}
    assert [verdict.met for verdict in found.verdicts] == [True, True, None, False, True, False, None]


def test_the_command_that_repeats_a_target_is_that_of_its_run() -> None:
    found = read(everything())

    assert found.command_of(found.verdicts[3]) == "rmq-bench latency"
    assert found.command_of(Verdict("P4", "-", why_not="no benchmark was run for it")) == ""


def test_without_a_list_of_all_targets_it_is_that_of_the_runs() -> None:
    printed = everything()
    del printed["verdicts"]

    assert read(printed).verdicts == read(everything()).verdicts


def test_key_and_durability_show_whose_a_figure_is() -> None:
    figures = read(everything()).runs[0].figures

    assert [whose(figure) for figure in figures] == ["rmq", "rmq", "machine", "peer"]
    assert whose(Figure("limit.floor.produce", "floor", "msg/s", "async")) == "machine"


def test_a_peer_that_is_ahead_is_found() -> None:
    assert [(ours.key, theirs.key) for _, ours, theirs in read(everything()).peers_ahead()] == [
        ("produce.messages", "produce.redis")
    ]


@pytest.mark.parametrize(
    ("verdict", "value", "expected"),
    [
        (Verdict("P", "-", at_least=4.0), 2.0, 0.5),
        (Verdict("P", "-", at_most=4.0), 2.0, 2.0),
        (Verdict("P", "-", at_least=1.0, at_most=4.0), 8.0, 0.5),
    ],
)
def test_a_score_says_how_much_better_than_wanted_a_value_is(verdict: Verdict, value: float, expected: float) -> None:
    assert score(verdict, value) == expected


def test_a_score_of_zero_seconds_is_finite() -> None:
    assert score(Verdict("P", "-", at_most=4.0), 0.0) > 1e6


def test_a_verdict_is_a_target_if_it_has_a_bound_or_no_samples() -> None:
    assert is_target(Verdict("P4", "-", why_not="no benchmark was run for it"))
    assert not is_target(Verdict("note", "-", samples=[1.0]))


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ({"benchmark": "produce"}, "not what `rmq-bench all --json` prints"),
        ({"benchmark": "all"}, "not what `rmq-bench all --json` prints"),
        ({"benchmark": "all", "reports": [], "quick": True}, "numbers mean nothing"),
    ],
)
def test_other_json_and_quick_runs_are_refused(printed: dict[str, Any], why: str) -> None:
    with pytest.raises(NotAReport, match=why):
        read(printed)
