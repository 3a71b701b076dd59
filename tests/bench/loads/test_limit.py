"""The limits of the machine are all measured, once a round."""

from __future__ import annotations

import pytest

from rmq.bench.loads import limit
from rmq.bench.options import Load, Options

from rigs.bench import Steps


@pytest.mark.slow
def test_every_limit_has_a_figure() -> None:
    steps = Steps()

    report = limit.measure(Load(messages=1_000, size=50, batch=100), Options(rounds=1, quick=True), steps)

    assert {figure.key: (figure.unit, figure.flush, len(figure.samples)) for figure in report.figures} == {
        "limit.floor.produce": ("msg/s", "async", 1),
        "limit.floor.consume": ("msg/s", "async", 1),
        "limit.floor.singles": ("msg/s", "async", 1),
        "limit.floor.produce.1k": ("msg/s", "async", 1),
        "limit.floor.socket_to_file": ("msg/s", "async", 1),
        "limit.floor.socket_to_file.1k": ("msg/s", "async", 1),
        "limit.fdatasync": ("ms", "sync", 1),
        "limit.echo": ("ms", None, 1),
    }
    assert min(figure.middle for figure in report.figures) > 0
    assert report.verdicts == []
    assert steps.expected == len(steps.taken) == 8
