"""
Zones (RocketMQ: machine rooms): the names of brokers and members carry where they are.

A broker ``zone@name`` and a member whose client is ``zone/host@pid`` are in that zone; others are in none. So every
process that sees a list of members, or a route, knows which of them are near.
"""

from __future__ import annotations

import re
from typing import Final

from .errors import BadName

MAX_ZONE_LENGTH: Final = 64
_LEGAL = re.compile(r"[A-Za-z0-9_.-]+\Z")


def check_zone(name: str) -> None:
    """Refuse a zone that a user may not give."""
    if len(name) > MAX_ZONE_LENGTH or not _LEGAL.match(name):
        raise BadName(f"the zone {name[:40]!r} must be 1 to {MAX_ZONE_LENGTH} letters, digits, '-', '_' and '.'")


def client_in_zone(zone: str, client: str) -> str:
    """Return the name of a client in a zone; without a zone it stays as it is."""
    return f"{zone}/{client}" if zone else client


def zone_of_member(member: str) -> str:
    """Return the zone of a member, empty if it is in none."""
    zone, slash, _ = member.partition("/")
    return zone if slash else ""


def zone_of_broker(broker: str) -> str:
    """Return the zone of a broker, empty if it is in none."""
    zone, at, _ = broker.partition("@")
    return zone if at else ""
