"""Operations on messages that wait for their time."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_ROWS: Final = 1000  # of a page


class ListDelays(NamedTuple):
    """
    A page of the batches that wait, in the order they become due, behind the one at ``(due_at, position)``.

    ``topic`` wants those of one topic only. At most ``limit`` are looked at; a page may be empty though there are more.
    """

    due_at: int = 0
    position: int = 0
    limit: int = 100
    topic: str | None = None


class DelayRow(NamedTuple):
    """A batch that waits; ``due_at`` and ``parked_at`` in microseconds, ``delay_level`` 0 for an exact time."""

    due_at: int
    position: int
    topic: str
    queue_id: int
    delay_level: int
    messages: int
    parked_at: int
    message_id: str  # of its first message


class DelayPage(NamedTuple):
    """``batches`` and ``messages`` wait in all; the next page begins behind ``(next_due_at, next_position)``."""

    batches: int
    messages: int
    rows: list[DelayRow]
    next_due_at: int = 0
    next_position: int = 0
    is_last: bool = True
