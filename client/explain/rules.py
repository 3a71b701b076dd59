"""
Why a queue of a group goes on, or does not, in one word and one sentence, and what to do about it. Pure.

``explain`` looks at the facts of a queue by a table of rules; the first that fits tells the story. So where two causes
come together, the one that has to go first is told: a queue that is paused and has a failing message does not go on
before it is resumed, whatever becomes of the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from . import explain_stopped, explain_working
from . import wording as words
from .explain_reasons import Finding, Reason, Urgency
from .facts import QueueFacts


class QueueStory(NamedTuple):
    """
    A queue, who holds it, its first message that is not done, and why it goes on or does not.

    Of a broadcasting group, ``owner`` is the member whose queue it is, without a lock. What is not known is None.
    """

    topic: str
    queue_id: int
    reason: Reason
    urgency: Urgency
    sentence: str
    advice: str
    lag: int
    owner: str | None
    epoch: int | None
    lease_left_s: float | None
    head_offset: int | None
    head_id: str | None
    head_age_s: float | None
    attempt: int
    retry_in_s: float | None
    called_for_s: float | None
    per_s: float | None


Rule = Callable[[QueueFacts], Finding | None]

RULES: Final[tuple[Rule, ...]] = (
    explain_stopped.stopped,
    explain_stopped.silenced,
    explain_stopped.careful,
    explain_stopped.no_member,
    explain_stopped.not_subscribed,
    explain_stopped.unowned,
    explain_stopped.in_grace,
    explain_stopped.silent,
    explain_stopped.handing_over,
    explain_working.paused,
    explain_working.nothing_new,
    explain_working.long_call,
    explain_working.retrying,
    explain_working.overtaken,
    explain_working.moving,
    explain_working.unpolled,
    explain_working.late_loop,
    explain_working.flow_control,
    explain_working.in_call,
    explain_working.slots_busy,
    explain_working.standing_still,
)


def explain(facts: QueueFacts) -> QueueStory:
    """The story of a queue."""
    finding = next(found for rule in RULES if (found := rule(facts)) is not None)
    told = facts.told
    head = facts.head_offset
    return QueueStory(
        topic=facts.topic,
        queue_id=facts.queue_id,
        reason=finding.reason,
        urgency=finding.urgency,
        sentence=finding.sentence,
        advice=finding.advice,
        lag=facts.lag,
        owner=facts.owner,
        epoch=facts.epoch if facts.owner is not None and facts.epoch else None,
        lease_left_s=facts.lease_left_s,
        head_offset=head,
        head_id=None if facts.head is None or head is None else facts.head.message_id,
        head_age_s=None if head is None else facts.head_age_s,
        attempt=facts.attempt if head is not None else 1,
        retry_in_s=None if told is None else told.retry_in_s,
        called_for_s=None if told is None else told.called_for_s,
        per_s=None if (per_s := words.per_s(facts)) is None else round(per_s, 1),
    )


def worst_first(stories: Iterable[QueueStory]) -> list[QueueStory]:
    """What needs somebody comes first, then by the order of the reasons, then by queue."""
    order = {reason: place for place, reason in enumerate(Reason)}
    return sorted(stories, key=lambda story: (-story.urgency, order[story.reason], story[:2], story.owner or ""))
