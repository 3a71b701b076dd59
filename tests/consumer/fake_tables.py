"""What the fake broker keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Stored(NamedTuple):
    """A batch in the log of a queue."""

    base_offset: int
    count: int
    data: bytes
    log_epoch: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count


@dataclass
class Held:
    """A lease as the broker has it."""

    session: bytes
    member: str
    epoch: int
    renewed_at: float
