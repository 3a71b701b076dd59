"""What was measured several times: the worst, the middle and the best of it, beside what it must not exceed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from .render import table


@dataclass(frozen=True)
class Figure:
    """One quantity in seconds, measured once a repeat."""

    name: str
    meaning: str
    limit_s: float | None = None  # None: it is told, nothing is promised
    taken: list[float] = field(default_factory=list)

    @property
    def max_s(self) -> float:
        """The worst."""
        return max(self.taken)

    @property
    def median_s(self) -> float:
        """As many were quicker as were slower."""
        return median(self.taken)

    @property
    def min_s(self) -> float:
        """The best."""
        return min(self.taken)

    @property
    def held(self) -> bool:
        """Whether even the worst was within the limit."""
        return self.limit_s is None or self.max_s <= self.limit_s

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        return {
            "figure": self.name,
            "max_s": round(self.max_s, 3),
            "median_s": round(self.median_s, 3),
            "min_s": round(self.min_s, 3),
            "spread_s": round(self.max_s - self.min_s, 3),
            "count": len(self.taken),
            "limit_s": self.limit_s,
            "held": self.held,
        }


def as_table(figures: Sequence[Figure]) -> str:
    """The figures for people, seconds throughout, and then what each means."""
    columns = ("figure", "count", "max_s", "median_s", "min_s", "spread_s", "limit_s", "held")
    rows = [{**figure.as_object(), "held": "yes" if figure.held else "NO"} for figure in figures]
    meanings = "".join(f"{figure.name}: {figure.meaning}\n" for figure in figures)
    return table(columns, [[row[name] for name in columns] for row in rows]) + meanings
