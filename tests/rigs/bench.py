"""What tests of benchmarks need."""

from __future__ import annotations


class Steps:
    """The progress of a benchmark, kept."""

    def __init__(self) -> None:
        self.expected = 0
        self.said: list[str] = []

    def expect(self, more: int) -> None:
        """So many samples more are to come."""
        self.expected += more

    def __call__(self, what: str) -> None:
        """The next one begins."""
        self.said.append(what)
