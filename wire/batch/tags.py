"""
Tag expressions such as ``created || paid``: which batches can hold a message that is wanted.

``*``, or nothing, wants everything. Otherwise tags match exactly, and a message without a tag is not wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from .hashing import tag_bloom

ALL: Final = "*"


class Wanted(NamedTuple):
    """The tags of an expression, and the bits that each of them sets in the bloom of a batch."""

    tags: frozenset[str]
    masks: tuple[int, ...]

    def possible(self, bloom: int) -> bool:
        """Whether a batch with this bloom may hold a wanted tag; if not, it holds none."""
        return bloom != 0 and any(bloom & mask == mask for mask in self.masks)

    def among(self, names: Iterable[str]) -> bool:
        """Whether a wanted tag is among those of a batch."""
        return not self.tags.isdisjoint(names)


def parse(expression: str) -> frozenset[str] | None:
    """
    The tags of an expression; None if everything is wanted.

    Raises:
        ValueError: it names no tag, or ``*`` beside tags, or is none.
    """
    text = expression.strip()
    if text in ("", ALL):
        return None
    tags = frozenset(part for part in map(str.strip, text.split("||")) if part)
    if not tags or ALL in tags or any("|" in tag or " " in tag for tag in tags):
        raise ValueError(f"the expression {expression!r} is not '*' or tags joined by '||', such as 'created || paid'")
    return tags


@lru_cache(maxsize=1024)
def wanted(expression: str) -> Wanted | None:
    """What an expression wants, ready to be asked of batches; None if everything. Raises as :func:`parse` does."""
    tags = parse(expression)
    return None if tags is None else Wanted(tags, tuple(sorted({tag_bloom((tag,)) for tag in tags})))
