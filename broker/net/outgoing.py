"""The connections that have something to say: all answers of a turn leave together, as soon as they are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq.runtime.logging import get_broker_logger

if TYPE_CHECKING:
    from .connection import Connection

log = get_broker_logger(__name__)


class Outgoing:
    """
    Connections with answers in their hands, which go out at the end of the turn.

    Whoever has run the answers of a turn calls :meth:`flush` at once: a further turn of the loop would cost each of
    them a few microseconds more.
    """

    def __init__(self, call_soon: Callable[..., object]) -> None:
        self._call_soon = call_soon
        self._connections: list[Connection] = []

    def add(self, connection: Connection) -> None:
        """It has something to say, for the first time since it was flushed."""
        if not self._connections:
            self._call_soon(self.flush)
        self._connections.append(connection)

    def flush(self) -> None:
        """Let all of them speak."""
        connections, self._connections = self._connections, []
        for connection in connections:
            try:
                connection.flush()
            except Exception:  # the defect of one must not keep the others back
                log.exception("answer.failed")
                connection.abort()  # its client would wait for answers that are lost; so it asks again
