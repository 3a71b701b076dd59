"""How far a benchmark is, as a part of a whole. Pure."""

from __future__ import annotations

from collections.abc import Callable

Show = Callable[[float, str], None]  # which part of the whole is done, and what is measured now


class Counted:
    """
    The :class:`~rmq.bench.options.Steps` of a benchmark that begins at ``begin`` of a whole and is ``share`` of it.

    A sample is done when the next one begins.
    """

    def __init__(self, show: Show, begin: float = 0.0, share: float = 1.0) -> None:
        self._show = show
        self._begin = begin
        self._share = share
        self._expected = 0
        self._begun = 0

    def expect(self, more: int) -> None:
        """So many samples more are to come."""
        self._expected += more

    def __call__(self, what: str) -> None:
        """The next one begins."""
        done = self._begun / max(self._expected, self._begun, 1)
        self._begun += 1
        self._show(self._begin + self._share * done, what)
