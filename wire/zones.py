"""
Machine rooms: where brokers and members are, told by their names.

A broker ``room@name`` and a member whose client is ``room/host@pid`` are in that room; others are in none. So everybody
who sees a list of members, or a route, knows who is near.
"""

from __future__ import annotations

import re
from typing import Final

from .errors import BadName

MAX_ROOM_LENGTH: Final = 64
_LEGAL = re.compile(r"[A-Za-z0-9_.-]+\Z")


def check_room(name: str) -> None:
    """Refuse a room that a user may not give."""
    if len(name) > MAX_ROOM_LENGTH or not _LEGAL.match(name):
        raise BadName(
            f"the room {name[:40]!r} must be 1 to {MAX_ROOM_LENGTH} letters, digits, '-', '_' and '.'"
        )  # fmt: skip


def client_in(room: str, client: str) -> str:
    """The name of a client in a room; no room leaves it as it is."""
    return f"{room}/{client}" if room else client


def room_of_member(member: str) -> str:
    """The room of a member, empty if it is in none."""
    room, slash, _ = member.partition("/")
    return room if slash else ""


def room_of_broker(broker: str) -> str:
    """The room of a broker, empty if it is in none."""
    room, at, _ = broker.partition("@")
    return room if at else ""
