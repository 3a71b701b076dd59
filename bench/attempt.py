"""A side of a benchmark that may fail without ending the others."""

from __future__ import annotations

import math
from collections.abc import Callable

from .figures import Figure, Side
from .processes import BenchError


class Attempt:
    """It is not tried again once it failed: ``why_not`` tells why, and its figure says nothing any more."""

    def __init__(self, figure: Figure, take: Callable[[], float]) -> None:
        self.figure = figure
        self.why_not = ""
        self._take = take

    @property
    def side(self) -> Side:
        """What takes turns with the others."""
        return self.figure, self._sample

    def _sample(self) -> float:
        if not self.why_not:
            try:
                return self._take()
            except BenchError as error:
                self.why_not = str(error)
        return math.nan
