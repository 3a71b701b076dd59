"""Bodies carry a time, have the size that was asked for, and differ."""

from __future__ import annotations

import pytest

from rmq.bench.workers.schedule import LEAST, WARM_UP, Bodies, stamp_of


@pytest.mark.parametrize(("asked", "got"), [(100, 100), (1024, 1024), (8, 8), (0, LEAST)])
def test_a_body_has_its_size_and_its_time(asked: int, got: int) -> None:
    body = Bodies(asked).stamped(1_234_567_890_123)

    assert (len(body), stamp_of(body)) == (got, 1_234_567_890_123)


def test_bodies_with_the_same_time_differ() -> None:
    bodies = Bodies(100)

    assert len({bodies.stamped(WARM_UP) for _ in range(1000)}) == 1000
