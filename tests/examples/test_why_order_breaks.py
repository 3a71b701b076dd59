"""``examples/why_order_breaks.py``: each mistake breaks the order, and each right use keeps it."""

from __future__ import annotations

import json
import re

import pytest

from .running import run

pytestmark = pytest.mark.slow


def test_each_mistake_shows_disorder_and_each_right_use_none() -> None:
    printed = run("why_order_breaks")

    broken = [json.loads(steps) for steps in re.findall(r"out of order: (\[.*\])", printed)]
    kept = [json.loads(steps) for steps in re.findall(r"in order:     (\[.*\])", printed)]
    assert len(broken) == len(kept) == 3
    assert all(steps != sorted(steps) for steps in broken)
    assert all(steps == list(range(8)) for steps in kept)
    assert printed.endswith("three mistakes, three ways to keep the order\n")
