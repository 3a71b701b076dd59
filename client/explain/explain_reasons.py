"""The reasons that explain how a queue is, how urgent each is, and from when on something is suspicious."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple

LONG_CALL_S: Final = 5.0  # a call that runs longer is told of
SUSPICIOUS_CALL_S: Final = 60.0  # and one that runs this long needs somebody
SUSPICIOUS_ATTEMPT: Final = 4  # a message whose delivery has this number needs somebody
CAREFUL_OWNERS: Final = 2  # lost at the same message, they are a pattern
UNPOLLED_S: Final = 5.0  # a program that has not polled for longer is told of
MANY_LEFT_OUT: Final = 100  # messages without a match, for a group whose tag filter may have matched earlier ones
RETURN_S: Final = 10.0  # so long after the start of the broker, members may be on their way back to it
COPY_SHOWN_S: Final = 86_400.0  # so long a copy of the store is mentioned
LATE_S: Final = 1.0  # an event loop that is later than this is told of


class Reason(Enum):
    """Why a queue is as it is. The value is what scripts see; it does not change."""

    DAMAGED = "DAMAGED"
    MESSAGES_LOST = "MESSAGES_LOST"
    OTHER_HISTORY = "OTHER_HISTORY"
    CRASH_LOOP = "CRASH_LOOP"
    NO_MEMBER = "NO_MEMBER"
    NOT_SUBSCRIBED = "NOT_SUBSCRIBED"
    NOT_ALLOCATED = "NOT_ALLOCATED"
    MEMBER_SILENT = "MEMBER_SILENT"
    WAITING_FOR_LOCK = "WAITING_FOR_LOCK"
    PAUSED = "PAUSED"
    LISTENER_RUNNING = "LISTENER_RUNNING"
    RETRYING = "RETRYING"
    NOT_POLLED = "NOT_POLLED"
    LOOP_LATE = "LOOP_LATE"
    FLOW_CONTROL = "FLOW_CONTROL"
    SLOTS_BUSY = "SLOTS_BUSY"
    FILTER_MATCHES_NOTHING = "FILTER_MATCHES_NOTHING"
    STANDING_STILL = "STANDING_STILL"
    CONSUMING = "CONSUMING"
    NO_NEW_MESSAGES = "NO_NEW_MESSAGES"


class Urgency(IntEnum):
    """Who has to do something: nobody, perhaps somebody if it stays so, somebody."""

    WELL = 0
    WATCH = 1
    ACT = 2


class Finding(NamedTuple):
    """What a rule says of a queue."""

    reason: Reason
    urgency: Urgency
    sentence: str
    advice: str = ""
