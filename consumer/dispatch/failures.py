"""
What becomes of messages that the listener failed at.

In order (``Retries``) each message has its own count of deliveries: those that reached ``max_attempts`` are copied to
the dead letters, the others are given again. The broker acknowledges either before the pause begins, so that neither
starts from one after a take-over. Concurrently (``SendBacks``) they are given back: the broker delivers them again
later, or makes dead letters of them; that and the progress are one request, which asks for nothing twice. A
broadcasting member (``SkipFailures``) logs and skips them, since no other member could deliver them again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from rmq.engine.native.group import BROADCASTING, GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.errors import Fenced, Refused, RmqError
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.ops.core import NO_OFFSET
from rmq.wire.protocol.ops.redelivery import DEAD

from ..config import ConsumerConfig
from ..group.assignment import Assignment, exhausted, failed_runs
from .turns import retry_pause

log = get_logger("rmq.consumer")
AWAY_S = 0.05  # how often a broker that is away, or is not known to have our messages, is looked for
REASON_LENGTH = 200


class Failed(NamedTuple):
    """Messages that are put back, in the order of their offsets: the listener failed at them, or must not get them."""

    messages: list[StoredMessage]
    reason: str
    asked_pause_s: float | None = None
    convicted: bool = False  # they are not given to the listener again, whatever their count


class Retries:
    """Records failures. Every method returns only when the broker has answered, or nothing can be recorded."""

    def __init__(self, config: ConsumerConfig, broker: GroupClient) -> None:
        self._config = config
        self._broker = broker

    async def settle(self, assignment: Assignment, failed: Failed) -> float | None:
        """
        Record a failure and free the guard; returns the pause before what is left is given again.

        None if nothing is left. A dead letter that the broker refuses stays in the queue and counts on: it is given
        to the listener again after the pause, and offered again if that fails too.
        """
        try:
            dead = failed.messages if failed.convicted else exhausted(failed.messages, self._config.max_attempts)
            left = failed.messages
            if dead and await self._bury(assignment, dead, failed):
                gone = set(map(id, dead))
                left = [message for message in left if id(message) not in gone]
            if not left:
                return None
            head = left[0]
            pause_s = retry_pause(head.attempt, failed.asked_pause_s, self._config.suspend_s)
            if not failed.convicted:
                await self._count(assignment, left, pause_s)
            return pause_s
        finally:
            assignment.guard.release()

    async def _bury(self, assignment: Assignment, dead: list[StoredMessage], failed: Failed) -> bool:
        """Have messages copied to the dead letters; says whether they are out of the way."""
        cache, broker, there = assignment.cache, self._broker, dead
        unmade = 1 if failed.convicted else 0  # deliveries that were due, and not made

        async def ask() -> None:
            nonlocal there
            # The log may have lost some since they failed, and given their offsets to others.
            there = cache.still_queued(dead)
            if not there:
                return
            progress = cache.commit_offset_without(there)
            commit_offset = progress if progress != cache.commit_offset else NO_OFFSET
            await broker.dead_letter(
                assignment.queue,
                assignment.epoch,
                [message.queue_offset for message in there],
                [max(message.attempt - unmade, 1) for message in there],
                commit_offset=commit_offset,
                reason=failed.reason[:REASON_LENGTH],
            )

        if not await self._answered(assignment, ask, "dead_letter.refused"):
            return False
        if there:
            assignment.reported = max(assignment.reported, cache.commit_offset_without(there))
            cache.remove(there)
            log.warning(
                "message.skipped" if self._config.model == BROADCASTING else "message.dead_lettered",
                queue=str(assignment.queue),
                queue_offset=there[0].queue_offset,
                count=len(there),
                attempts=max(there[0].attempt - unmade, 1),
                reason=failed.reason,
            )
        return True

    async def _count(self, assignment: Assignment, messages: list[StoredMessage], pause_s: float) -> None:
        """Count a delivery of each message, here and at the broker."""
        head = messages[0]
        # Not each time: a queue that is retried every 10 ms would fill the log.
        if head.attempt & (head.attempt - 1) == 0:
            log.warning(
                "message.retrying",
                queue=str(assignment.queue),
                queue_offset=head.queue_offset,
                attempt=head.attempt,
                pause_s=pause_s,
            )

        async def ask() -> None:
            # As with dead letters: another message may have the offset by now.
            runs = failed_runs(assignment.cache.still_queued(messages))
            await self._broker.attempt(assignment.queue, assignment.epoch, runs)

        try:
            await self._answered(assignment, ask, "attempt.refused")
        finally:
            for message in messages:
                message.attempt += 1

    async def _answered(self, assignment: Assignment, ask: Callable[[], Awaitable[None]], refused: str) -> bool:
        """Ask until there is an answer; says whether it was yes."""
        while not assignment.lease.lost:
            agrees = assignment.agrees(self._broker.log_epoch)
            if agrees:
                try:
                    await ask()
                    return True
                except Fenced as error:
                    assignment.lose(error.text)
                    return False
                except Refused as error:
                    log.error(refused, queue=str(assignment.queue), error=str(error))
                    return False
                except RmqError:
                    pass  # whether it arrived is not known: asking again does no harm
            if assignment.dropped:
                return False
            await assignment.pause(self._config.lock_retry_s if self._broker.connected and agrees else AWAY_S)
        return False


def reason_of(failure: str, messages: Sequence[StoredMessage]) -> str:
    """Why messages were given up, for operators who find them among the dead letters."""
    return f"delivery {messages[0].attempt} failed: {failure}"


EXPIRED_LEVEL = 3  # of messages whose call takes too long


class Fate(Enum):
    """What became of messages that were to be given back."""

    GIVEN_BACK = "given back"  # the queue may pass them
    REFUSED = "refused"  # they are still ours to deal with
    UNKNOWN = "unknown"  # the broker may have taken them, or lost them: asking again in a while is the way to know
    LOST = "lost"  # the queue is not ours any more: its owner gets them


class Failures(Protocol):
    """Where failed messages go."""

    async def give_back(
        self,
        assignment: Assignment,
        messages: Sequence[StoredMessage],
        *,
        progress: Callable[[], int],
        delay_level: int = 0,
        reason: str = "",
    ) -> Fate:
        """Deal with messages in the order of their offsets; ``progress`` tells what the progress is without them."""
        ...


class SkipFailures:
    """Skips failed messages of a broadcasting member: every other member has its own delivery of them."""

    async def give_back(
        self,
        assignment: Assignment,
        messages: Sequence[StoredMessage],
        *,
        progress: Callable[[], int],
        delay_level: int = 0,
        reason: str = "",
    ) -> Fate:
        """Let the queue go on after them, at once and whether the broker is there or not."""
        if assignment.lease.lost:
            return Fate.LOST
        log.warning(
            "message.skipped",
            queue=str(assignment.queue),
            queue_offset=messages[0].queue_offset,
            count=len(messages),
            attempts=messages[0].attempt,
            reason=reason,
        )
        return Fate.GIVEN_BACK


class SendBacks:
    """Gives failed messages back to the broker."""

    def __init__(self, config: ConsumerConfig, broker: GroupClient) -> None:
        self._config = config
        self._broker = broker

    async def give_back(
        self,
        assignment: Assignment,
        messages: Sequence[StoredMessage],
        *,
        progress: Callable[[], int],
        delay_level: int = 0,
        reason: str = "",
    ) -> Fate:
        """
        Ask once, and say what came of it.

        A broker that is not known to have our messages any more is not asked: their offsets may belong to others.
        """
        if assignment.lease.lost:
            return Fate.LOST
        if not assignment.agrees(self._broker.log_epoch):
            return Fate.UNKNOWN
        reached = progress()
        try:
            fates = await self._broker.send_back(
                assignment.queue,
                assignment.epoch,
                [message.queue_offset for message in messages],
                [message.attempt for message in messages],
                delay_level=delay_level,
                max_attempts=self._config.max_attempts,
                commit_offset=reached if reached != assignment.cache.commit_offset else NO_OFFSET,
                reason=reason[:REASON_LENGTH],
            )
        except Fenced as error:
            assignment.lose(error.text)
            return Fate.LOST
        except Refused as error:
            log.error("send_back.refused", queue=str(assignment.queue), error=str(error))
            return Fate.REFUSED
        except RmqError as error:
            log.warning("send_back.failed", queue=str(assignment.queue), error=str(error))
            return Fate.UNKNOWN
        self._log_fates(assignment, messages, fates, reason)
        return Fate.LOST if assignment.lease.lost else Fate.GIVEN_BACK

    def _log_fates(
        self, assignment: Assignment, messages: Sequence[StoredMessage], fates: Sequence[int], reason: str
    ) -> None:
        dead = [message for message, fate in zip(messages, fates, strict=True) if fate == DEAD]
        if dead:
            log.warning(
                "message.dead_lettered",
                queue=str(assignment.queue),
                queue_offset=dead[0].queue_offset,
                count=len(dead),
                attempts=dead[0].attempt,
                reason=reason,
            )
        if len(dead) < len(messages):
            log.info("message.sent_back", queue=str(assignment.queue), count=len(messages) - len(dead), reason=reason)
