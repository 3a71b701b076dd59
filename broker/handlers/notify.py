"""
Pushes to the members of a group: who is in it, which leases became free, and what becomes of its topics.

Changes are gathered for the rest of the loop turn, and a frame is packed once for all recipients. A list of members is
as long as it has recipients, so that a group gets at most one in 50 ms, a large one fewer; the last change is always
pushed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rmq.wire.model import MessageQueue
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import Push, TopicInfo
from rmq.wire.protocol.ops.topics import DeletedTopic

from ..net.connection import Connection
from ..state.groups import Membership
from ..state.sessions import SessionTable

QUIET_S: Final = 0.05  # between two lists of members to a group
PUSHED_BYTES_S: Final = 64 << 20  # what lists of members to one group may cost beyond that
MAX_FREE: Final = 64  # leases a turn that are pushed one by one

NO_SESSION: Final = b""  # matches no session


class Notices:
    """Gathers what changed in groups and pushes it to the members that have a connection."""

    def __init__(
        self, members: Membership, sessions: SessionTable,
        *, call_soon: Callable[..., object], call_later: Callable[..., object],
    ) -> None:  # fmt: skip
        self._members = members
        self._sessions = sessions
        self._call_soon = call_soon
        self._call_later = call_later
        self._scheduled = False
        self._changed: dict[str, bytes] = {}  # groups to be notified, and the session whose reply has the list
        self._quiet: set[str] = set()  # groups that were notified a moment ago
        self._freed: dict[str, dict[MessageQueue, None]] = {}

    def members_changed(self, group: str, but: bytes = NO_SESSION) -> None:
        """Announce a new list of members. ``but`` has just joined: its reply has a newer list than any push before."""
        self._changed[group] = but
        if group not in self._quiet:
            self._schedule()

    def lease_free(self, group: str, queue: MessageQueue) -> None:
        """A lease of the group has no owner any more."""
        self._freed.setdefault(group, {})[queue] = None
        self._schedule()

    def topic_changed(self, info: TopicInfo) -> None:
        """Push a topic that was made or has grown to its subscribers: they can begin."""
        self._push_to_subscribers(info.topic, Push.TOPIC_CHANGED, info)

    def topic_deleted(self, gone: DeletedTopic) -> None:
        """Push the end of a topic to its subscribers: they can stop."""
        self._push_to_subscribers(gone.topic, Push.TOPIC_DELETED, gone)

    def _push_to_subscribers(self, topic: str, push: Push, payload: TopicInfo | DeletedTopic) -> None:
        # One key for both: to one that does not read, the last word on a topic says all, since it has the generation.
        frame = frames.pack(frames.PUSH, 0, push, payload)
        for connection in self._connections(self._members.subscribers(topic)):
            connection.push_frame(frame, ("topic", topic))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        freed, self._freed = self._freed, {}
        for group, queues in freed.items():
            if len(queues) > MAX_FREE:
                self._changed[group] = NO_SESSION  # a list of members makes each of them look for free queues
            else:
                self._push_free(group, queues)
        for group in [group for group in self._changed if group not in self._quiet]:
            self._push_members(group, self._changed.pop(group))

    def _push_free(self, group: str, queues: Iterable[MessageQueue]) -> None:
        free = b"".join(frames.pack(frames.PUSH, 0, Push.LEASE_FREE, (group, *queue)) for queue in queues)
        members: bytes | None = None
        for connection in self._connections(self._members.sessions(group)):
            if not connection.blocked:
                connection.push_frame(free)
                continue
            # To one that does not read, the newest list says as much, and nothing piles up.
            members = members or self._list_of(group)
            connection.push_frame(members, ("members", group))

    def _push_members(self, group: str, but: bytes) -> None:
        frame, sent = self._list_of(group), 0
        for connection in self._connections(id_ for id_ in self._members.sessions(group) if id_ != but):
            connection.push_frame(frame, ("members", group))
            sent += 1
        if sent:
            self._quiet.add(group)
            self._call_later(QUIET_S + sent * len(frame) / PUSHED_BYTES_S, self._quiet_over, group)

    def _quiet_over(self, group: str) -> None:
        self._quiet.discard(group)
        if group in self._changed:
            self._schedule()

    def _list_of(self, group: str) -> bytes:
        return frames.pack(
            frames.PUSH, 0, Push.MEMBERS_CHANGED, (group, self._members.members(group), self._members.version)
        )

    def _connections(self, ids: Iterable[bytes]) -> list[Connection]:
        sessions = [session for session in map(self._sessions.get, ids) if session is not None]
        return [session.connection for session in sessions if isinstance(session.connection, Connection)]
