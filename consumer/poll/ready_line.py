"""``ReadyLine``: which queue is next, fairly over those that have something. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class ReadyLine(Generic[T]):
    """
    A line in which everybody stands at most once; who has more after its turn goes to the end.

    So each of ``n`` that are in line has its turn within ``n`` turns.
    """

    __slots__ = ("_line",)

    def __init__(self) -> None:
        self._line: OrderedDict[T, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, item: T) -> None:
        """Stand at the end; one that stands already keeps its place."""
        self._line.setdefault(item)

    def discard(self, item: T) -> None:
        """Leave the line."""
        self._line.pop(item, None)

    def take(self) -> T | None:
        """The first in line, who leaves it; None if nobody is there."""
        return self._line.popitem(last=False)[0] if self._line else None
