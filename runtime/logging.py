"""
Loggers for events with keys: structlog as the program configured it, otherwise the standard ``logging``.

A library must not print, and structlog writes to standard output until it is configured. So clients, and a broker in a
user's tests, log through ``logging``, where every program already decides what is shown and where.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping, Sequence
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


def get_broker_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger for dotted events: ``log.info("lock.granted", group=...)``."""
    return cast(structlog.stdlib.BoundLogger, _Logger(name))


def lines_of(many: Sequence[str]) -> Iterator[str]:
    """Yield what one event says of many queues, up to 64 of them in a line."""
    for at in range(0, len(many), PER_LINE):
        yield " ".join(many[at : at + PER_LINE])


FIELDS = "rmq_fields"  # attributes of a log record: the event with its keys, and the traceback if there is one
TRACE = "rmq_trace"


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger for dotted events: ``log.warning("connection.lost", address=...)``."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, structlog.processors.format_exc_info, _as_line],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger


def _as_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> tuple[tuple[str, str], dict[str, Any]]:
    name, trace = event.pop("event", ""), event.pop("exception", None)
    line = " ".join([str(name), *(f"{key}={_quoted(value)}" for key, value in event.items() if key != "stack")])
    line += f"\n{event['stack']}" if "stack" in event else ""
    fields = {"event": name, **event}  # for a program that renders events itself, as the commands do
    return ("%s", line if trace is None else f"{line}\n{trace}"), {"extra": {FIELDS: fields, TRACE: trace}}


def _quoted(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(c.isspace() for c in text) else text
