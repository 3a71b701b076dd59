"""How many connections the broker takes; those beyond that are told why, and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmq.wire.errors import TooManyConnections

if TYPE_CHECKING:
    from .connection import Connection

MAX_TURNED_AWAY: Final = 16  # connections beyond the limit that are still being told why


class Admission:
    """The connections that are served, ``most`` of them."""

    def __init__(self, most: int) -> None:
        self.connections: set[Connection] = set()
        self._most = most
        self._turned_away: dict[Connection, None] = {}  # in the order they came

    def opened(self, connection: Connection) -> TooManyConnections | None:
        """A connection came; the reason if it may not stay."""
        if len(self.connections) >= self._most:
            self._turn_away(connection)
            return TooManyConnections(f"the broker has {self._most} connections, as many as it may")
        self.connections.add(connection)
        return None

    def closed(self, connection: Connection) -> None:
        """A connection ended."""
        self.connections.discard(connection)
        self._turned_away.pop(connection, None)

    def _turn_away(self, connection: Connection) -> None:
        """Being told why takes a moment and a descriptor: the one that has had most of its moment makes room."""
        if len(self._turned_away) >= MAX_TURNED_AWAY:
            eldest = next(iter(self._turned_away))
            del self._turned_away[eldest]
            eldest.abort()
        self._turned_away[connection] = None
