"""
The loggers of the client packages: events with keys, written by the standard ``logging``.

A library must not print: structlog writes to standard output unless the program configured it, so the events go
through ``logging``, where every program already decides what is shown and where.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog

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
