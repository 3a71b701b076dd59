"""Groups of consumers as scripts describe them and checkers judge them."""

from __future__ import annotations

from typing import NamedTuple

from rmq.wire.names import dead_letter_topic, retry_topic

TOPIC = "orders"  # what every simulated group consumes
CONCURRENT, ORDERLY, PULL = "concurrent", "orderly", "pull"
CAST, CAST_ORDERLY = "broadcasting", "broadcasting orderly"
KINDS = (CONCURRENT, ORDERLY, PULL, CAST, CAST_ORDERLY)


class Group(NamedTuple):
    """A group; ``settings`` are those of its consumers that are not the default, as pairs."""

    name: str
    kind: str
    settings: tuple[tuple[str, object], ...] = ()
    expression: str = "*"

    @property
    def shared(self) -> bool:
        """Whether its members share the queues out: it is not broadcasting."""
        return self.kind in (CONCURRENT, ORDERLY, PULL)

    def wants(self, tag: str | None) -> bool:
        """Return whether it has subscribed to a tag."""
        return self.expression == "*" or tag in {one.strip() for one in self.expression.split("||")}

    def setting(self, name: str, default: float) -> float:
        """Return a number among its settings."""
        value = dict(self.settings).get(name, default)
        assert isinstance(value, int | float)
        return value

    @property
    def retries(self) -> str:
        """Its retry topic."""
        return retry_topic(self.name)

    @property
    def dead(self) -> str:
        """Its dead-letter topic."""
        return dead_letter_topic(self.name)


class Levels(NamedTuple):
    """The delay levels of a broker, how often it gives a message back, and how late anything may be."""

    seconds: tuple[float, ...]
    max_retries: int = 16
    late_s: float = 0.1  # a deferred message
    settle_s: float = 2.0  # what nothing hinders

    def delay_s(self, asked: int, attempt: int) -> float:
        """Return the delay of a message that failed at this attempt; the listener asked for a level, or 0 for none."""
        level = asked or 2 + attempt
        return self.seconds[min(level, len(self.seconds)) - 1]

    def limit(self, group: Group) -> int:
        """Return how often a message is delivered to a group before it is given up."""
        most = int(group.setting("max_attempts", -1))
        return self.max_retries + 1 if most == -1 else most
