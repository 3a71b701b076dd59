"""How much one request may ask for: what a request costs the loop stays a few milliseconds."""

from __future__ import annotations

from rmq.wire.errors import BadRequest
from rmq.wire.ops import MAX_ENTRIES


def check_entries(payload: object, at: int, most: int = MAX_ENTRIES) -> None:
    """Refuse a request whose field ``at`` has too many entries, before time is spent on decoding them."""
    count = entries_in(payload, at)
    if count > most:
        raise BadRequest(f"a request has at most {most} entries, not {count}: cut it into several")


def entries_in(payload: object, at: int) -> int:
    """How many entries a field of a payload has; 0 if it is no list, which decoding complains about."""
    if isinstance(payload, list) and len(payload) > at and isinstance(payload[at], list):
        return len(payload[at])
    return 0
