"""Which plots a report has, and what is in them."""

from __future__ import annotations

import re

from charts import plots
from findings import read

from rigs.bench_results import everything


def test_there_is_a_plot_of_the_targets_and_one_of_each_command_that_found_something() -> None:
    made = plots(read(everything()))

    assert [plot.name for plot in made] == [
        "bench-targets.svg", "bench-produce-size-100.svg", "bench-latency.svg", "bench-scale.svg",
    ]  # fmt: skip


def test_the_targets_show_numbers_units_and_what_is_missing() -> None:
    svg = plots(read(everything()))[0].svg

    assert "P1.floor, of the floor (async)" in svg
    assert "0.700, wanted &gt;= 0.5" in svg
    assert "6.00 ms, wanted &lt;= 3 ms" in svg
    assert "not shown: nats-server is not installed" in svg


def test_bars_say_how_durable_they_are() -> None:
    svg = plots(read(everything()))[1].svg

    assert "bodies, by send_bodies (async)" in svg
    assert "XADD | MAXLEN (appendonly, each second)" in svg
    assert "messages a second, median and spread" in svg


def test_latencies_are_lines_over_percentiles_and_growth_is_relative_to_the_smallest() -> None:
    _, _, latency, scale = plots(read(everything()))

    assert re.findall(r">(p50|p99|send to listener \(async\)|behind)<", latency.svg) == [
        "send to listener (async)", "p50", "p99",
    ]  # fmt: skip
    assert ">queues (async)<" in scale.svg
    assert ">0.900<" in scale.svg
    assert "at least 0.8 is wanted" in scale.svg


def test_without_a_run_there_is_no_plot() -> None:
    assert plots(read({"benchmark": "all", "reports": []})) == []
