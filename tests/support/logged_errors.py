"""What the parts of rmq log as errors, for tests in which nothing of that may happen; everything else is not logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from structlog.testing import capture_logs


class _Collector(logging.Handler):
    """Keeps the lines."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def errors_told() -> Iterator[list[str]]:
    """
    The errors that clients, consumers and brokers log inside the ``with``, each beginning with its event.

    Those of a broker whose program has configured structlog are known when the ``with`` has ended.
    """
    logger, collector = logging.getLogger("rmq"), _Collector()
    before = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(collector)
    try:
        with capture_logs() as captured:
            yield collector.lines
    finally:
        logger.removeHandler(collector)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        for event in captured:
            if event["log_level"] in ("error", "critical"):
                collector.lines.append(f"{event['event']} {event}")
