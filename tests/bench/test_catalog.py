"""The benchmarks there are."""

from __future__ import annotations

import dataclasses
import importlib
import inspect

import pytest

from rmq.bench.figures import Verdict
from rmq.bench.options import Counted, Load, Options
from rmq.bench.suite import CATALOG, TOO_SMALL, Benchmark, quickly, unjudged


def test_every_benchmark_of_the_command_is_there() -> None:
    assert list(CATALOG) == [
        "produce", "consume", "end-to-end", "latency", "failover", "scale", "recovery", "limit", "peers",
    ]  # fmt: skip


@pytest.mark.parametrize("benchmark", CATALOG.values(), ids=list(CATALOG))
def test_what_a_benchmark_heeds_is_of_a_load(benchmark: Benchmark) -> None:
    assert set(benchmark.heeds) <= {field.name for field in dataclasses.fields(Load)}


@pytest.mark.parametrize("benchmark", CATALOG.values(), ids=list(CATALOG))
def test_what_a_benchmark_does_not_heed_is_not_its_own_either(benchmark: Benchmark) -> None:
    usual = Load().as_object()
    own = {name for name, value in benchmark.load.as_object().items() if value != usual[name]}

    assert own <= set(benchmark.heeds)


def test_a_quick_load_is_the_same_with_few_messages_and_processes() -> None:
    assert quickly(Load(size=1024, tags=3)) == Load(10_000, size=1024, tags=3)
    assert quickly(Load(100)) == Load(100)
    assert quickly(Load(consumers=3, producers=9)) == Load(10_000, consumers=2, producers=2)


def test_after_a_quick_run_no_target_is_met_and_a_better_reason_is_kept() -> None:
    judged = unjudged(Verdict("P1.floor", "words", samples=[1.0], at_least=0.6))

    assert (judged.met, judged.why_not) == (None, TOO_SMALL)
    assert unjudged(Verdict("P1.redis", "words", why_not="no redis")).why_not == "no redis"


@pytest.mark.parametrize("benchmark", CATALOG.values(), ids=list(CATALOG))
def test_every_benchmark_can_be_measured(benchmark: Benchmark) -> None:
    module = importlib.import_module(benchmark.module)

    assert list(inspect.signature(module.measure).parameters)[:3] == ["load", "options", "steps"]


def test_of_a_load_a_report_tells_what_makes_a_difference() -> None:
    benchmark = CATALOG["recovery"]

    report = benchmark.measure(Load(size=7), Options(broker="127.0.0.1:1"), Counted(lambda done, what: None))

    assert report.about["load"] == {"size": 7, "batch": 500, "queues": 8, "in_flight": 64}
    assert (report.about["flush"], report.about["rounds"]) == ("async", 5)
