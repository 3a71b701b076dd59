"""The benchmarks there are."""

from __future__ import annotations

import dataclasses

import pytest

from rmq.bench.catalog import CATALOG, Benchmark, quickly
from rmq.bench.loads import Load


def test_every_benchmark_of_the_command_is_there() -> None:
    assert list(CATALOG) == [
        "produce", "consume", "end-to-end", "latency", "failover", "scale", "recovery", "limit",
    ]  # fmt: skip


@pytest.mark.parametrize("benchmark", CATALOG.values(), ids=list(CATALOG))
def test_what_a_benchmark_heeds_is_of_a_load(benchmark: Benchmark) -> None:
    assert set(benchmark.heeds) <= {field.name for field in dataclasses.fields(Load)}


@pytest.mark.parametrize("benchmark", CATALOG.values(), ids=list(CATALOG))
def test_what_a_benchmark_does_not_heed_is_not_its_own_either(benchmark: Benchmark) -> None:
    usual = Load().as_object()
    own = {name for name, value in benchmark.load.as_object().items() if value != usual[name]}

    assert own <= set(benchmark.heeds)


def test_a_quick_load_is_the_same_with_few_messages() -> None:
    assert quickly(Load(size=1024, tags=3)) == Load(20_000, size=1024, tags=3)
    assert quickly(Load(100)) == Load(100)
