"""
The exit codes of every command, for scripts.

Named and numbered as in BSD's ``sysexits.h`` where it has the case; 2 is the code of click (and most commands) for a
wrong command line, 130 that of shells for Ctrl-C.
"""

from __future__ import annotations

from typing import Final

from rmq.wire import errors

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

_BY_ERROR: Final[tuple[tuple[type[errors.RmqError], int], ...]] = (
    (errors.ConfigError, CONFIG),
    (errors.ConnectionLost, UNAVAILABLE),
    (errors.RequestTimeout, TEMPORARY),
    (errors.OutcomeUnknown, TEMPORARY),
    (errors.DiskFull, TEMPORARY),
    (errors.StoreFailed, TEMPORARY),
    (errors.TopicNotFound, NO_INPUT),
    (errors.MessageNotFound, NO_INPUT),
    (errors.GroupNotFound, NO_INPUT),
    (errors.MemberNotFound, NO_INPUT),
    (errors.MemberSilent, TEMPORARY),
    (errors.Damaged, DATA_ERROR),
    (errors.BadName, USAGE),
    (errors.TopicExists, REFUSED),
    (errors.GroupMismatch, REFUSED),
    (errors.ProtocolUnsupported, REFUSED),  # which no waiting mends
    (errors.Fatal, UNAVAILABLE),
    (errors.WireError, REFUSED),
)


def of(error: errors.RmqError) -> int:
    """The code a command ends with because of ``error``."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), FAILURE)
