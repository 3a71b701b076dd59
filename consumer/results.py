"""What a call of the listener came to: how its answer is read, and the type of its result. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from rmq.wire.model import ConsumeStatus

SUCCESS, SUSPEND = ConsumeStatus.SUCCESS, ConsumeStatus.SUSPEND
COMMIT, ROLLBACK = ConsumeStatus.COMMIT, ConsumeStatus.ROLLBACK
RETRY = ConsumeStatus.RETRY


class ResultType(Enum):
    """How a call ended, for hooks and statistics."""

    SUCCESS = "success"
    TIME_OUT = "time_out"  # it answered, but took ``consume_timeout_s`` or longer; a success is committed all the same
    EXCEPTION = "exception"
    RETURNED_NULL = "returned_null"
    FAILED = "failed"  # it asked for the messages again


class Reading(NamedTuple):
    """What an answer means, and a warning (event, advice) if it was not a good one."""

    status: ConsumeStatus
    warning: tuple[str, str] | None = None


def read_status(status: object, auto_commit: bool) -> Reading:
    """COMMIT, SUSPEND, ROLLBACK, or SUCCESS for a success that is not to be committed yet."""
    if status is None:
        advice = "return ConsumeStatus.SUCCESS when the messages are done"
        return Reading(SUSPEND, ("listener.returned_nothing", advice))
    if not isinstance(status, ConsumeStatus):
        advice = f"{status!r} is no ConsumeStatus; taken as SUSPEND"
        return Reading(SUSPEND, ("listener.returned_no_status", advice))
    if status is RETRY:
        advice = "RETRY is for orderly=False: in order the message itself is tried again; taken as SUSPEND"
        return Reading(SUSPEND, ("listener.asks_to_retry", advice))
    if not auto_commit or status is SUSPEND:
        return Reading(status)
    if status is ROLLBACK:
        # RocketMQ takes it for a success. Whoever asks for the messages again does not want them committed.
        advice = "ROLLBACK needs auto_commit = False; taken as SUSPEND"
        return Reading(SUSPEND, ("listener.rolls_back_itself", advice))
    if status is COMMIT:
        advice = "COMMIT means something only with context.auto_commit = False"
        return Reading(COMMIT, ("listener.commits_itself", advice))
    return Reading(COMMIT)


def read_concurrent_status(status: object) -> Reading:
    """SUCCESS or RETRY: what the answer means where messages of a queue are finished in any order."""
    if status is SUCCESS or status is RETRY:
        return Reading(status)
    if status is None:
        advice = "return ConsumeStatus.SUCCESS when the messages are done"
        return Reading(RETRY, ("listener.returned_nothing", advice))
    if not isinstance(status, ConsumeStatus):
        return Reading(RETRY, ("listener.returned_no_status", f"{status!r} is no ConsumeStatus; taken as RETRY"))
    meant = SUCCESS if status is COMMIT else RETRY
    advice = f"{status.name} is for orderly consumption; taken as {meant.name}"
    return Reading(meant, ("listener.returned_ordered_status", advice))


def acknowledged(ack_index: object, count: int) -> int | None:
    """How many of a call's messages are done by its ``ack_index``; None if it is no index."""
    if ack_index is None:
        return count
    if isinstance(ack_index, bool) or not isinstance(ack_index, int):
        return None
    return min(max(ack_index + 1, 0), count)


def result_type(status: object, error: BaseException | None, *, timed_out: bool) -> ResultType:
    """The type of a result; an exception and a missing answer come before the time it took."""
    if error is not None:
        return ResultType.EXCEPTION
    if status is None:
        return ResultType.RETURNED_NULL
    if timed_out:
        return ResultType.TIME_OUT
    return ResultType.SUCCESS if status in (SUCCESS, COMMIT) else ResultType.FAILED


def is_success(status: object, error: BaseException | None) -> bool:
    """Whether the listener says that the messages are done."""
    return error is None and status in (SUCCESS, COMMIT)


def failure_of(status: object, error: BaseException | None) -> str:
    """What a listener that failed has done, for people: raised, forgot to answer, or asked for its messages again."""
    if error is not None:
        return _said_by(error)
    if status is None:
        return "the listener returned nothing; it must return ConsumeStatus.SUCCESS when messages are done"
    if not isinstance(status, ConsumeStatus):
        return f"the listener returned {_article(type(status).__name__)}, which is no ConsumeStatus"
    return "the listener asked for it again"


def _said_by(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # a text that cannot be made must not take the queue with it
        text = "its text cannot be read"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
