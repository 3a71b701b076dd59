"""Scripts of send-backs, dead letters, replays, commits and power cuts: nothing is copied twice, and nothing lost."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.errors import OK
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.redelivery import REPLAYED, DropDead, SendBack

from ..builders import ORDERS, segment_files
from ..copy_rig import DEAD, RETRIES, SESSION, Rig
from ..fakes import request
from rigs.batches import quick

MESSAGES = range(6)  # what the rig begins with


class Step(NamedTuple):
    """``cut``: the power goes, and so much of the last write (a share) is there; None: all goes on."""

    what: str
    offsets: list[int]
    cut: float | None


steps = st.builds(
    Step,
    st.sampled_from(["back", "dead", "mixed", "replay", "drop", "commit"]),
    st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=4, unique=True).map(sorted),
    st.none() | st.floats(0, 1),
)


class Script:
    """A broker that is cut off again and again, on one directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rig = Rig(path)
        self.rig.begin()
        self.committed = 0

    def do(self, step: Step) -> None:
        rig = self.rig
        before = rig.store.log.written
        offsets = step.offsets
        if step.what == "commit":
            self.committed = max(self.committed, offsets[0])
            rig.progress.commit_one(SESSION, "g", ORDERS, rig.epoch, offsets[0])
            rig.turn()
        elif step.what in ("replay", "drop"):
            if (letters := [offset for offset in offsets if offset < rig.store.queue(DEAD).readable]) != []:
                ask = rig.ask_replay if step.what == "replay" else self._drop
                ask(1, *letters)
        else:
            attempts = {"back": [1], "dead": [99], "mixed": [1, 99]}[step.what] * len(offsets)
            payload = SendBack("g", *ORDERS, rig.epoch, offsets, attempts[: len(offsets)])
            rig.peer.send(request(1, Op.SEND_BACK, payload))
        rig.run()
        assert all(status == OK for _, status in rig.answers())
        if step.cut is not None:
            self._cut(before, step.cut)

    def _drop(self, request_id: int, *offsets: int) -> None:
        self.rig.peer.send(request(request_id, Op.DROP_DEAD, DropDead("g", list(offsets))))

    def _cut(self, before: int, share: float) -> None:
        self.rig.store.log.sync()
        end = self.rig.store.log.written
        self.rig.close()
        (segment,) = segment_files(self._path)
        data = segment.read_bytes()
        segment.write_bytes(data[: before + round((end - before) * share)])
        self.rig = Rig(self._path)
        self.rig.acquire()
        self.committed = max(self.rig.committed, 0)

    def copies(self) -> Counter[str]:
        """How often each message was copied, to wait or to be dead."""
        waiting = [message.body[:1].decode() for _, message in self.rig.deferred()]
        return Counter(waiting + [message.body[:1].decode() for message in self.rig.stored(DEAD)])

    def replays(self) -> Counter[str]:
        """How often each dead letter was replayed."""
        return Counter(message.body[:1].decode() for message in self.rig.stored(RETRIES))


@quick
@given(st.lists(steps, max_size=8))
def test_whatever_is_torn_each_message_is_copied_once_and_each_dead_letter_replayed_once(script: list[Step]) -> None:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=memory) as folder:
        running = Script(Path(folder))
        for step in script:
            running.do(step)
            assert all(times == 1 for times in running.copies().values()), running.copies()
            assert all(times == 1 for times in running.replays().values()), running.replays()
        left = [str(offset) for offset in MESSAGES if offset >= running.committed]

        running.do(Step("mixed", list(MESSAGES), None))
        running.do(Step("replay", list(MESSAGES), None))

        assert set(left) <= set(running.copies())
        assert set(running.copies().values()) == {1}
        letters, handled = running.rig.stored(DEAD), running.rig.tables.ledger.handled
        replayed = [i for i, _ in enumerate(letters) if handled.state_of(DEAD.topic, i) == REPLAYED]
        assert running.replays() == Counter(letters[i].body[:1].decode() for i in replayed)
        assert sum(handled.counts(DEAD.topic)) == len(letters)  # none waits any more
        running.rig.close()
