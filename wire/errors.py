"""
Every error rmq raises, and its code on the wire.

::

    RmqError
    ├── ConfigError              a setting that cannot be
    ├── ConnectionLost           the connection ended before the answer came
    ├── RequestTimeout           no answer within the caller's time
    ├── OutcomeUnknown           a send that may or may not have been stored
    └── WireError                has a stable code; may travel in a frame
        ├── Refused              this request only: the connection goes on
        │   ├── BadRequest  UnknownOp  Internal  TooManyInFlight
        │   ├── BadBatch  BatchTooLarge  MessageTooLarge  UnsupportedFormat
        │   ├── BadName  TopicNotFound  TopicExists  QueueNotFound  OffsetOutOfRange
        │   ├── OutOfSequence  SequenceConflict  ProducerFenced
        │   ├── StoreFailed  DiskFull  Damaged  LogTruncated  MessagesLost  OtherHistory
        │   └── Fenced  LockHeld  NotAMember  GroupMismatch
        └── Fatal                reply, then close
            ├── BadFrame  FrameTooLarge  FrameStalled  SlowReader
            ├── HelloRequired  HelloTimeout  ProtocolUnsupported
            └── TooManyConnections  ShuttingDown  SessionReplaced

Codes never change and are never reused. A peer that meets a code it does not know
raises the plain :class:`Refused` with that code and the peer's own sentence.
"""

from __future__ import annotations

from typing import ClassVar

OK = 0


class RmqError(Exception):
    """Root of all errors of rmq."""


class ConfigError(RmqError, ValueError):
    """A setting that is unknown or cannot be."""


class ConnectionLost(RmqError, ConnectionError):
    """The connection ended before the answer came."""


class RequestTimeout(RmqError, TimeoutError):
    """No answer came within the caller's time."""


class OutcomeUnknown(RmqError):
    """A send whose answer never came: it may or may not have been stored."""


class WireError(RmqError):
    """An error with a stable code that one side may tell the other."""

    code: ClassVar[int] = -1
    by_code: ClassVar[dict[int, type[WireError]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" in cls.__dict__:
            if cls.code in WireError.by_code:
                raise TypeError(f"code {cls.code} of {cls.__name__} is taken by {WireError.by_code[cls.code].__name__}")
            WireError.by_code[cls.code] = cls

    def __init__(self, text: str, *, code: int | None = None) -> None:
        super().__init__(text)
        self.text = text
        if code is not None:
            self.code = code  # type: ignore[misc]  # a code this version does not know

    @property
    def name(self) -> str:
        """The code as people read it: ``TOPIC_NOT_FOUND``."""
        return code_name(self.code)


class Refused(WireError):
    """This request was refused; the connection goes on."""


class Fatal(WireError):
    """The connection cannot go on: the reason is sent, then it is closed."""


class BadFrame(Fatal):
    """Bytes that are not a frame."""

    code = 1


class FrameTooLarge(Fatal):
    """A frame whose announced length is over the limit."""

    code = 2


class FrameStalled(Fatal):
    """A frame that was begun and did not go on."""

    code = 3


class HelloRequired(Fatal):
    """Something came before the hello."""

    code = 4


class HelloTimeout(Fatal):
    """No hello came in time."""

    code = 5


class ProtocolUnsupported(Fatal):
    """The two sides share no protocol version."""

    code = 6


class SlowReader(Fatal):
    """The peer read nothing for too long while answers waited."""

    code = 7


class TooManyConnections(Fatal):
    """The broker has as many connections as it may."""

    code = 8


class ShuttingDown(Fatal):
    """The broker is stopping."""

    code = 9


class SessionReplaced(Fatal):
    """A newer connection took this session over."""

    code = 10


class BadRequest(Refused):
    """A request whose fields have a wrong type or value."""

    code = 100


class UnknownOp(Refused):
    """An operation this broker does not have."""

    code = 101


class Internal(Refused):
    """A defect of the broker; its log has the details under the id in the text."""

    code = 102


class TooManyInFlight(Refused):
    """More unanswered requests than a connection may have."""

    code = 103


class BadBatch(Refused):
    """A record batch that breaks its own layout."""

    code = 110


class BatchTooLarge(Refused):
    """A record batch over the size limit."""

    code = 111


class MessageTooLarge(Refused):
    """A message body over the size limit."""

    code = 112


class UnsupportedFormat(Refused):
    """A format, kind, codec or attribute this version does not know."""

    code = 113


class BadName(Refused):
    """A topic or group name with illegal characters or length."""

    code = 120


class TopicNotFound(Refused):
    """A topic that does not exist."""

    code = 121


class TopicExists(Refused):
    """A topic that exists with another shape."""

    code = 122


class QueueNotFound(Refused):
    """A queue the topic does not have."""

    code = 123


class OffsetOutOfRange(Refused):
    """An offset outside of what the queue holds."""

    code = 124


class OutOfSequence(Refused):
    """A producer's batch came after one that is missing."""

    code = 130


class SequenceConflict(Refused):
    """A sequence number that was used for another batch."""

    code = 131


class ProducerFenced(Refused):
    """A newer incarnation of this producer exists."""

    code = 132


class StoreFailed(Refused):
    """The log could not be written."""

    code = 140


class DiskFull(Refused):
    """Too little free space to accept messages."""

    code = 141


class Damaged(Refused):
    """A range of the log that was found damaged."""

    code = 142


class LogTruncated(Refused):
    """The reader holds messages that the log has lost."""

    code = 143


class MessagesLost(Refused):
    """Messages that the reader did not get yet were removed by retention."""

    code = 144


class OtherHistory(Refused):
    """The broker's store is a copy, and the reader's position lies past the offset where the two histories part."""

    code = 146


class MessageNotFound(Refused):
    """No message has this id."""

    code = 145


class Fenced(Refused):
    """The epoch is stale or missing: somebody else may own the queue."""

    code = 150


class LockHeld(Refused):
    """Another member of the group holds the queue."""

    code = 151


class NotAMember(Refused):
    """This session has not joined the group."""

    code = 152


class GroupMismatch(Refused):
    """The group runs in another mode than asked for."""

    code = 153


class GroupNotFound(Refused):
    """No group of this name has members, leases or progress."""

    code = 154


class MemberNotFound(Refused):
    """The group has no such member, or it has no connection."""

    code = 155


class MemberSilent(Refused):
    """The member did not answer in time."""

    code = 156


class BadDelay(Refused):
    """A delay that this broker does not have: an unknown level, or a time that is too far away."""

    code = 157


def code_name(code: int) -> str:
    """The name of a code, as in documents and logs."""
    kind = WireError.by_code.get(code)
    if kind is None:
        return "OK" if code == OK else f"CODE_{code}"
    return "".join("_" + c if c.isupper() and i else c for i, c in enumerate(kind.__name__)).upper()


def from_wire(code: int, text: str) -> WireError:
    """The exception for a code and sentence received from the other side."""
    kind = WireError.by_code.get(code)
    return kind(text) if kind is not None else Refused(text, code=code)
