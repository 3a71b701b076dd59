"""Which messages of a topic a group wants: tag expressions such as ``created || paid``."""

from __future__ import annotations

from collections.abc import Sequence
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
        """Return this with the answer to a pull; under another expression it begins anew."""
        if expression != self.expression:
            return Selection(expression, came, left_out)
        return Selection(expression, self.came + came, self.left_out + left_out)


class Subscription:
    """A parsed expression. Tags match exactly; a message without a tag matches only ``*``."""

    __slots__ = ("expression", "tags")

    def __init__(self, expression: str = ALL) -> None:
        """
        Raises:
            ConfigError: the expression is no text, names no tag, or ``*`` beside tags.
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
