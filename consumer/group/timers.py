"""How often a lease and a membership are renewed: what is configured, but often enough for this broker. Pure."""

from __future__ import annotations

from rmq.wire.protocol.hello import Limits

from ..config import ConsumerConfig

# The parts of the broker's time that the defaults are of its default: 30 of 60 s, 20 of 60 s, 30 of 120 s.
TTL_PART = 2
RELOCK_PART = 3
HEARTBEAT_PART = 4


def lock_ttl_s(config: ConsumerConfig, limits: Limits | None) -> float:
    """A lock whose renewal was asked for longer ago than this is not believed in."""
    return config.lock_ttl_s if limits is None else min(config.lock_ttl_s, limits.lock_lease_s / TTL_PART)


def relock_every_s(config: ConsumerConfig, limits: Limits | None) -> float:
    """The time between renewals of the queue locks."""
    return config.relock_every_s if limits is None else min(config.relock_every_s, limits.lock_lease_s / RELOCK_PART)


def heartbeat_s(config: ConsumerConfig, limits: Limits | None) -> float:
    """The time between reports that this member is alive."""
    return config.heartbeat_s if limits is None else min(config.heartbeat_s, limits.member_expiry_s / HEARTBEAT_PART)
