"""A producer and a broker with everything between them that can go wrong: stored once, in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmq.broker.state.producers import Known, ProducerTable
from rmq.wire.errors import OutOfSequence, SequenceConflict, TopicNotFound

P = 0xABC
WINDOW = 4


def crc(sequence: int) -> int:
    return sequence * 7919 % (1 << 32)


@dataclass(eq=False)
class Batch:
    sequence: int
    bad: bool
    outcome: int | str | None = None  # offset, "refused", or not known


@dataclass
class Reply:
    batch: Batch
    outcome: int | str  # offset, "refused", or "later"
    position: int  # the log must be durable to here


class Link(RuleBasedStateMachine):
    """
    A producer keeps its batches in line until each is answered and sends again what was put off; the broker stores
    them in a log. Frames and answers get lost, writes fail, the broker crashes and loses what was not
    durable. Each hello is answered with what became of the batches in line, when that is durable.
    """

    def __init__(self) -> None:
        super().__init__()
        self.line: list[Batch] = []  # all, ever
        self.sent: set[Batch] = set()
        self.put_off: set[Batch] = set()  # to be sent again, as all that was sent behind them
        self.requests: deque[Batch] = deque()
        self.waiting: list[Reply] = []
        self.replies: deque[Reply] = deque()
        self.log: list[Batch] = []
        self.durable = 0
        self.table = ProducerTable(window=WINDOW)
        self.hello()

    # the producer

    def unresolved(self) -> list[Batch]:
        return [batch for batch in self.line if batch.outcome is None]

    def first_unresolved(self) -> int:
        unresolved = self.unresolved()
        return unresolved[0].sequence if unresolved else len(self.line) + 1

    def hello(self) -> None:
        self.requests.clear()
        self.replies.clear()
        self.waiting.clear()
        self.sent.clear()
        self.put_off.clear()
        first = self.first_unresolved()
        self.table.resume(P, 0, first, now=0.0)
        self.durable = len(self.log)
        resumed = self.table.resumed(P, 0, first, last=(self.table.next_sequence(P) or 0) - 1)
        for batch in self.line[first - 1 : resumed.first - 1]:
            # A refusal before the first batch that the log has: after a crash nothing shows that it was one.
            assert batch.bad
            batch.outcome = "refused"
        for fate in resumed.fates:
            batch = self.line[fate.sequence - 1]
            if batch.outcome is None:
                assert isinstance(fate, Known) is not batch.bad
                batch.outcome = fate.base_offset if isinstance(fate, Known) else "refused"
        between = self.line[resumed.next_sequence - 1 : self.first_unresolved() - 1]
        assert all(batch.bad for batch in between), "refusals that were told, and lost in a crash"
        assert self.first_unresolved() >= resumed.next_sequence

    @precondition(lambda self: len(self.line) + 1 - self.first_unresolved() < WINDOW)
    @rule(bad=st.sampled_from([False, False, False, True]))
    def make(self, bad: bool) -> None:
        self.line.append(Batch(len(self.line) + 1, bad))

    @rule()
    def send(self) -> None:
        for batch in self.unresolved():
            if batch not in self.sent:
                self.sent.add(batch)
                self.put_off.discard(batch)
                self.requests.append(batch)

    @rule(count=st.integers(1, 4))
    def receive(self, count: int) -> None:
        for _ in range(min(count, len(self.replies))):
            reply = self.replies.popleft()
            if reply.outcome == "later":
                self.sent.discard(reply.batch)
                self.put_off.add(reply.batch)
            else:
                assert (reply.outcome == "refused") is reply.batch.bad
                reply.batch.outcome = reply.outcome
            unresolved = self.unresolved()
            if unresolved and unresolved[0] in self.put_off and not self.sent.intersection(unresolved):
                self.hello()  # nothing of ours is before it: the broker lost a refusal that it told us
                return

    # the broker

    @rule(count=st.integers(1, 4), fault=st.sampled_from(["", "", "", "full", "write"]))
    def turn(self, count: int, fault: str) -> None:
        staged: list[Batch] = []
        self.refused: list[Batch] = []
        answers = [self.judge(self.requests.popleft(), staged, fault) for _ in range(min(count, len(self.requests)))]
        if fault == "write":
            for batch in sorted(staged + self.refused, key=lambda batch: -batch.sequence):
                self.table.retract(P, 0, batch.sequence)
            for answer in answers:
                if answer.position > len(self.log) or answer.batch in self.refused:
                    answer.outcome, answer.position = "later", 0
        else:
            self.log += staged
        self.waiting += answers
        self.release()

    def judge(self, batch: Batch, staged: list[Batch], fault: str) -> Reply:
        sequence = batch.sequence
        try:
            duplicate = self.table.admit(P, 0, sequence, crc(sequence), now=0.0)
        except OutOfSequence:
            return Reply(batch, "later", 0)
        except (SequenceConflict, TopicNotFound):
            return Reply(batch, "refused", 0)  # receive() sees to it that this happens to bad ones only
        if duplicate is not None:
            return Reply(batch, duplicate.base_offset, duplicate.end_position)
        if batch.bad:
            self.table.spend(P, 0, sequence, crc(sequence), TopicNotFound.code, now=0.0)
            self.refused.append(batch)
            return Reply(batch, "refused", 0)
        if fault == "full":
            return Reply(batch, "later", 0)
        offset = len(self.log) + len(staged)
        staged.append(batch)
        self.table.record(P, 0, sequence, crc(sequence), offset, offset, 0, offset + 1, now=0.0)
        return Reply(batch, offset, offset + 1)

    def release(self) -> None:
        self.replies += [reply for reply in self.waiting if reply.position <= self.durable]
        self.waiting = [reply for reply in self.waiting if reply.position > self.durable]

    @rule()
    def flush(self) -> None:
        self.durable = len(self.log)
        self.release()

    # what goes wrong

    @rule(arrive=st.integers(0, 4))
    def lose_connection(self, arrive: int) -> None:
        self.turn(arrive, "")
        self.hello()

    @rule(kept=st.integers(0, 8))
    def crash(self, kept: int) -> None:
        del self.log[self.durable + kept :]
        self.durable = len(self.log)
        self.table = ProducerTable(window=WINDOW)
        for offset, batch in enumerate(self.log):
            self.table.record(P, 0, batch.sequence, crc(batch.sequence), offset, offset, 0, offset + 1, now=0.0)
        self.hello()

    @invariant()
    def what_is_stored_is_stored_once_and_in_order(self) -> None:
        numbers = [batch.sequence for batch in self.log]
        assert numbers == sorted(set(numbers))
        assert not any(batch.bad for batch in self.log)
        for batch in self.line:
            if isinstance(batch.outcome, int):
                assert self.log[batch.outcome] is batch

    def teardown(self) -> None:
        for _ in range(4 * len(self.line) + 8):
            self.send()
            self.turn(len(self.requests), "")
            self.flush()
            self.receive(len(self.replies))
        assert self.unresolved() == []
        assert self.log == [batch for batch in self.line if not batch.bad]


TestLink = Link.TestCase
