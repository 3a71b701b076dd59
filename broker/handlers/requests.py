"""How much one request may ask for: what a request costs the loop stays a few milliseconds."""

from __future__ import annotations

from rmq.wire.errors import BadRequest
from rmq.wire.protocol.ops.core import MAX_ENTRIES


def check_entries(payload: object, at: int, most: int = MAX_ENTRIES) -> None:
    """Refuse a request whose field ``at`` has too many entries, before time is spent on decoding them."""
    if not isinstance(payload, list) or len(payload) <= at or not isinstance(payload[at], list):
        return  # decoding says what is wrong
    count = len(payload[at])
    if count > most:
        raise BadRequest(f"a request has at most {most} entries, not {count}: cut it into several")
