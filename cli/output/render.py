"""Renders values: aligned tables and message lines for people, JSON for programs. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq.client import FoundMessages, Receipt
    from rmq.wire.model import StoredMessage

# Line and paragraph ends, and marks that turn the order of letters round: with them a text can pose as another.
_TURNING = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_UNPRINTABLE = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))},
    **{code: f"\\u{code:04x}" for code in _TURNING},
    **{9: "\\t", 10: "\\n", 13: "\\r"},
}
_ACTED_ON = re.compile("[\x7f-\x9f" + "".join(map(chr, _TURNING)) + "]")  # JSON itself escapes those below 32
_NAMES = frozenset({"owner", "session", "member", "message_id"})  # columns of names that may begin with a digit


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return aligned columns under a heading: numbers to the right, texts to the left."""
    body = [[_cell(value) for value in row] for row in rows]
    numeric = [_all_numbers(column) for column in zip(*body, strict=True)] or [False] * len(columns)
    numeric = [right and name.lower() not in _NAMES for name, right in zip(columns, numeric, strict=True)]
    lines = [[name.upper() for name in columns], *body]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(_line(line, widths, numeric) for line in lines)


def to_json(value: object) -> str:
    """Return one line of JSON, times as ISO 8601. Control characters are escaped; parsers read the same."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_jsonable)
    return _ACTED_ON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def epoch_text(epoch: int | None) -> str | None:
    """Return a lease epoch for JSON: decimal text, since it exceeds 2^53, where many readers of JSON round numbers."""
    return None if epoch is None else str(epoch)


def message_object(message: StoredMessage, epoch: int) -> dict[str, Any]:
    """Return a message as one JSON object; the body as text if it is UTF-8."""
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset if message.queue_offset >= 0 else None,  # it waits for its time
        "message_id": message.message_id,
        "copy_of": message.copy_of,
        "tag": message.tag,
        "index_keys": list(message.index_keys),
        **_body(message.body),
        "properties": message.properties,
        "key": message.key,
        "attempt": message.attempt,
        "epoch": epoch_text(epoch),
        "born_at": message.born_at,
        "stored_at": message.stored_at,
    }


def stored_object(message: StoredMessage) -> dict[str, Any]:
    """Return a stored message as JSON: as a consumer sees it, without what belongs to a delivery, and its place."""
    shown = message_object(message, 0)
    del shown["epoch"], shown["attempt"]
    return {**shown, "stored_topic": message.stored_topic}


def lag_remarks(found: FoundMessages) -> list[str]:
    """Return a warning if the broker has not indexed all messages yet."""
    if not found.lag_bytes:
        return []
    lag = f"{found.lag_bytes / (1 << 20):.1f} MiB" if found.lag_bytes >= 1 << 20 else f"{found.lag_bytes} bytes"
    return [f"the index lags by {lag}: the newest messages may be missing, try again"]


def no_such_key(key: str | None, index_key: str | None) -> str:
    """Return the remark that nothing was found by a key."""
    return printable(f"no stored message has the {f'index key {index_key!r}' if key is None else f'key {key!r}'}")


def message_line(message: StoredMessage) -> str:
    """A message as one line for people: ``orders/2 @17 key=o-17 tag=paid attempt=1  body``."""
    parts = [f"{message.topic}/{message.queue_id}", f"@{message.queue_offset}"]
    parts += [f"key={message.key}"] if message.key else []
    parts += [f"index_keys={','.join(message.index_keys)}"] if message.index_keys else []
    parts += [f"tag={message.tag}"] if message.tag else []
    parts += [f"{name}={value}" for name, value in message.properties.items()]
    return printable(f"{' '.join(parts)} attempt={message.attempt}  {message.body.decode(errors='backslashreplace')}")


def receipt_object(topic: str, receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as one JSON object."""
    return {
        "topic": topic,
        "queue_id": receipt.queue_id,
        "queue_offset": None if receipt.is_deferred else receipt.queue_offset,
        "message_id": receipt.message_id,
        "durable": receipt.durable,
        "is_delayed": receipt.is_deferred,
    }


def receipt_line(topic: str, receipt: Receipt) -> str:
    """Return a receipt for people."""
    where = "delayed" if receipt.is_deferred else f"@{receipt.queue_offset}"
    return f"{topic}/{receipt.queue_id} {where} {receipt.message_id}"


def printable(text: str) -> str:
    """Return ``text`` on one line, without control characters."""
    return text.translate(_UNPRINTABLE)


def shortened(name: str, longest: int) -> str:
    """Return the beginning and the end of a name, where names mostly differ."""
    if len(name) <= longest:
        return name
    end = (longest - 2) // 2
    return f"{name[: longest - 2 - end]}..{name[-end:]}"


def cut(text: str, longest: int) -> str:
    """Return the text, or its beginning and ``...`` if it has more than ``longest`` characters."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def member_end(member: str) -> str:
    """Return the end of a member id, where members of a group differ."""
    return member[-8:]


def encoded(lines: Iterable[str]) -> bytes:
    """Return lines as bytes for standard output, each with its newline."""
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")


def iso(at: datetime) -> str:
    """Return a time as ISO 8601, to the millisecond."""
    return at.isoformat(timespec="milliseconds")


def counted(count: int, what: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def seconds(value: float) -> str:
    """Return a duration for people."""
    if value < 100:
        return f"{value:.1f}s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def _body(body: bytes) -> Mapping[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _jsonable(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not data")


def _cell(value: object) -> str:
    return "-" if value is None else printable(str(value))


def _all_numbers(cells: Iterable[str]) -> bool:
    return all(cell[:1].isdigit() or cell == "-" or (cell[:1] in ("+", "-") and cell[1:2].isdigit()) for cell in cells)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    aligned = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    ]
    return "  ".join(aligned).rstrip() + "\n"
