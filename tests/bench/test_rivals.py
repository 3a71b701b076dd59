"""A rival that failed does not end the run."""

from __future__ import annotations

from rmq.bench.processes import BenchError
from rmq.bench.rivals import Tried


def test_a_failed_attempt_is_not_repeated_and_keeps_its_reason() -> None:
    samples = iter([3.0])

    def take() -> float:
        for sample in samples:
            return sample
        raise BenchError("it fell over")

    tried = Tried(take)

    assert (tried(), tried.why_not) == (3.0, "")
    assert (tried(), tried(), tried.why_not) == (0.0, 0.0, "it fell over")
