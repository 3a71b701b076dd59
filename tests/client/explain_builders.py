"""Facts of a queue for tests of the rules: all is well unless a test says otherwise."""

from __future__ import annotations

from typing import Any

from rmq.client.admin.messages import Head
from rmq.client.explain.facts import OwnerReport, QueueFacts, SilentMember
from rmq.client.explain.rules import explain

OWNER, OTHER = "pay-1@4711#0a0b0c0d", "pay-2@52#01020304"
EPOCH = 4294967297
SILENT = SilentMember(OTHER, 75.0)
HEAD = Head(0, 10, None, "00ff", None)


def report(**more: Any) -> OwnerReport:
    """What the owner says."""
    return OwnerReport(**{"epoch": EPOCH, "head_offset": 10, "commit_offset": 10, **more})


def facts(owner: str | None = OWNER, says: OwnerReport | None = None, **more: Any) -> QueueFacts:
    """A queue with messages 10 to 14 before the group, and an owner that has said ``says``."""
    lock = {"owner": owner, "epoch": EPOCH, "lease_left_s": 42.0} if owner is not None else {}
    common: dict[str, Any] = {
        "group": "g", "topic": "t", "queue_id": 3, "lag": 5, "max_offset": 15, "committed": 10, "connected": 1,
        "model": "clustering", "strategy": "average", "head": HEAD, "head_age_s": 7.0,
    }  # fmt: skip
    return QueueFacts(**{**common, **lock, "report": says, **more})


def held(**says: Any) -> QueueFacts:
    """A queue whose owner says something of it."""
    return facts(says=report(**says))


def found(of: QueueFacts) -> tuple[str, str]:
    """The reason and the urgency."""
    story = explain(of)
    return story.reason.value, story.urgency.name
