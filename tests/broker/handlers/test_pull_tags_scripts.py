"""Random scripts of arrivals, pulls, threads, turns and time: nobody misses what it wants, or is told to pass it."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq.wire.batch import batch as batches
from rmq.wire.protocol.ops.core import EMPTY
from rmq.wire.stores import StoreIds

from ..tag_rig import Rig

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
TAGS = st.sampled_from([None, "b", "b", "b", "a", "Aa", "BB"])
EXPRESSIONS = st.lists(st.sampled_from(["a", "Aa", "BB", "x"]), min_size=1, max_size=2).map("||".join)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.lists(TAGS, min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["pull", "look", "turn", "read", "wait", "sweep", "join"]), st.integers(0, 1500)),
    ),
    max_size=60,
)


class Reader:
    """A member, or a free reader, that pulls one queue again and again, and checks each answer against all sent."""

    def __init__(self, rig: Rig, expression: str, *, is_member: bool) -> None:
        self.rig = rig
        self.names = set(expression.split("||"))
        self.group, self.expression = ("g", None) if is_member else (None, expression)
        self.sent: list[str | None] = []
        self.got: list[int] = []
        self.offset = 0
        self.waits = False

    def pull(self, wait_ms: int) -> None:
        if not self.waits:
            self.waits = True
            self.rig.pull(1, self.offset, wait_ms=wait_ms, max_bytes=600, group=self.group, expression=self.expression)

    def do(self, what: str, argument: list[str | None] | int) -> None:
        if isinstance(argument, list):
            self.sent += argument
            self.rig.arrive(*argument)
        else:
            {
                "pull": lambda: self.pull(argument),
                "look": self.look,
                "turn": self.rig.turns.turn,
                "read": self.rig.pool.run,
                "wait": lambda: self.rig.expire(self.rig.service.time + argument / 1000),
                "sweep": self.rig.pulls.sweep,
                "join": lambda: self.rig.pulls.resubscribed(self.rig.peer.connection, "g"),
            }[what]()

    def end(self) -> None:
        """Whatever waits, for whatever, is answered, and another pull too."""
        self.rig.expire(self.rig.service.time + 30.0)
        while self.rig.pool.run() or self.rig.turns.soon:
            self.rig.turns.turn()
        self.look()
        self.pull(0)

    def look(self) -> None:
        for _, _, status, parts in self.rig.peer.answers():
            assert (status, len(parts)) == (0, 1)
            self.waits = False
            ((_, code, following, _, end, data, _),) = parts
            assert code in (0, EMPTY)
            assert self.offset <= following <= end <= len(self.sent)
            found = batches.read_all(data, stores=StoreIds(1))
            assert bool(found) == (code == 0)
            for batch in found:
                messages = [m for m in batch.messages() if m.tag in self.names]  # as a member checks again
                assert messages
                self.got += [m.queue_offset for m in messages if m.queue_offset >= self.offset]
            self.offset = following
            assert self.got == self.wanted(following)

    def wanted(self, end: int) -> list[int]:
        return [i for i in range(end) if self.sent[i] in self.names]


@given(EXPRESSIONS, STEPS, st.sampled_from([0, 2500, 32 << 20]), st.booleans(), st.booleans())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_answers_one_after_the_other_are_the_wanted_messages_in_order(
    expression: str, steps: list[tuple[str, list[str | None] | int]], recent_bytes: int, cold: bool,
    is_member: bool,
) -> None:  # fmt: skip
    with TemporaryDirectory(dir=MEMORY) as folder:
        rig = Rig(Path(folder), recent_bytes=recent_bytes, segment_bytes=2000, entries_per_file=5)
        rig.files.cold = cold
        rig.member.expression = expression if is_member else "none"
        reader = Reader(rig, expression, is_member=is_member)
        for what, argument in steps:
            reader.do(what, argument)
        for _ in range(2 * len(reader.sent) + 2):  # each pull gives a batch at least, or says that there is none
            reader.end()
        assert rig.pulls.rescued == 0
        assert (reader.got, reader.offset) == (reader.wanted(len(reader.sent)), len(reader.sent))
        rig.opened.close()
