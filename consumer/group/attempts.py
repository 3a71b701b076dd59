"""How often messages were delivered in vain: what a grant says of that, and what is reported of a failure. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from rmq.wire.model import StoredMessage
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.core import NO_OFFSET, Grant

NO_LIMIT = -1


def runs_of(grant: Grant) -> list[AttemptRun]:
    """All failed deliveries that a grant tells of, in the order of their offsets."""
    if grant.runs or grant.attempt_offset == NO_OFFSET:
        return sorted(grant.runs)
    return [AttemptRun(grant.attempt_offset, grant.attempt_offset + 1, grant.attempts)]


def failed_runs(messages: Sequence[StoredMessage]) -> list[AttemptRun]:
    """
    What is to be recorded when the delivery of these, which are in the order of their offsets, has failed.

    Neighbours that failed equally often make one run, whatever lies between them: messages of other tags do no harm.
    """
    runs: list[AttemptRun] = []
    for message in messages:
        offset, attempts = message.queue_offset, message.attempt
        if runs and runs[-1].attempts == attempts:
            runs[-1] = runs[-1]._replace(end_offset=offset + 1)
        else:
            runs.append(AttemptRun(offset, offset + 1, attempts))
    return runs


def exhausted(messages: Sequence[StoredMessage], max_attempts: int) -> list[StoredMessage]:
    """Those that are dead letters now that this delivery has failed too."""
    if max_attempts == NO_LIMIT:
        return []
    return [message for message in messages if message.attempt >= max_attempts]


class Suspicion(NamedTuple):
    """
    Owners in a row were lost while ``suspect_offset`` was being processed; see
    :class:`~rmq.wire.protocol.ops.core.Grant`.

    One lost owner is an accident. From the second on the broker says how far care is to be taken, and goes on saying
    so while the suspect changes.
    """

    abandoned: int
    suspect_offset: int
    careful_until: int

    @classmethod
    def of(cls, grant: Grant) -> Self | None:
        """What a grant says; None if there is nothing to fear."""
        if not grant.abandoned and grant.careful_until == NO_OFFSET:
            return None
        return cls(grant.abandoned, grant.suspect_offset, grant.careful_until)

    def convicted(self, crash_limit: int) -> bool:
        """Whether the message may not be given to a listener again."""
        return self.suspect_offset != NO_OFFSET and self.abandoned >= crash_limit

    def careful(self, queue_offset: int) -> bool:
        """Whether a message has to be announced before it is given to a listener."""
        return queue_offset < self.careful_until

    def acquitted(self) -> Self:
        """The suspect is out of the way; what was fetched together with it is still delivered with care."""
        return self._replace(suspect_offset=NO_OFFSET)

    def __str__(self) -> str:
        return f"CRASH_LOOP: {self.abandoned} owners in a row were lost while processing offset {self.suspect_offset}"
