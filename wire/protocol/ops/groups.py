"""
Groups on the wire as people look at them: which there are, who is in them, how far they are, and what a member does.

What a member tells of itself is a map whose names may come and go with versions: it is for people. The broker carries
it from the member to whoever asks, and looks at nothing but its size.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from .core import NO_OFFSET

MAX_INFO: Final = 256 << 10  # bytes of what one member tells of itself
MAX_LEVELS: Final = 8  # of maps and arrays in it: whoever asked must be able to read it
ASKED_AT_ONCE: Final = 32  # members that one request asks: their answers fit a frame
ANSWER_S: Final = 1.0  # a member that needs longer is silent


class ListGroups(NamedTuple):
    """A page of the groups by name, behind ``after``; an empty one is the end."""

    after: str = ""


class GroupRow(NamedTuple):
    """
    A group with members, leases or progress. ``ordered``, ``model`` and ``strategy`` are None if nobody has joined.

    ``lag`` is how many messages it has before it in all queues of its topics but ``more_queues``, which were not
    looked at, to keep the answer short.
    """

    group: str
    ordered: bool | None
    model: str | None
    strategy: str | None
    members: int
    leases: int
    topics: int
    lag: int
    more_queues: int = 0


class DescribeGroup(NamedTuple):
    """What is known of a group; with ``topic`` only the queues of that one."""

    group: str
    topic: str | None = None


class MemberState(NamedTuple):
    """
    A member as the broker sees it: ``connected``, or in its ``grace`` without an ``address``, or ``silent``.

    A silent one has a connection, and was taken out of the group since it let its leases expire or sent no heartbeat.
    """

    member: str
    session: str
    address: str | None
    state: str
    heard_ago_s: float
    leases: int


class GroupQueue(NamedTuple):
    """
    A queue of a topic of the group: ``[min_offset, max_offset)`` can be read; ``committed`` is -1 for none.

    Without an ``owner`` the fields of its lease are 0, or None. The message at ``retry_offset`` (-1: none) failed
    ``attempts`` times; ``abandoned`` owners in a row were lost at the one at ``suspect_offset``. ``former`` is who
    lost a queue without giving it back, if nobody has owned it since.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    committed: int
    lag: int
    owner: str | None = None
    epoch: int = 0
    lease_left_s: float = 0.0
    state: str | None = None
    retry_offset: int = NO_OFFSET
    attempts: int = 0
    suspect_offset: int = NO_OFFSET
    abandoned: int = 0
    former: str | None = None


class GroupDescription(NamedTuple):
    """A group; ``more_members`` and ``more_queues`` are how many are left out to keep the answer short."""

    group: str
    ordered: bool | None
    model: str | None
    strategy: str | None
    more_members: int
    more_queues: int
    subscriptions: dict[str, str]
    members: list[MemberState]
    queues: list[GroupQueue]

    @property
    def lag(self) -> int:
        """How many messages the group has before it in the queues that are told."""
        return sum(queue.lag for queue in self.queues)


class MemberInfo(NamedTuple):
    """Ask a member of a group what it does, or (without one) a page of all members by name, behind ``after``."""

    group: str
    member: str = ""
    after: str = ""


class MemberReport(NamedTuple):
    """What a member told of itself, or (``status``) why it did not."""

    status: int
    member: str
    text: str | None = None
    info: dict[str, Any] = {}  # noqa: RUF012  # shared, so nobody may change it in place


class RunningInfo(NamedTuple):
    """A member's answer to the push of the same name, which gave it the ``token``."""

    token: int
    info: dict[str, Any]
