"""
Which sessions are in which group, and the one mode that all members of a group share.

A member shows that it is alive by joining again; one that did not for *more* than ``expiry_s`` is removed. The first
live member sets mode and subscription; a member with another one is refused, except for subscriptions of a group whose
members are assigned their queues: those are each member's own. A member that is alone may change its mind.

The owner of a lease when the broker stopped counts as a member until it joins or its session ends, so that members
that return first do not share out its queues. Nothing else is known of it: it sets no mode.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from rmq.wire import names
from rmq.wire.batch import tags
from rmq.wire.batch.tags import Wanted
from rmq.wire.errors import BadRequest, GroupMismatch

from .sessions import Session

CLUSTERING: Final = "clustering"
BROADCASTING: Final = "broadcasting"
ASSIGNED: Final = "assigned"  # no allocation: each member asks for the queues that it was configured with
MODELS: Final = (CLUSTERING, BROADCASTING, ASSIGNED)
MAX_STRATEGY: Final = 64  # characters
MAX_EXPRESSION: Final = 1024  # characters
MAX_SUBSCRIPTIONS: Final = 1024
MAX_GROUPS: Final = 256  # of one session
MAX_SILENT: Final = 256  # members that went silent and are remembered, in all groups


class GroupMode(NamedTuple):
    """How a group consumes."""

    ordered: bool
    model: str
    strategy: str

    def __str__(self) -> str:
        return f"{'ordered' if self.ordered else 'concurrent'}, {self.model}, allocation {self.strategy}"


@dataclass(slots=True, eq=False)
class Member:
    """A session in a group."""

    session: Session
    mode: GroupMode | None  # None: known by a lease from before the start, has not joined yet
    subscriptions: dict[str, str]
    joined_at: float
    wanted: dict[str, Wanted]  # of the topics of which it does not want everything


class Membership:
    """All groups that have a member."""

    def __init__(self, expiry_s: float = 120.0) -> None:
        self.expiry_s = expiry_s
        self.version = 0  # of all lists of members: a later one has a higher number, also over a restart
        self._groups: dict[str, dict[bytes, Member]] = {}
        self._sessions: dict[bytes, Session] = {}  # those that are in any group
        self._beats: OrderedDict[tuple[str, bytes], Member] = OrderedDict()  # the longest silent member comes first
        self._silent: OrderedDict[tuple[str, bytes], Member] = OrderedDict()  # taken out; the first to go comes first

    def start(self, log_epoch: int) -> None:
        """Number the lists of this start above those of all starts before."""
        self.version = max(self.version, log_epoch << 32)

    def join(
        self, group: str, mode: GroupMode, subscriptions: Mapping[str, str], session: Session, *, now: float
    ) -> bool:
        """
        Become a member, or stay one; says whether the list of members changed.

        Raises:
            BadName: the group or a topic has an illegal name.
            BadRequest: the model is unknown, an expression is none, or something is over its limit.
            GroupMismatch: a live member has another mode or subscription.
        """
        self._check(group, mode, subscriptions, session)
        is_new = session.id not in self._groups.get(group, ())
        parsed = {topic: tags.wanted(expression) for topic, expression in subscriptions.items()}
        wanted = {topic: some for topic, some in parsed.items() if some is not None}
        self._put(group, Member(session, mode, dict(subscriptions), now, wanted))
        return is_new

    def restore(self, group: str, session: Session, *, now: float) -> None:
        """Count the owner of a restored lease as a member."""
        if session.id not in self._groups.get(group, ()):
            self._put(group, Member(session, None, {}, now, {}))

    def _put(self, group: str, member: Member) -> None:
        session = member.session
        self._silent.pop((group, session.id), None)
        self.version += session.id not in self._groups.get(group, ())
        self._groups.setdefault(group, {})[session.id] = member
        session.groups.add(group)
        self._sessions[session.id] = session
        self._beats[group, session.id] = member
        self._beats.move_to_end((group, session.id))

    def leave(self, group: str, session_id: bytes) -> bool:
        """Take a session out of a group; says whether it was in."""
        self._silent.pop((group, session_id), None)
        return self._take_out(group, session_id) is not None

    def silence(self, group: str, session_id: bytes) -> bool:
        """
        Take out a member that went silent, and remember it; says whether it was in.

        It is remembered for operators until it joins again, leaves, or its session ends. While its connection stands it
        is one of :meth:`silent`.
        """
        member = self._take_out(group, session_id)
        if member is None:
            return False
        self._silent[group, session_id] = member
        if len(self._silent) > MAX_SILENT:
            self._silent.popitem(last=False)
        return True

    def _take_out(self, group: str, session_id: bytes) -> Member | None:
        members = self._groups.get(group, {})
        member = members.pop(session_id, None)
        if member is None:
            return None
        self.version += 1
        if not members:
            del self._groups[group]
        del self._beats[group, session_id]
        member.session.groups.discard(group)
        if not member.session.groups:
            del self._sessions[session_id]
        return member

    def remove_session(self, session_id: bytes) -> list[str]:
        """Take a session out of all its groups; returns their names, sorted."""
        for key in [key for key in self._silent if key[1] == session_id]:
            del self._silent[key]
        session = self._sessions.get(session_id)
        left = sorted(session.groups) if session is not None else []
        for group in left:
            self.leave(group, session_id)
        return left

    def expire(self, *, now: float) -> list[tuple[str, bytes]]:
        """Take out the members that were silent for too long; returns their groups and sessions."""
        gone = []
        while self._beats:
            (group, session_id), member = next(iter(self._beats.items()))
            if now - member.joined_at <= self.expiry_s:
                break
            self.silence(group, session_id)
            gone.append((group, session_id))
        return gone

    def forgive(self, gap_s: float, *, now: float) -> None:
        """Extend all members by a time in which the broker could not hear them."""
        for member in self._beats.values():
            member.joined_at = max(member.joined_at, min(member.joined_at + gap_s, now))

    def members(self, group: str) -> list[str]:
        """The member ids of a group, sorted."""
        return sorted(member.session.member for member in self._groups.get(group, {}).values())

    def sessions(self, group: str) -> list[bytes]:
        """The sessions in a group, in the order they joined."""
        return list(self._groups.get(group, ()))

    def groups(self) -> list[str]:
        """The groups that have a member, and those whose members are all silent."""
        silent = {group for (group, _), member in self._silent.items() if member.session.connection is not None}
        return [*self._groups, *sorted(silent - self._groups.keys())]

    def of_group(self, group: str) -> list[Member]:
        """The members of a group, in the order they joined."""
        return list(self._groups.get(group, {}).values())

    def silent(self, group: str) -> list[Member]:
        """Return the members that were taken out for their silence while their connection stands, in that order."""
        return [
            member
            for (name, _), member in self._silent.items()
            if name == group and member.session.connection is not None
        ]

    @property
    def silent_count(self) -> int:
        """How many members of all groups are silent, and still connected."""
        return sum(member.session.connection is not None for member in self._silent.values())

    def subscribed(self, group: str) -> dict[str, str]:
        """
        What the members of a group subscribe to: topics and tag expressions; nothing if it has no member.

        All have the same, unless they are assigned their queues: then it is what any of them has.
        """
        joined = [member for member in self._groups.get(group, {}).values() if member.mode is not None]
        if joined and joined[0].mode is not None and joined[0].mode.model == ASSIGNED:
            return {topic: tags for member in joined for topic, tags in member.subscriptions.items()}
        return joined[0].subscriptions if joined else {}

    def is_member(self, group: str, session_id: bytes) -> bool:
        """Whether a session has joined a group."""
        member = self._groups.get(group, {}).get(session_id)
        return member is not None and member.mode is not None

    def subscriptions(self, group: str, session_id: bytes) -> Mapping[str, str] | None:
        """What a member has subscribed to; None if it is none."""
        member = self._groups.get(group, {}).get(session_id)
        return None if member is None else member.subscriptions

    def wanted(self, group: str, session_id: bytes, topic: str) -> Wanted | None:
        """The tags that a member wants of a topic; None if all of them, or if it has not said."""
        member = self._groups.get(group, {}).get(session_id)
        return None if member is None else member.wanted.get(topic)

    def subscribers(self, topic: str) -> set[bytes]:
        """The sessions that subscribe to a topic in any group."""
        return {session_id for (_, session_id), member in self._beats.items() if topic in member.subscriptions}

    def subscribing(self, topic: str) -> list[str]:
        """The groups that keep their progress in a topic here and have a member that subscribes to it, sorted."""
        return sorted(
            {
                group
                for (group, _), member in self._beats.items()
                if topic in member.subscriptions and member.mode is not None and member.mode.model != BROADCASTING
            }
        )

    def subscribes(self, group: str, topic: str, *, but: bytes) -> bool:
        """Whether a member of a group other than one subscribes to a topic."""
        members = self._groups.get(group, {}).items()
        return any(topic in member.subscriptions for session_id, member in members if session_id != but)

    def mode(self, group: str) -> GroupMode | None:
        """The mode of a group, None if it has no member."""
        modes = (member.mode for member in self._groups.get(group, {}).values())
        return next((mode for mode in modes if mode is not None), None)

    def _check(self, group: str, mode: GroupMode, subscriptions: Mapping[str, str], session: Session) -> None:
        names.check_group(group)
        _check_mode(mode)
        _check_subscriptions(group, subscriptions)
        if group not in session.groups and len(session.groups) >= MAX_GROUPS:
            raise BadRequest(f"a session can be in {MAX_GROUPS} groups at once: leave one first")
        other = self._another(group, session.id)
        if other is None:
            return
        if other.mode != mode:
            raise GroupMismatch(
                f"group {group!r} is {other.mode}; this member asked for {mode}: give all members the same settings"
            )
        theirs, ours = _chosen(group, other.subscriptions), _chosen(group, subscriptions)
        if theirs != ours and mode.model != ASSIGNED:
            raise GroupMismatch(_difference(group, theirs, ours))

    def _another(self, group: str, session_id: bytes) -> Member | None:
        # All that have joined agree, so that any other one will do.
        for other_id, member in self._groups.get(group, {}).items():
            if other_id != session_id and member.mode is not None:
                return member
        return None


def _check_mode(mode: GroupMode) -> None:
    if mode.model not in MODELS:
        known = ", ".join(repr(model) for model in MODELS)
        raise BadRequest(f"the model {mode.model[:40]!r} is unknown: it is one of {known}")
    if len(mode.strategy) > MAX_STRATEGY:
        raise BadRequest(f"the strategy has {len(mode.strategy)} characters, at most {MAX_STRATEGY} are allowed")


def _chosen(group: str, subscriptions: Mapping[str, str]) -> dict[str, str]:
    """
    What a user has chosen to consume: members subscribe to the retries of their group by themselves.

    Those of a version that does not know of retries may be in a group with others while all of them are replaced.
    """
    retries = names.retry_topic(group)
    return {topic: expression for topic, expression in subscriptions.items() if topic != retries}


def _check_subscriptions(group: str, subscriptions: Mapping[str, str]) -> None:
    if (count := len(_chosen(group, subscriptions))) > MAX_SUBSCRIPTIONS:
        raise BadRequest(f"a member subscribes to at most {MAX_SUBSCRIPTIONS} topics, not {count}")
    for topic, expression in subscriptions.items():
        names.check_readable(topic)
        if len(expression) > MAX_EXPRESSION:
            raise BadRequest(
                f"the tag expression for {topic!r} has {len(expression)} characters, "
                f"at most {MAX_EXPRESSION} are allowed"
            )
        try:
            tags.wanted(expression)
        except ValueError as error:
            raise BadRequest(str(error)) from error


def _difference(group: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    topic = min(topic for topic in theirs.keys() | ours.keys() if theirs.get(topic) != ours.get(topic))
    return (
        f"group {group!r} has {_how(theirs.get(topic))} for topic {topic!r}, this member has {_how(ours.get(topic))}: "
        "give all members the same subscriptions, or this one a group of its own"
    )


def _how(expression: str | None) -> str:
    return "no subscription" if expression is None else f"the expression {expression[:200]!r}"
