"""
Sessions: a client as the broker knows it, over several connections.

A session without a connection lives on for the grace, which runs from the last answer the broker gave it: a client
trusts its leases only for a shorter time after the request of that answer was *sent*, so no queue is granted again
while its owner may still work on it. A session known from a lease in the log has the grace from its restoration.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Final

from rmq.wire.errors import BadRequest

SESSION_BYTES: Final = 16


@dataclass(slots=True, eq=False)
class Session:
    """A client. Its connection sets ``answered_at`` with each reply; the tables write the rest."""

    id: bytes
    member: str
    connection: object | None
    answered_at: float
    lost_at: float | None = None
    groups: set[str] = field(default_factory=set)


class SessionTable:
    """All sessions that are connected, or were a moment ago."""

    def __init__(self, grace_s: float = 5.0) -> None:
        self.grace_s = grace_s
        self._sessions: dict[bytes, Session] = {}
        # Sessions that were lost, by the answer their grace runs from. An entry may be out of date (the session came
        # back, perhaps was lost again), never too late; each session has at most one, so that flapping costs nothing.
        self._heap: list[tuple[float, bytes]] = []
        self._queued: set[bytes] = set()

    def hello(self, session_id: bytes, client: str, connection: object, *, now: float) -> tuple[Session, object | None]:
        """
        Greet a client: a new session, or a known one that goes on over this connection.

        Returns the session and its older connection, if it still has one: the caller aborts it.

        Raises:
            BadRequest: the session is not 16 bytes.
        """
        if len(session_id) != SESSION_BYTES:
            raise BadRequest(f"a session is {SESSION_BYTES} random bytes, not {len(session_id)}")
        session = self._sessions.get(session_id)
        if session is None:
            session = Session(session_id, member_id(client, session_id), connection, now)
            self._sessions[session_id] = session
            return session, None
        replaced = session.connection if session.connection is not connection else None
        session.connection, session.lost_at, session.answered_at = connection, None, now
        return session, replaced

    def lost(self, session_id: bytes, connection: object, *, now: float) -> bool:
        """Note the end of a connection; says whether it was still the session's own."""
        session = self._sessions.get(session_id)
        if session is None or session.connection is not connection:
            return False
        session.connection, session.lost_at = None, now
        self._queue(session)
        return True

    def restore(self, session_id: bytes, member: str, *, now: float) -> Session:
        """A session that held a lease when the broker stopped: it has the grace to come back."""
        session = self._sessions.get(session_id)
        if session is None:
            session = Session(session_id, member, None, answered_at=now, lost_at=now)
            self._sessions[session_id] = session
            self._queue(session)
        return session

    def forgive(self, *, now: float) -> None:
        """Give all sessions the full grace from now, after a time in which none could be answered."""
        for session in self._sessions.values():
            session.answered_at = max(session.answered_at, now)

    def expire(self, *, now: float) -> list[Session]:
        """Remove the sessions whose grace is over, the one that waited longest first."""
        gone = []
        while (session := self._next_lost()) is not None and now - session.answered_at > self.grace_s:
            heapq.heappop(self._heap)
            self._queued.discard(session.id)
            del self._sessions[session.id]
            gone.append(session)
        return gone

    def get(self, session_id: bytes) -> Session | None:
        """The session, if it is known."""
        return self._sessions.get(session_id)

    def __len__(self) -> int:
        return len(self._sessions)

    def _queue(self, session: Session) -> None:
        if session.id not in self._queued:
            self._queued.add(session.id)
            heapq.heappush(self._heap, (session.answered_at, session.id))

    def _next_lost(self) -> Session | None:
        """The lost session whose last answer is the oldest; brings the top of the heap up to date first."""
        while self._heap:
            since, session_id = self._heap[0]
            session = self._sessions[session_id]
            if session.connection is None and session.answered_at == since:
                return session
            heapq.heappop(self._heap)
            self._queued.discard(session_id)
            if session.connection is None:
                self._queue(session)
        return None


def member_id(client: str, session_id: bytes) -> str:
    """The name of a session in group member lists: readable, and unique over restarts of one client."""
    return f"{client}#{session_id.hex()[:8]}"
