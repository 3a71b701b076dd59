"""
Renders what a member reports about itself. Pure.

A member of another version may report other fields, and a broken one anything: a missing or malformed field is left
out, never an error.
"""

from __future__ import annotations

import math
from typing import Any, Final

from ..output.render import cut, epoch_text, printable, seconds, table

QUEUE_COLUMNS: Final = ("queue", "head", "cached", "size", "in_flight", "renewed", "doing")
UNKNOWN: Final = "unknown"  # the version of a member that runs from sources, without being installed
MAX_SHOWN: Final = 200  # characters of a text in prose


def plain(value: Any) -> Any:
    """Return a report in JSON types: bytes in hexadecimal, epochs as text, numbers that are not finite as null."""
    if isinstance(value, dict):
        return {str(plain(name)): _plain_field(name, element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _plain_field(name: Any, value: Any) -> Any:
    is_epoch = name == "epoch" and isinstance(value, int) and not isinstance(value, bool)
    return epoch_text(value) if is_epoch else plain(value)


def info_text(info: dict[str, Any]) -> str:
    """Return a report as text: program, settings, rates and queues."""
    text = "".join(f"{line}\n" for line in (_program(info), _settings(info), *_speeds(info)) if line)
    queues = _maps(info.get("queues"))
    if queues:
        text += table(QUEUE_COLUMNS, [_queue_cells(queue) for queue in queues])
        text += "".join(f"{_name(queue)} is stopped: {_stopped(queue)}\n" for queue in queues if _stopped(queue))
        text += "".join(f"{_name(queue)} fails: {_failure(queue)}\n" for queue in queues if _failure(queue))
    more = _number(info, "more_queues")
    return text + (f"and {more} more queues\n" if more else "")


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f}{unit}" if unit == "B" or count >= 100 else f"{count:.1f}{unit}"
        count /= 1024
    return f"{count:.1f}GiB"


def _program(info: dict[str, Any]) -> str:
    version = _text(info, "version")
    parts = [f"rmq {version}" if version not in ("", UNKNOWN) else "rmq of an unknown version"]
    if (up_s := _number(info, "up_s")) is not None:
        parts.append(f"up {seconds(up_s)}")
    if (lag_s := _number(info, "loop_lag_s")) is not None:
        parts.append(f"loop late by {lag_s:.3f}s")
    turns, slots = _number(info, "turns"), _number(info, "slots")
    if turns is not None and slots is not None:
        parts.append(f"{turns}/{slots} slots")
    cached, weight = _number(info, "cached_messages"), _number(info, "cached_bytes")
    if cached is not None and weight is not None:
        parts.append(f"{cached} cached, {size(weight)}")
    return _short(", ".join(parts))


def _settings(info: dict[str, Any]) -> str:
    settings = info.get("settings")
    if not isinstance(settings, dict) or not settings:
        return ""
    return _short("settings: " + " ".join(f"{name}={value}" for name, value in sorted(settings.items(), key=str)))


def _speeds(info: dict[str, Any]) -> list[str]:
    statistics = info.get("statistics")
    if not isinstance(statistics, dict):
        return []
    lines = []
    for name, topic in statistics.items():
        parts = [part for what in ("consumed_ok", "consumed_failed", "pulled") if (part := _speed(topic, what))]
        if parts:
            lines.append(_short(f"{name}: " + ", ".join(parts)))
    return lines


def _speed(topic: Any, what: str) -> str:
    rate = topic.get(what) if isinstance(topic, dict) else None
    if not isinstance(rate, dict) or not _number(rate, "total"):
        return ""
    per_s, mean_s = _number(rate, "per_s") or 0, _number(rate, "mean_s") or 0
    return f"{what.removeprefix('consumed_')} {_number(rate, 'total')} ({per_s:.1f}/s, {mean_s * 1000:.1f}ms)"


def _queue_cells(queue: dict[str, Any]) -> list[object]:
    weight, age_s = _number(queue, "cached_bytes"), _number(queue, "lock_age_s")
    return [
        _name(queue), _number(queue, "head_offset"), _number(queue, "cached_messages"),
        None if weight is None else size(weight), _number(queue, "in_flight"),
        None if age_s is None else f"{seconds(age_s)}", _doing(queue),
    ]  # fmt: skip


def _doing(queue: dict[str, Any]) -> str | None:
    """Return what happens in a queue, or why nothing does; reasons that require action come first."""
    attempt, retry_in_s = _number(queue, "attempt") or 1, _number(queue, "retry_in_s")
    called_for_s, tries = _number(queue, "called_for_s"), _number(queue, "tries_to_unlock")
    parts = ["stopped"] if _stopped(queue) else []
    parts += ["leaves"] if queue.get("dropped") is True else []
    parts += ["paused"] if queue.get("paused") is True else []
    if called_for_s is not None:
        parts.append(f"called {seconds(called_for_s)} ago")
    if retry_in_s is not None:
        parts.append(f"retry in {seconds(max(retry_in_s, 0.0))}")
    if attempt > 1:
        parts.append(f"attempt {attempt}")
    if (abandoned := _number(queue, "abandoned")) and not _stopped(queue):
        parts.append(f"careful: {abandoned} owners lost")
    if _text(queue, "flow_control"):
        parts.append(f"not pulled: {_text(queue, 'flow_control')}")
    if tries:
        parts.append(f"unlock tried {tries}x")
    return _short(", ".join(parts)) or None


def _name(queue: dict[str, Any]) -> str:
    return _short(f"{_text(queue, 'topic') or '?'}/{_number(queue, 'queue_id')}")


def _stopped(queue: dict[str, Any]) -> str:
    """Return why a queue is stopped until an operator acts; too long for a table."""
    return _short(_text(queue, "stopped"))


def _failure(queue: dict[str, Any]) -> str:
    """Return the last failure of the listener, if it is that of the next message."""
    offset = _number(queue, "failed_offset")
    return _short(_text(queue, "last_error")) if offset is not None and offset == _number(queue, "head_offset") else ""


def _maps(value: Any) -> list[dict[str, Any]]:
    return [element for element in value if isinstance(element, dict)] if isinstance(value, list) else []


def _number(of: dict[str, Any], name: str) -> Any:
    value: Any = of.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def _text(of: dict[str, Any], name: str) -> str:
    value = of.get(name)
    return value if isinstance(value, str) else ""


def _short(text: str) -> str:
    return cut(printable(text), MAX_SHOWN)
