"""Stand-ins for a machine's limits, for other brokers and for a progress display, in tests of benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmq.bench.options import Load
from rmq.bench.processes import BenchError


class FixedFloor:
    """A machine that always does the same; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def produce(self, load: Load) -> float:
        self.asked.append("produce")
        return 4.0

    def consume(self, load: Load) -> float:
        self.asked.append("consume")
        return 2.0

    def socket_to_file(self, load: Load) -> float:
        self.asked.append("socket_to_file")
        return 5.0

    def fdatasync_ms(self, size: int) -> float:
        self.asked.append("fdatasync_ms")
        return 10.0


@dataclass
class FixedPeer:
    """A broker that always does the same."""

    name: str = "redis"
    rate: float = 8.0
    why_not: str = ""
    native_why_not: str = ""
    durability: str = "fsync every second"
    native: float = 16.0
    breaks: str = ""  # what it says then

    def produce(self, load: Load) -> float:
        return self.rate

    def consume(self, load: Load) -> float:
        if self.breaks:
            raise BenchError(self.breaks)
        return self.rate

    def native_produce(self, load: Load) -> float:
        return self.native


@dataclass
class Steps:
    """The progress of a benchmark, kept."""

    expected: int = 0
    taken: list[str] = field(default_factory=list)

    def expect(self, more: int) -> None:
        self.expected += more

    def __call__(self, what: str) -> None:
        self.taken.append(what)
