"""Other brokers that a tool passes in, to be measured next to ours; ``rmq-bench`` itself passes none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from .processes import BenchError

if TYPE_CHECKING:
    from .options import Load

NO_RIVALS = "no other broker was measured: `make bench` in a checkout does"


class Rival(Protocol):
    """Another broker, whose figures stand next to ours; it may be one that cannot be measured here."""

    @property
    def name(self) -> str:
        """The name of the server."""

    @property
    def durability(self) -> str:
        """In a few words, shown with every figure."""

    @property
    def why_not(self) -> str:
        """Why its Python client cannot be measured here, empty if it can."""

    @property
    def native_why_not(self) -> str:
        """Why its own benchmark cannot be run here, empty if it can."""

    def produce(self, load: Load) -> float:
        """Messages a second that its best Python client sends."""

    def consume(self, load: Load) -> float:
        """Messages a second that its best Python client gets, from the first send to the last one handled."""

    def native_produce(self, load: Load) -> float:
        """Messages a second by the benchmark that it brings along; raises BenchError if it has none."""


Rivals = Callable[[str], Sequence[Rival]]  # as durable as ours with this flush mode


def no_rivals(flush: str) -> Sequence[Rival]:
    """Compare with no other broker."""
    return ()


class Tried:
    """
    Takes samples of something that is not ours, whose failure must not end the run: ``why_not`` has the reason.

    After a failure it is not tried again, and its samples mean nothing.
    """

    def __init__(self, take: Callable[[], float]) -> None:
        self.why_not = ""
        self._take = take

    def __call__(self) -> float:
        """One sample."""
        if self.why_not:
            return 0.0
        try:
            return self._take()
        except BenchError as error:
            self.why_not = str(error)
            return 0.0
