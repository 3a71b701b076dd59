"""STATS: how the broker is, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import Stats

from ..net.connection import Connection
from ..store.traffic import Traffic

Source = Callable[[], Mapping[str, Any]]


class StatsHandler:
    """Asks each part of the broker for its numbers; ``sources`` gives each a name. Of topics ``traffic`` tells."""

    def __init__(self, sources: Mapping[str, Source], traffic: Traffic) -> None:
        self._sources: dict[str, Source] = {**sources, "traffic": lambda: traffic.total()._asdict()}
        self._traffic = traffic

    def add(self, part: str, source: Source) -> None:
        """Ask another part of the broker, too."""
        self._sources[part] = source

    def stats(self, connection: Connection, request_id: int, payload: Any) -> object:
        """All numbers, by part and name; as part ``topics``, those of the busiest topics if they are asked for."""
        topics = decode(Stats, payload).topics
        told: dict[str, dict[str, Any]] = {part: dict(source()) for part, source in self._sources.items()}
        if topics > 0:
            told["topics"] = {topic: flow._asdict() for topic, flow in self._traffic.busiest(topics).items()}
        return told
