"""How long answers wait for the disk, as the committer measures it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rmq.broker.store.committer import Committer

from ..builders import Opened


class Turns:
    """A loop whose turns the test makes."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[..., object], *args: object) -> object:
        self.soon.append(lambda: callback(*args))
        return None

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> object:
        raise AssertionError("nothing fails here")

    def turn(self) -> None:
        line, self.soon = self.soon, []
        for callback in line:
            callback()


def test_how_long_turns_wait_for_the_disk_is_measured(memory_path: Path) -> None:
    opened, turns, now = Opened(memory_path), Turns(), 10.0
    committer = Committer(opened.store, turns, sync=True, exposed=lambda queues: None, clock=lambda: now)
    for later_s in (0.0, 0.5):
        now += later_s
        opened.stage(b"x")
        committer.schedule()
        turns.turn()
    now = 11.0
    assert committer.stats()["longest_waiting_s"] == 1.0

    committer.synced(opened.store.log.sync())

    told = committer.stats()
    assert (told["waited_turns"], told["total_wait_s"], told["longest_waiting_s"]) == (2, 1.5, 0.0)
    opened.close()
