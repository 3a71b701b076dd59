"""What a benchmark sends, and what it found. Pure, but for the random bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Load:
    """So many messages of so many bytes, all different."""

    topic: str
    messages: int
    size: int
    batch: int
    in_flight: int = 64

    @cached_property
    def _noise(self) -> bytes:
        # Message i is the window [i, i + size) of it: a body of its own for each at the cost of one slice.
        return os.urandom(self.messages + self.size)

    def prepare(self) -> None:
        """Make the random bytes, before any clock runs."""
        len(self._noise)

    def batches(self) -> Iterator[list[bytes]]:
        """The bodies, in lists of ``batch``."""
        noise, size = self._noise, self.size
        for start in range(0, self.messages, self.batch):
            yield [noise[i : i + size] for i in range(start, min(start + self.batch, self.messages))]


@dataclass(frozen=True)
class Result:
    """What one run measured."""

    name: str
    load: Load
    took_s: float
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def messages_per_s(self) -> float:
        """The rate."""
        return self.load.messages / self.took_s

    @property
    def megabytes_per_s(self) -> float:
        """The rate of bodies, in units of 10**6 bytes."""
        return self.messages_per_s * self.load.size / 1e6

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        return {
            "benchmark": self.name,
            "messages": self.load.messages,
            "size": self.load.size,
            "batch": self.load.batch,
            "took_s": round(self.took_s, 6),
            "messages_per_s": round(self.messages_per_s, 1),
            "megabytes_per_s": round(self.megabytes_per_s, 3),
            **self.more,
        }

    def __str__(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in self.more.items() if value is not None)
        return (
            f"{self.name}: {self.messages_per_s:,.0f} msg/s, {self.megabytes_per_s:,.1f} MB/s\n"
            f"  {self.load.messages:,} messages of {self.load.size:,} bytes in {self.took_s:.2f} s; "
            f"batch {self.load.batch}, {about}"
        )
