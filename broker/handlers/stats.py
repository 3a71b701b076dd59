"""STATS: how the broker is, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..connection import Connection

Source = Callable[[], Mapping[str, Any]]


class StatsHandler:
    """Asks each part of the broker for its numbers; ``sources`` gives each a name."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = dict(sources)

    def add(self, part: str, source: Source) -> None:
        """Ask another part of the broker, too."""
        self._sources[part] = source

    def stats(self, connection: Connection, request_id: int, payload: Any) -> object:
        """All numbers, by part and name."""
        return {part: dict(source()) for part, source in self._sources.items()}
