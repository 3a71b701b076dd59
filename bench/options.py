"""What all benchmarks are told besides their load, and how they tell how far they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from .processes import own_broker


class Steps(Protocol):
    """The progress of a benchmark: first how many samples are to come, then each as it begins."""

    def expect(self, more: int) -> None:
        """So many samples more are to come."""

    def __call__(self, what: str) -> None:
        """The next one begins."""


@dataclass(frozen=True)
class Options:
    """How a benchmark is run."""

    flush: str = "async"  # durability of the broker that is started; with a broker that runs, its own
    broker: str | None = None  # the address of a broker that runs; None: each sample has one of its own
    rounds: int = 5
    quick: bool = False  # small and once: shows that it works, measures nothing

    @contextmanager
    def ground(self, flush: str | None = None) -> Iterator[str]:
        """The address of a broker for one sample."""
        if self.broker is not None:
            yield self.broker
            return
        with own_broker(flush or self.flush) as broker:
            yield broker.address
