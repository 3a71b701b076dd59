"""
The exit codes of every command, for scripts.

Named and numbered as in BSD's ``sysexits.h`` where it has the case; 2 is the code of click (and most commands) for a
wrong command line, 130 that of shells for Ctrl-C.
"""

from __future__ import annotations

from typing import Final

from rmq.wire.errors import (
    BadName,
    ConfigError,
    ConnectionLost,
    Damaged,
    DiskFull,
    Fatal,
    GroupMismatch,
    GroupNotFound,
    MemberNotFound,
    MemberSilent,
    MessageNotFound,
    OutcomeUnknown,
    ProtocolUnsupported,
    RequestTimeout,
    RmqError,
    StoreFailed,
    TopicExists,
    TopicNotFound,
    WireError,
)

OK: Final = 0
FAILURE: Final = 1  # anything without a code of its own
USAGE: Final = 2  # the command line is wrong
PARTIAL: Final = 3  # of several things some failed; the output tells which
ATTENTION: Final = 4  # rmq-admin explain: a queue requires action
DATA_ERROR: Final = 65  # the input, or what is stored, is not what it should be
NO_INPUT: Final = 66  # a file, module, topic or group that was named does not exist
UNAVAILABLE: Final = 69  # no broker answers
OS_ERROR: Final = 71  # an address that is taken, a folder that cannot be used
TEMPORARY: Final = 75  # outcome unknown, or worth trying again
REFUSED: Final = 76  # the broker refused, or speaks another protocol
CONFIG: Final = 78  # a setting is wrong, or an address
INTERRUPTED: Final = 130  # Ctrl-C, or a second signal that did not let a stop finish

_BY_ERROR: Final[tuple[tuple[type[RmqError], int], ...]] = (
    (ConfigError, CONFIG),
    (ConnectionLost, UNAVAILABLE),
    (RequestTimeout, TEMPORARY),
    (OutcomeUnknown, TEMPORARY),
    (DiskFull, TEMPORARY),
    (StoreFailed, TEMPORARY),
    (TopicNotFound, NO_INPUT),
    (MessageNotFound, NO_INPUT),
    (GroupNotFound, NO_INPUT),
    (MemberNotFound, NO_INPUT),
    (MemberSilent, TEMPORARY),
    (Damaged, DATA_ERROR),
    (BadName, USAGE),
    (TopicExists, REFUSED),
    (GroupMismatch, REFUSED),
    (ProtocolUnsupported, REFUSED),  # which no waiting mends
    (Fatal, UNAVAILABLE),
    (WireError, REFUSED),
)


def of(error: RmqError) -> int:
    """The code a command ends with because of ``error``."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), FAILURE)
