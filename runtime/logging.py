"""
The broker's loggers: structlog's as the program configured it, else the standard ``logging``.

The broker also runs inside the tests of users, and structlog prints to standard output until it is configured.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import structlog

PER_LINE: Final = 64  # a line costs the loop some 80 us, and collectors of logs cut long ones

_PLAIN = (
    structlog.stdlib.filter_by_level,
    structlog.processors.format_exc_info,
    structlog.processors.LogfmtRenderer(key_order=["event"], drop_missing=True, bool_as_flag=False),
)


class _Logger:
    """Decides at each event, since a module asks for its logger before the program configures anything."""

    def __init__(self, name: str) -> None:
        self._configured = structlog.get_logger(name)
        self._plain = structlog.wrap_logger(
            logging.getLogger(name), processors=_PLAIN, wrapper_class=structlog.stdlib.BoundLogger
        )

    def __getattr__(self, method: str) -> Any:
        return getattr(self._configured if structlog.is_configured() else self._plain, method)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger for dotted events: ``log.info("lock.granted", group=...)``."""
    return cast(structlog.stdlib.BoundLogger, _Logger(name))


def lines_of(many: Sequence[str]) -> Iterator[str]:
    """Yield what one event says of many queues, up to 64 of them in a line."""
    for at in range(0, len(many), PER_LINE):
        yield " ".join(many[at : at + PER_LINE])
