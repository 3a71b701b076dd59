"""Which messages of a topic a group wants: subscriptions, and tag expressions such as ``created || paid``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rmq.wire.batch.columns import TagColumn
from rmq.wire.batch.tags import ALL, parse
from rmq.wire.errors import ConfigError


class Selection(NamedTuple):
    """
    What an expression has selected of a queue since this consumer has it: messages that came, and those left out.

    Messages that came count before their tags are looked at, so that nothing is counted one by one.
    """

    expression: str = ALL
    came: int = 0
    left_out: int = 0

    def answered(self, expression: str, came: int, left_out: int) -> Selection:
        """Return this with the answer to a pull; under another expression it starts from zero."""
        if expression != self.expression:
            return Selection(expression, came, left_out)
        return Selection(expression, self.came + came, self.left_out + left_out)


class Subscription:
    """A parsed expression. Tags match exactly; a message without a tag matches only ``*``."""

    __slots__ = ("expression", "tags")

    def __init__(self, expression: str = ALL) -> None:
        """
        Raises:
            ConfigError: the expression is not text, names no tag, or ``*`` next to tags.
        """
        if not isinstance(expression, str):
            raise ConfigError(f"an expression must be text such as '*' or 'created || paid', not {expression!r}")
        self.tags = _parse(expression)
        self.expression = ALL if self.tags is None else " || ".join(sorted(self.tags))

    def __repr__(self) -> str:
        return f"Subscription({self.expression!r})"

    def select(self, tags: TagColumn | None, start: int, end: int) -> Sequence[int]:
        """The wanted indices of a batch from ``start`` to before ``end``."""
        if self.tags is None:
            return range(start, end)
        if tags is None:
            return ()
        wanted = {code for code, name in enumerate(tags.names, 1) if name in self.tags}
        return [i for i in range(start, end) if tags.codes[i] in wanted] if wanted else ()


def _parse(expression: str) -> frozenset[str] | None:
    try:
        return parse(expression)
    except ValueError as error:
        raise ConfigError(str(error)) from error


class Subscribed:
    """
    The user's subscriptions, as they are at the moment, and the topic of the group's own retries.

    Messages that were given back, and dead letters that are replayed, come by way of ``retry_topic`` (None: there is
    none). So every member subscribes to it, as long as its user wants anything.
    """

    def __init__(self, chosen: dict[str, Subscription], retry_topic: str | None) -> None:
        self._chosen = chosen
        self.retry_topic = retry_topic
        self.resting = False  # nothing is consumed for the time being, whatever the user wants
        self._every_retry = Subscription()

    def __bool__(self) -> bool:
        return bool(self._chosen) and not self.resting

    def __contains__(self, topic: str) -> bool:
        return bool(self) and (topic in self._chosen or topic == self.retry_topic)

    def all(self) -> dict[str, Subscription]:
        """Everything that is to be consumed; nothing if the user wants nothing."""
        if not self:
            return {}
        if self.retry_topic is None:
            return dict(self._chosen)
        return {self.retry_topic: self._every_retry, **self._chosen}

    def go_back(self, accepted: Mapping[str, Subscription]) -> None:
        """The broker wants us to consume what it accepted before: so does the user from here on."""
        self._chosen.clear()
        self._chosen.update({topic: wanted for topic, wanted in accepted.items() if topic != self.retry_topic})
