"""A side that fails does not end the others."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from rmq.bench.attempt import Attempt
from rmq.bench.figures import Figure, interleave
from rmq.bench.processes import BenchError


def side(*found: float | Exception) -> Attempt:
    left: Iterator[float | Exception] = iter(found)

    def take() -> float:
        sample = next(left)
        if isinstance(sample, Exception):
            raise sample
        return sample

    return Attempt(Figure("any", "", "msg/s"), take)


def test_the_others_go_on_and_what_failed_is_not_tried_again() -> None:
    good, bad = side(1.0, 2.0, 3.0), side(5.0, BenchError("no room"))

    interleave([good.side, bad.side], 3, lambda what: None)

    assert (good.figure.samples, good.why_not) == ([1.0, 2.0, 3.0], "")
    assert bad.why_not == "no room"
    assert [math.isnan(sample) for sample in bad.figure.samples] == [False, True, True]


def test_a_defect_is_no_failure_of_a_side() -> None:
    with pytest.raises(ZeroDivisionError):
        interleave([side(ZeroDivisionError()).side], 1, lambda what: None)
