"""What a benchmark sends. Pure, but for the random bytes."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Load:
    """So many messages of so many bytes, all different, and how they are sent."""

    messages: int = 1_000_000
    size: int = 100
    batch: int = 500  # messages a call; 1: each by a call of its own
    queues: int = 8
    in_flight: int = 64  # calls that wait for their answer at once, of all connections of a process together
    producers: int = 1  # processes that send
    consumers: int = 1  # processes that consume
    connections: int = 1  # of each process that sends
    tags: int = 0  # so many tags take turns
    keys: bool = False  # each message has a key of its own

    def share(self, part: int) -> Load:
        """What the producer of this number sends: the first get one message more where it does not divide."""
        whole, rest = divmod(self.messages, self.producers)
        return dataclasses.replace(self, messages=whole + (part < rest), producers=1)

    @cached_property
    def _noise(self) -> bytes:
        # Message i is the window [i, i + size) of it: a body of its own for each at the cost of one slice.
        return os.urandom(self.messages + self.size)

    def bodies(self) -> list[list[bytes]]:
        """All bodies, in lists of ``batch``; made before any clock runs."""
        noise, size = self._noise, self.size
        return [
            [noise[i : i + size] for i in range(start, min(start + self.batch, self.messages))]
            for start in range(0, self.messages, self.batch)
        ]

    def as_object(self) -> dict[str, Any]:
        """For programs, and for the processes that carry it out."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
