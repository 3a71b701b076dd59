"""What the parts of rmq log as errors, for tests in which nothing of that may happen; everything else is not logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.testing import capture_logs


class _Collector(logging.Handler):
    """Keeps the lines."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def logged_errors() -> Iterator[Callable[[], list[str]]]:
    """Yield a function that returns the errors logged so far by clients, consumers and brokers."""
    logger, collector = logging.getLogger("rmq"), _Collector()
    before = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(collector)
    try:
        with capture_logs() as captured:
            yield lambda: [*collector.lines, *_errors(captured)]
    finally:
        logger.removeHandler(collector)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _errors(captured: Iterable[Mapping[str, Any]]) -> list[str]:
    """Those of brokers in a program that has configured structlog, as ``capture_logs`` does."""
    return [f"{event['event']} {event}" for event in captured if event["log_level"] in ("error", "critical")]


@contextmanager
def logging_restored() -> Iterator[None]:
    """Give the process its logging back, which a command configures."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()
