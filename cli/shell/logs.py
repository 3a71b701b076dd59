"""
Configures logging for commands: to standard error, in one format for broker, client and consumer.

``console`` is for people, ``logfmt`` and ``json`` are for machines; ``auto`` picks console on a terminal, else logfmt.
The broker logs through structlog, client and consumer through the standard ``logging``; libraries only ask for a
logger. A reader of standard error that is slow or gone never blocks or fails the process that logs.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, TextIO, cast

FORMATS = ("auto", "console", "logfmt", "json")
LEVELS = ("debug", "info", "warning", "error")


def configure(level: str, form: str = "auto") -> None:
    """Configure logging of this process, replacing an earlier configuration."""
    import structlog

    if form == "auto":
        form = "console" if sys.stderr.isatty() else "logfmt"
    threshold = getattr(logging, level.upper())
    sink = LogSink(sys.stderr)
    first: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last = _renderers(form)
    structlog.configure(
        processors=[*first, *last],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, sink)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(cast(TextIO, sink))
    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=[*first, _unfold], processors=[without_meta, *last])
    )
    logging.basicConfig(level=threshold, handlers=[handler], force=True)


@contextmanager
def hidden(*events: str) -> Iterator[None]:
    """Within the block these events of the client packages are not logged, unless they come with a traceback."""
    from rmq.runtime.logging import FIELDS, TRACE

    def is_shown(record: logging.LogRecord) -> bool:
        is_one = getattr(record, FIELDS, {}).get("event") in events
        return not is_one or getattr(record, TRACE, None) is not None

    loggers = [logging.getLogger(name) for name in ("rmq.client", "rmq.consumer")]
    for logger in loggers:
        logger.addFilter(is_shown)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_shown)


def _unfold(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Restore the fields of events of the client packages, which format them for any program."""
    from rmq.runtime.logging import FIELDS, TRACE

    record = event["_record"]
    fields = getattr(record, FIELDS, None)
    if fields is not None:
        event.update({key: value if isinstance(value, int | float) else str(value) for key, value in fields.items()})
        if (trace := getattr(record, TRACE)) is not None:
            event["exception"] = trace
    return event


def _renderers(form: str) -> list[Any]:
    import structlog

    if form == "console":
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    if form == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    order = ["timestamp", "level", "event"]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.LogfmtRenderer(key_order=order, drop_missing=True, bool_as_flag=False),
    ]


PIECE: Final = 4096  # a pipe that polls as writable takes this much without blocking (PIPE_BUF on Linux)


class LogSink:
    """
    Writes what can be written at once and drops the rest.

    A pipe without a reader would block a process that logs from its event loop, and with it all its
    clients. Dropped lines are counted, and the number is written as soon as there is room again.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._poll = select.poll()
        self.dropped = 0
        try:
            self._fd = stream.fileno()
        except (OSError, ValueError, io.UnsupportedOperation):
            self._fd = -1  # a stream in memory
        else:
            self._poll.register(self._fd, select.POLLOUT)

    def write(self, text: str) -> None:
        """Write a line, or drop it; never raises, never waits."""
        if self.dropped:
            text = f"{self.dropped} log lines were dropped: standard error was not read\n{text}"
        try:
            self._put(text)
            self.dropped = 0
        except (OSError, ValueError):  # not now, a full disk, a closed pipe, a closed stream
            self.dropped += 1

    def _put(self, text: str) -> None:
        if self._fd < 0:
            self._stream.write(text)
            return
        data = memoryview(text.encode(errors="backslashreplace"))
        while data:
            if not self._poll.poll(0):
                raise BlockingIOError
            data = data[os.write(self._fd, data[:PIECE]) :]

    def flush(self) -> None:
        """Do nothing: lines are not buffered."""
