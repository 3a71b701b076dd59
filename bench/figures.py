"""Figures, taken several times in turns, targets judged by their ratios, and percentiles. Pure, but for the disk."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Samples = list[float]


@dataclass(frozen=True)
class Figure:
    """One quantity, taken once a round; ``flush`` is the durability it was taken with, None where nothing is stored."""

    key: str  # dotted, unique in a report: "produce.bodies"
    meaning: str  # a few words for the table
    unit: str  # "msg/s", "MB/s", "ms", "s", "MB"
    flush: str | None = None
    samples: Samples = field(default_factory=list)

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.samples)

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        return {"key": self.key, "meaning": self.meaning, "unit": self.unit, "flush": self.flush} | _spread(
            self.samples
        )


@dataclass(frozen=True)
class Verdict:
    """
    A target and what was found: the median of ``samples`` must not be below ``at_least``, nor above ``at_most``.

    Without samples it is not shown, for the reason ``why_not``; that is not the same as met.
    """

    key: str  # of the target: "P1.floor"
    meaning: str
    unit: str = "x"  # "x": a ratio; else as of the figure
    flush: str | None = None
    samples: Samples = field(default_factory=list)
    at_least: float | None = None
    at_most: float | None = None
    why_not: str = ""

    @property
    def met(self) -> bool | None:
        """True if the median meets the target; None without a target or without samples."""
        if not self.samples or (self.at_least is None and self.at_most is None):
            return None
        middle = median(self.samples)
        low = self.at_least is None or middle >= self.at_least
        return low and (self.at_most is None or middle <= self.at_most)

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        about = {"key": self.key, "meaning": self.meaning, "unit": self.unit, "flush": self.flush}
        return (
            about
            | {"at_least": self.at_least, "at_most": self.at_most, "met": self.met, "why_not": self.why_not}
            | _spread(self.samples)
        )


def ratio(ours: Figure, other: Figure, scale: float = 1.0) -> Samples:
    """Divide ours by the other, round by round; ``scale`` multiplies the other."""
    return [mine / (theirs * scale) for mine, theirs in zip(ours.samples, other.samples, strict=True)]


@dataclass
class Report:
    """The figures and verdicts of one benchmark."""

    benchmark: str
    about: dict[str, Any] = field(default_factory=dict)  # the load, the rounds: how it was measured
    figures: list[Figure] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        return {
            "benchmark": self.benchmark,
            **self.about,
            "figures": [figure.as_object() for figure in self.figures],
            "verdicts": [verdict.as_object() for verdict in self.verdicts],
        }


Side = tuple[Figure, Callable[[], float]]  # what is measured, and how one sample of it is taken


def interleave(
    sides: Sequence[Side], rounds: int, stepped: Callable[[str], None], *, settle: Callable[[], object] = os.sync
) -> None:
    """
    Take the samples of all sides, round by round, so that what slows the machine for a while slows each of them.

    Every other round runs in reverse, so that no side always follows the same one. ``stepped`` gets the key of what is
    measured next. Before each sample the system writes out its buffers (``settle``), which would delay the next side.
    """
    for number in range(rounds):
        for figure, take in sides if number % 2 == 0 else reversed(sides):
            stepped(figure.key)
            settle()
            figure.samples.append(take())


def _spread(samples: Samples) -> dict[str, Any]:
    if not samples:
        return {"median": None, "min": None, "max": None, "samples": []}
    rounded = [round(sample, 6) for sample in samples]
    return {"median": round(median(samples), 6), "min": min(rounded), "max": max(rounded), "samples": rounded}


SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


def percentile(ordered: Sequence[float], share: float) -> float:
    """
    Return the smallest measured value that at least this share of all values does not exceed; never interpolates.

    Raises:
        ValueError: there are no values, or the share is not above 0 and at most 1.
    """
    if not ordered or not 0 < share <= 1:
        raise ValueError(f"no percentile of {len(ordered)} values at {share}")
    # Less than a rounding error above a whole number is that number: 0.99 of 100 values are 99 of them.
    return ordered[math.ceil(share * len(ordered) - 1e-9) - 1]


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """Return the percentiles that are reported, by name."""
    ordered = sorted(values)
    return {name: percentile(ordered, share) for name, share in SHARES.items()}
