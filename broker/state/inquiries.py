"""
Questions to members that wait for their answers. Pure: connections are opaque, time is an argument.

Each question has a token, bound to the session that was asked: only that session can answer it, once and in time. All
questions of one request are an :class:`Inquiry`, which is over when each was answered, or when the time for that is.
Open questions, and the answers to requests that still wait, are bounded: over all, and for each asker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rmq.wire.errors import MemberNotFound, MemberSilent, Refused, TooManyInFlight

MAX_ASKED: Final = 256  # members of all requests that wait
MAX_INQUIRIES: Final = 8  # requests of one connection that wait


class AskedMember(NamedTuple):
    """A member to be asked, over its connection if it has one."""

    member: str
    session: bytes
    connection: object | None


class Answer(NamedTuple):
    """What came of asking a member: its own words, as msgpack, or why there are none."""

    member: str
    info: bytes | None
    error: Refused | None = None


@dataclass(slots=True, eq=False)
class Inquiry:
    """One request and what came of it so far; written by the table only."""

    asker: object
    request_id: int
    is_one: bool  # asks for one member by name
    asked_at: float
    answers: list[Answer | None] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # in the order of those members that have a connection
    waiting: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is waited for any more."""
        return self.waiting == 0

    def result(self) -> list[Answer]:
        """What came of it, in the order asked; all of it once it is over."""
        return [answer for answer in self.answers if answer is not None]


class _Question(NamedTuple):
    inquiry: Inquiry
    place: int
    asked: AskedMember


class InquiryTable:
    """All questions to members that have no answer yet; an answer after more than ``wait_s`` is none."""

    def __init__(self, wait_s: float, most: int = MAX_ASKED) -> None:
        self.wait_s = wait_s
        self._most = most
        self._members = 0  # of all inquiries that are not over
        self._last_token = 0
        self._questions: OrderedDict[int, _Question] = OrderedDict()  # the oldest comes first
        self._of_asker: dict[object, list[Inquiry]] = {}

    def __len__(self) -> int:
        return len(self._questions)

    def begin(
        self, asker: object, request_id: int, members: Sequence[AskedMember], *, now: float, is_one: bool = False
    ) -> Inquiry:
        """
        Wait for the answers of those members that have a connection; the caller sends each its token.

        Raises:
            TooManyInFlight: too much is waited for, by all or by this one.
        """
        if len(self._of_asker.get(asker, ())) >= MAX_INQUIRIES:
            raise TooManyInFlight(f"{MAX_INQUIRIES} questions to members wait for their answers: let one end first")
        if self._members + len(members) > self._most:
            raise TooManyInFlight(f"{self._members} members are being asked, {self._most} at most: ask in a moment")
        inquiry = Inquiry(asker, request_id, is_one, now)
        for asked in members:
            self._ask(inquiry, asked)
        if not inquiry.is_over:
            self._members += len(members)
            self._of_asker.setdefault(asker, []).append(inquiry)
        return inquiry

    def _ask(self, inquiry: Inquiry, asked: AskedMember) -> None:
        if asked.connection is None:
            inquiry.answers.append(_no_connection(asked))
            return
        self._last_token += 1
        self._questions[self._last_token] = _Question(inquiry, len(inquiry.answers), asked)
        inquiry.answers.append(None)
        inquiry.tokens.append(self._last_token)
        inquiry.waiting += 1

    def expects(self, token: int, session: bytes, *, now: float) -> bool:
        """Whether an answer is waited for; not if this session was not asked that, or too long ago."""
        question = self._questions.get(token)
        return question is not None and question.asked.session == session and not self._is_late(question, now)

    def answer(self, token: int, session: bytes, info: bytes, *, now: float) -> Inquiry | None:
        """Note an answer; returns its inquiry, None if it is not expected."""
        if not self.expects(token, session, now=now):
            return None
        question = self._questions[token]
        self._settle(token, Answer(question.asked.member, info))
        return question.inquiry

    def expire(self, *, now: float) -> list[Inquiry]:
        """The inquiries whose time is over; who has not answered is silent."""
        over: list[Inquiry] = []
        while self._questions:
            token, question = next(iter(self._questions.items()))
            if not self._is_late(question, now):
                break
            text = f"{question.asked.member} did not answer within {self.wait_s:g} s"
            over += self._settle(token, Answer(question.asked.member, None, MemberSilent(text)))
        return over

    def closed(self, connection: object) -> list[Inquiry]:
        """A connection ended: it waits for nothing and answers nothing; returns the inquiries that are over by that."""
        for inquiry in self._of_asker.pop(connection, ()):
            self._members -= len(inquiry.answers)
            for token in inquiry.tokens:
                self._questions.pop(token, None)
        over: list[Inquiry] = []
        for token, question in list(self._questions.items()):
            if question.asked.connection is connection:
                over += self._settle(token, _no_connection(question.asked))
        return over

    def _settle(self, token: int, answer: Answer) -> list[Inquiry]:
        inquiry, place, _ = self._questions.pop(token)
        inquiry.answers[place] = answer
        inquiry.waiting -= 1
        if not inquiry.is_over:
            return []
        self._members -= len(inquiry.answers)
        others = self._of_asker[inquiry.asker]
        others.remove(inquiry)
        if not others:
            del self._of_asker[inquiry.asker]
        return [inquiry]

    def _is_late(self, question: _Question, now: float) -> bool:
        return now - question.inquiry.asked_at > self.wait_s


def _no_connection(asked: AskedMember) -> Answer:
    text = f"{asked.member} has no connection to the broker at this moment"
    return Answer(asked.member, None, MemberNotFound(text))
