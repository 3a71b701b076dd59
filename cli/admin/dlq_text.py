"""
Renders dead letters and the results of replaying or dropping them: tables, lines and JSON objects. Pure.

The object of a dead letter is that of any stored message (``rmq-admin message get --json``) plus its state and, under
names of their own, the origin in its ``RMQ_*`` properties.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rmq.wire.errors import RmqError, code_name, from_wire
from rmq.wire.names import ORIGIN_TOPIC
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, DeadResult

from ..output.render import cut, printable, stored_object, table
from ..output.terminal import fits
from .dlq_filter import STATES

if TYPE_CHECKING:
    from rmq.wire.model import StoredMessage
    from rmq.wire.protocol.ops.redelivery import DeadRow

LIST_COLUMNS: Final = ("group", "waiting", "replayed", "dropped", "oldest", "newest")
SHOW_COLUMNS: Final = ("offset", "state", "died_at", "origin", "attempts", "key", "index_keys", "reason", "body")
SHOWN: Final = 40  # characters of a reason or body in a table

VERBS: Final = {REPLAYED: ("replay", "replayed"), DROPPED: ("drop", "dropped")}


def row_object(row: DeadRow, oldest: datetime | None, newest: datetime | None) -> dict[str, Any]:
    """Return a group with dead letters as JSON; the times are when the first and the last became one."""
    return {**row._asdict(), "oldest": oldest, "newest": newest}


def row_cells(shown: dict[str, Any]) -> list[object]:
    """Return the same for people."""
    return [_time(value) if isinstance(value := shown[name], datetime) else value for name in LIST_COLUMNS]


def rows_text(shown: Sequence[dict[str, Any]], columns: int = 0) -> str:
    """Return the groups with dead letters; with short times if ``columns`` are too few (0: unlimited)."""
    rows = [row_cells(row) for row in shown]
    text = table(LIST_COLUMNS, rows)
    if fits(text, columns):
        return text
    times = [[None if row[name] is None else _short_time(row[name]) for name in LIST_COLUMNS[-2:]] for row in shown]
    return table(LIST_COLUMNS, [[*row[:-2], *at] for row, at in zip(rows, times, strict=True)])


def letters_text(shown: Sequence[tuple[StoredMessage, str]], columns: int = 0) -> str:
    """Return dead letters with their states: a table, or three lines each if it has no room."""
    text = table(SHOW_COLUMNS, [letter_cells(letter, state) for letter, state in shown])
    return text if fits(text, columns) else "".join(_letter_lines(*each, columns) for each in shown)


def _letter_lines(letter: StoredMessage, state: str, columns: int) -> str:
    offset, _, _, origin, attempts, key, index_keys, _, _ = letter_cells(letter, state)
    lines = [
        f"@{offset} {state}, {_short_time(letter.stored_at)}, of {origin}, failed {attempts}x"
        + (f", key {key}" if key else "")
        + (f", index keys {index_keys}" if index_keys else ""),
        f"    reason: {letter.properties.get('RMQ_DEAD_REASON') or '-'}",
        f"    body: {letter.body[: 4 * columns].decode(errors='backslashreplace')}",
    ]
    return "".join(f"{cut(printable(line), columns)}\n" for line in lines)


def letter_object(letter: StoredMessage, state: str) -> dict[str, Any]:
    """Return a dead letter as JSON."""
    said = letter.properties
    return {
        **stored_object(letter),
        "state": state,
        "origin_topic": said.get(ORIGIN_TOPIC),
        "origin_queue_id": _number(said.get("RMQ_ORIGIN_QUEUE")),
        "origin_offset": _number(said.get("RMQ_ORIGIN_OFFSET")),
        "origin_id": said.get("RMQ_ORIGIN_ID"),
        "attempts": _number(said.get("RMQ_ATTEMPTS")),
        "reason": said.get("RMQ_DEAD_REASON"),
    }


def letter_cells(letter: StoredMessage, state: str) -> list[object]:
    """Return a dead letter as a line of a table."""
    shown = letter_object(letter, state)
    origin = f"{shown['origin_topic']}/{shown['origin_queue_id']} @{shown['origin_offset']}"
    body = letter.body.decode(errors="backslashreplace")
    return [
        letter.queue_offset, state, _time(letter.stored_at), origin, shown["attempts"],
        letter.key, " ".join(letter.index_keys) or None, cut(shown["reason"] or "", SHOWN) or None, cut(body, SHOWN),
    ]  # fmt: skip


class Outcomes:
    """Collects the results of a replay or drop, one by one and in sum. ``wanted`` is the requested state."""

    def __init__(self, group: str, wanted: int, *, dry_run: bool) -> None:
        self._group = group
        self._verb, self._done = VERBS[wanted]
        self._dry_run = dry_run
        self._counts: Counter[str] = Counter()
        self.first_error: RmqError | None = None

    @property
    def total(self) -> int:
        """The number of results."""
        return self._counts.total()

    @property
    def failed(self) -> int:
        """The number of failures."""
        return self._counts["failed"]

    def add(self, offset: int, result: DeadResult) -> dict[str, Any]:
        """Count a result and return it as JSON."""
        word = self._word(result)
        self._counts[word] += 1
        found: dict[str, Any] = {"group": self._group, "queue_offset": offset, "result": _name(word)}
        if result.status:
            error = from_wire(result.status, result.text or "the broker gave no reason")
            self.first_error = self.first_error or error
            return {**found, "state": STATES[result.state], "code": code_name(result.status), "error": str(error)}
        found["state"] = STATES[result.state]
        if result.topic:
            found.update(to_topic=result.topic, to_queue_id=result.queue_id)
            found["to_offset"] = None if result.queue_offset < 0 else result.queue_offset
        return found

    def _word(self, result: DeadResult) -> str:
        if result.status:
            return "failed"
        if not result.is_new:
            return f"{STATES[result.state]} before"
        return f"would be {self._done}" if self._dry_run else self._done

    def line(self, found: dict[str, Any]) -> str:
        """Return an object of :meth:`add` as a line for people."""
        text = f"{self._group} @{found['queue_offset']}: {found['result'].replace('_', ' ')}"
        if "error" in found:
            return f"{text}: {found['error']}"
        if "to_topic" in found:
            at = "" if found["to_offset"] is None else f" @{found['to_offset']}"
            text += f" to {found['to_topic']}/{found['to_queue_id']}{at}"
        return text

    def summary_object(self) -> dict[str, Any]:
        """Return the sum as JSON."""
        counts = {_name(word): count for word, count in self._counts.items()}
        return {"summary": {"group": self._group, "dry_run": self._dry_run, "total": self.total, **counts}}

    def summary(self) -> str:
        """Return the sum for people."""
        counts = ", ".join(f"{count} {word}" for word, count in self._counts.items())
        return f"{self._group}: {counts or f'nothing to {self._verb}'}"


def _name(word: str) -> str:
    """Return a result for programs."""
    return word.replace(" ", "_")


def _time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")


def _short_time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%m-%d %H:%M:%S}Z"


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
