"""
MEMBER_INFO and RUNNING_INFO: a member is asked what it does, over its own connection, and whoever wants to know waits.

Nothing runs meanwhile: what is waited for stands in a table, and the broker's tick ends what takes too long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgpack

from rmq.wire import names
from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import OK, BadRequest, MemberNotFound
from rmq.wire.protocol import frames
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import Outcome, Push
from rmq.wire.protocol.ops.groups import ANSWER_S, ASKED_AT_ONCE, MAX_INFO, MAX_LEVELS, MemberInfo, RunningInfo

from ..net.connection import DEFERRED, Connection
from ..state.groups import Membership
from ..state.inquiries import Answer, Asked, Inquiry, InquiryTable
from ..state.leases import shown
from ..state.sessions import Session
from .inspect import GroupAdminHandler

NOTHING: Final[bytes] = msgpack.packb({})


class RunningInfoHandler:
    """Carries questions to members and their answers back."""

    def __init__(self, groups: GroupAdminHandler, members: Membership, *, now: Callable[[], float]) -> None:
        self._groups = groups
        self._members = members
        self._now = now
        self._inquiries = InquiryTable(ANSWER_S)

    def ask(self, connection: Connection, request_id: int, payload: Any) -> object:
        """MEMBER_INFO: ask a member, or a page of all; the answer follows when they have answered, or should have."""
        group, member, after = decode(MemberInfo, payload)
        names.check_group(group)
        self._groups.require(group)
        members = self._asked(group, member, after)
        inquiry = self._inquiries.begin(connection, request_id, members, now=self._now(), is_one=bool(member))
        reachable = [asked.connection for asked in members if isinstance(asked.connection, Connection)]
        for token, asked in zip(inquiry.tokens, reachable, strict=True):
            # One that does not read its pushes is asked the newest question only.
            frame = frames.pack(frames.PUSH, 0, Push.RUNNING_INFO, (token, group))
            asked.push_frame(frame, ("running info", group))
        if inquiry.is_over:
            self._reply(inquiry)
        else:
            connection.set_aside()  # as many as may wait are bounded by the table
        return DEFERRED

    def _asked(self, group: str, member: str, after: str) -> list[Asked]:
        known = [*self._members.of_group(group), *self._members.silent(group)]  # a silent one may have woken up
        sessions = sorted((member.session for member in known), key=_name)
        if member:
            sessions = [session for session in sessions if session.member == member][:1]
            if not sessions:
                raise MemberNotFound(f"group {group!r} has no member {shown(member)!r}")
        else:
            sessions = [session for session in sessions if session.member > after][:ASKED_AT_ONCE]
        return [Asked(session.member, session.id, session.connection) for session in sessions]

    def answer(self, connection: Connection, request_id: int, payload: Any) -> object:
        """RUNNING_INFO: what a member says of itself."""
        token, info = decode(RunningInfo, payload)
        session = connection.session
        assert session is not None  # the connection serves nothing before the hello
        now = self._now()
        if not self._inquiries.expects(token, session.id, now=now):  # before time is spent on looking at it
            raise BadRequest("nobody waits for this answer: it comes too late, or this session was not asked")
        inquiry = self._inquiries.answer(token, session.id, _packed(info), now=now)
        assert inquiry is not None  # it is expected
        self._reply_if_over(inquiry)
        return Outcome()

    def expire(self) -> None:
        """Answer for those who did not. Called by the broker's tick."""
        for inquiry in self._inquiries.expire(now=self._now()):
            self._reply_if_over(inquiry)

    def closed(self, connection: Connection) -> None:
        """A connection ended: it neither waits nor answers any more."""
        for inquiry in self._inquiries.closed(connection):
            self._reply_if_over(inquiry)

    def _reply_if_over(self, inquiry: Inquiry) -> None:
        """Answer a request that was set aside, once nothing is waited for any more."""
        if inquiry.is_over:
            assert isinstance(inquiry.asker, Connection)
            inquiry.asker.take_back()
            self._reply(inquiry)

    def _reply(self, inquiry: Inquiry) -> None:
        asker, answers = inquiry.asker, inquiry.result()
        assert isinstance(asker, Connection)
        if inquiry.is_one and answers[0].error is not None:
            asker.refuse(inquiry.request_id, answers[0].error)
            return
        parts: list[Buffer] = [frames.array_header(len(answers))]
        for answer in answers:
            parts += _report(answer)
        asker.reply_parts(inquiry.request_id, parts)


def _report(answer: Answer) -> list[Buffer]:
    """A MemberReport; what the member said is not unpacked again."""
    status, text = (OK, None) if answer.error is None else (answer.error.code, answer.error.text)
    head: bytes = msgpack.packb((status, answer.member, text, None))[:-1]
    return [head, NOTHING if answer.info is None else answer.info]


def _packed(info: dict[str, Any]) -> bytes:
    if _is_deeper(info, MAX_LEVELS):
        raise BadRequest(f"RunningInfo: info has more than {MAX_LEVELS} levels of maps and arrays")
    packed: bytes = msgpack.packb(info)
    if len(packed) > MAX_INFO:
        raise BadRequest(f"RunningInfo: info has {len(packed)} bytes, at most {MAX_INFO} are allowed")
    return packed


def _is_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    elements = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(element, levels - 1) for element in elements)


def _name(session: Session) -> str:
    return session.member
