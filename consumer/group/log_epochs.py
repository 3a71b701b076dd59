"""Under which start of the broker the messages were stored that a reader has fetched. Pure."""

from __future__ import annotations

from collections import deque

UNKNOWN = 0  # no log epoch: the reader has no such message
MOST_RUNS = 64  # kept; what lies before them is as if it had not been fetched


class LogEpochs:
    """
    The log epoch of every message that was fetched, as runs of equal ones: it changes only where the broker restarted.

    A broker that lost the end of its log gives the same offsets to other messages, under a higher epoch. So the epoch
    of the message before an offset tells whether reader and log agree up to there. It is remembered for more than the
    last message, since what is left after a cut has to be compared as well.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: deque[tuple[int, int]] = deque(maxlen=MOST_RUNS)  # first offset, epoch; both ascend

    def fetched(self, queue_offset: int, log_epoch: int) -> None:
        """
        Messages from ``queue_offset`` on were stored under ``log_epoch``.

        Of some, which were passed over since nobody wants them, only a bound is known, the epoch of the broker that
        did so: what follows them in the log may lower it.
        """
        while self._runs and self._runs[-1][1] > log_epoch > UNKNOWN:
            queue_offset = self._runs.pop()[0]
        if not self._runs or self._runs[-1][1] != log_epoch:
            self._runs.append((queue_offset, log_epoch))

    def skipped(self, queue_offset: int) -> None:
        """Nothing was fetched from ``queue_offset`` on, up to what is fetched next."""
        if self._runs:
            self.fetched(queue_offset, UNKNOWN)

    def before(self, queue_offset: int) -> int:
        """The log epoch of the message before ``queue_offset``; 0 if it was not fetched."""
        for first, log_epoch in reversed(self._runs):
            if first < queue_offset:
                return log_epoch
        return UNKNOWN

    def cut(self, queue_offset: int) -> None:
        """Forget everything from ``queue_offset`` on."""
        while self._runs and self._runs[-1][0] >= queue_offset:
            self._runs.pop()
