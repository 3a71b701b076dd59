"""Looks at a broker, as tests of the live view make them up."""

from __future__ import annotations

from typing import Any

from rmq.client.overview.sample import Sample
from rmq.wire.protocol.ops.core import LockRow
from rmq.wire.protocol.ops.groups import GroupRow

FLOW = ("messages_in", "bytes_in", "messages_out", "bytes_out")


def sample(
    at: float = 0.0, *, epoch: int = 1, up_s: float = 1000.0, groups: list[GroupRow] | None = None,
    locks: list[LockRow] | None = None, behind_s: dict[str, float] | None = None,
    topics: dict[str, tuple[int, int, int, int]] | None = None, **parts: dict[str, Any],
) -> Sample:  # fmt: skip
    """A look; ``parts`` change or add numbers."""
    stats: dict[str, dict[str, Any]] = {
        "broker": {
            "name": "rmq", "address": "127.0.0.1:10911", "flush": "sync", "up_s": up_s,
            "free_disk_bytes": 70_900_000_000, "refuses_sends": None, "damaged_places": 0,
            "memory_bytes": 40_000_000, "cpu_s": 1.0,
            "time_us": 1_000_000_000,
        },
        "log": {"store_id": "aa", "log_epoch": epoch, "log_written": 5_000, "log_bytes": 5_000},
        "flush": {"syncs": 10, "total_sync_s": 1.0},
        "commit": {
            "waiting_answers": 0, "failed_writes": 0, "longest_waiting_s": 0.0, "waited_turns": 10,
            "total_wait_s": 2.0,
        },
        "delays": {"waiting_messages": 0, "next_due_at": 0, "failures": 0},
        "serving": {
            "connections": 1, "producers": 0, "parked_pulls": 0, "leases": len(locks or []), "sent_back": 0,
            "dead_letters": 0, "damaged_reads": 0, "rescued_pulls": 0,
        },
        "upkeep": {"failures": 0},
        "traffic": dict.fromkeys(FLOW, 0),
        "topics": {name: dict(zip(FLOW, flow, strict=True)) for name, flow in (topics or {}).items()},
    }  # fmt: skip
    for part, numbers in parts.items():
        stats[part] = {**stats[part], **numbers}
    return Sample(at, stats, groups or [], locks if locks is not None else [], behind_s or {})


def group(name: str, lag: int = 0, *, members: int = 1, model: str | None = "clustering", more: int = 0) -> GroupRow:
    """A group that consumes in order."""
    return GroupRow(name, True if model else None, model, "average" if model else None, members, 4, 1, lag, more)


def lease(
    queue_id: int = 0, *, of: str = "billing", state: str = "held", renewed_ago_s: float = 5.0, left_s: float = 55.0
) -> LockRow:
    """A lease of a queue of orders."""
    return LockRow(of, "orders", queue_id, "host@7#ab12cd34", "ab12cd34", 5 << 32, 60.0, renewed_ago_s, left_s, state)
