"""The time in a message: the clock of the machine, the same for all its processes, in front of a body that differs."""

from __future__ import annotations

import os
import struct

_STAMP = struct.Struct("<q")
WARM_UP = 0  # the time of a message that is not measured
LEAST = _STAMP.size


class Bodies:
    """Bodies of ``size`` bytes, of at least 8, each with a time and other bytes behind it than its neighbours."""

    def __init__(self, size: int, different: int = 4096) -> None:
        self._rest = max(0, size - LEAST)
        self._noise = os.urandom(different + self._rest)
        self._different = different
        self._at = 0

    def stamped(self, time_ns: int) -> bytes:
        """The next body."""
        at = self._at = (self._at + 1) % self._different
        return _STAMP.pack(time_ns) + self._noise[at : at + self._rest]


def stamp_of(body: bytes) -> int:
    """The time in a body."""
    (time_ns,) = _STAMP.unpack_from(body)
    assert isinstance(time_ns, int)
    return time_ns
