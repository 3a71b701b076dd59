"""The limits of the machine are all measured, once a round."""

from __future__ import annotations

import pytest

from rmq.bench.loads import limit
from rmq.bench.options import Load, Options


class Told:
    """What a progress bar would show."""

    def __init__(self) -> None:
        self.expected = 0
        self.steps: list[str] = []

    def expect(self, more: int) -> None:
        self.expected += more

    def __call__(self, what: str) -> None:
        self.steps.append(what)


@pytest.mark.slow
def test_every_limit_has_a_figure() -> None:
    told = Told()

    report = limit.measure(Load(messages=1_000, size=50, batch=100), Options(rounds=1, quick=True), told)

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
    assert told.expected == len(told.steps) == 8
