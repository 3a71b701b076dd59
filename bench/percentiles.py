"""How long things took, as a distribution. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


def percentile(ordered: Sequence[float], share: float) -> float:
    """
    The smallest value that at least this share of all values does not exceed: one that was measured, never between two.

    Raises:
        ValueError: there are no values, or the share is not above 0 and at most 1.
    """
    if not ordered or not 0 < share <= 1:
        raise ValueError(f"no percentile of {len(ordered)} values at {share}")
    # Less than a rounding error above a whole number is that number: 0.99 of 100 values are 99 of them.
    return ordered[math.ceil(share * len(ordered) - 1e-9) - 1]


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """The percentiles that are reported, by name."""
    ordered = sorted(values)
    return {name: percentile(ordered, share) for name, share in SHARES.items()}
