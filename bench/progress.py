"""How far a benchmark is, alone or as a part of a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

from .processes import BenchError

Show = Callable[[float, str], None]  # which part of the whole is done, and what is measured now


class Counted:
    """The :class:`~rmq.bench.options.Steps` of a benchmark; a sample is done when the next one begins."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._expected = 0
        self._begun = 0

    def expect(self, more: int) -> None:
        """So many samples more are to come."""
        self._expected += more

    def __call__(self, what: str) -> None:
        """The next one begins."""
        done = self._begun / max(self._expected, self._begun, 1)
        self._begun += 1
        self._show(done, what)


class Whole:
    """Several benchmarks, each about as long as its weight says; several threads may have one each."""

    def __init__(self, show: Show, weights: Sequence[float]) -> None:
        self._show = show
        self._shares = [weight / sum(weights) for weight in weights]
        self._done = [0.0] * len(weights)
        self._lock = Lock()
        self._is_stopped = False

    def part(self, number: int) -> Counted:
        """The steps of one of them."""
        return Counted(lambda done, what: self._told(number, done, what))

    def ended(self, number: int) -> None:
        """One of them is over, whatever it said."""
        self._done[number] = 1.0

    def stop(self) -> None:
        """Let those that run end at their next sample, by a :class:`BenchError` there."""
        self._is_stopped = True

    def _told(self, number: int, done: float, what: str) -> None:
        if self._is_stopped:
            raise BenchError("it was interrupted")
        with self._lock:
            self._done[number] = done
            parts = zip(self._shares, self._done, strict=True)
            self._show(sum(share * part for share, part in parts), what)
