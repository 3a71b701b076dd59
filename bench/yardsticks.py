"""What loads are compared with: the floor of this machine, and other brokers that a tool passes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .options import Load
from .processes import BenchError


class Floor(Protocol):
    """The functions of :mod:`rmq.bench.floor.floor` that loads are compared with, each one sample."""

    def produce(self, load: Load) -> float:
        """Messages a second that are packed, sent, appended and answered."""

    def consume(self, load: Load) -> float:
        """Messages a second that are pulled, unpacked and each given to a listener."""

    def socket_to_file(self, load: Load) -> float:
        """Messages a second whose bytes go through a socket into a file."""

    def fdatasync_ms(self, size: int) -> float:
        """How long an append of so many bytes with ``fdatasync`` takes, in ms."""


def machine() -> Floor:
    """Return the floor of this machine."""
    from .floor import floor

    return floor


NO_RIVALS = "no other broker was measured: `make bench` in a checkout does"


class Rival(Protocol):
    """Another broker, whose figures stand next to ours; it may be one that cannot be measured here."""

    @property
    def name(self) -> str:
        """Of the server."""

    @property
    def durability(self) -> str:
        """In a few words, shown with every figure."""

    @property
    def why_not(self) -> str:
        """Why its Python client cannot be measured here; empty where it can."""

    @property
    def native_why_not(self) -> str:
        """Why its own benchmark cannot be run here; empty where it can."""

    def produce(self, load: Load) -> float:
        """Messages a second that its best Python client sends."""

    def consume(self, load: Load) -> float:
        """Messages a second that its best Python client gets, from the first send to the last one handled."""

    def native_produce(self, load: Load) -> float:
        """Messages a second by the benchmark that it brings along; raises BenchError if it has none."""


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
