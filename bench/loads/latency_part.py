"""A distribution of latencies, taken round by round. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..figures import Figure, Side, Verdict
from ..percentiles import percentiles


@dataclass
class Part:
    """
    What one part measures: each figure gets a percentile of every round.

    ``values`` are all that was measured, in milliseconds; ``why_not`` tells why there is nothing.
    """

    key: str
    meaning: str
    flush: str | None
    shown: tuple[str, ...] = ("p50", "p99")
    why_not: str = ""
    values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.figures = {
            name: Figure(f"{self.key}.{name}", f"{self.meaning}, {name}", "ms", self.flush) for name in self.shown
        }

    @property
    def first(self) -> Figure:
        """The figure that stands for the part where samples are taken in turns."""
        return self.figures[self.shown[0]]

    def record(self, took_us: list[float]) -> float:
        """What one round measured, in microseconds: a sample for each figure; that of the first is returned only."""
        took = [value / 1000 for value in took_us]
        self.values += took
        of_round = percentiles(took)
        for name in self.shown[1:]:
            self.figures[name].samples.append(of_round[name])
        return of_round[self.shown[0]]

    def add(self, took_us: list[float]) -> None:
        """The same, with a sample for the first figure, too."""
        self.first.samples.append(self.record(took_us))

    def side(self, take: Callable[[], list[float]]) -> Side:
        """This part among others that are measured in turns; ``take`` measures one round."""
        return self.first, lambda: self.record(take())

    def distribution(self) -> dict[str, float]:
        """The percentiles of all rounds together; nothing where nothing was measured."""
        return {name: round(value, 4) for name, value in percentiles(self.values).items()} if self.values else {}

    def at_most(self, target: str, name: str, limit_ms: float) -> Verdict:
        """A percentile beside what it must not exceed, where it was taken as the target asks: with ``async``."""
        why_not = self.why_not
        if not why_not and self.flush != "async":
            why_not = f"the target is about async, and the broker flushed {self.flush}"
        figure = self.figures[name]
        samples = [] if why_not else figure.samples
        return Verdict(target, figure.meaning, "ms", self.flush, samples, at_most=limit_ms, why_not=why_not)
