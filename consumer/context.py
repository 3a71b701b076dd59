"""What a listener is told beside its messages, and what it may ask for."""

from __future__ import annotations

from rmq.wire.model import MessageQueue

from .generation import Generation, Lost


class ConsumeContext:
    """
    The second argument of a listener; it belongs to the call it was given to.

    ``auto_commit`` (True at each call): set it to False and progress is kept until a call returns ``COMMIT``.
    ``suspend_s`` (None at each call): set it and a failed message is tried again after exactly that pause.
    """

    __slots__ = ("_generation", "auto_commit", "suspend_s")

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self.auto_commit = True
        self.suspend_s: float | None = None

    @property
    def queue(self) -> MessageQueue:
        """The queue of the messages."""
        return self._generation.shown

    @property
    def epoch(self) -> int:
        """The fencing token: it grows with every owner, so that a sink can refuse the writes of an older one."""
        return self._generation.epoch

    @property
    def lost(self) -> Lost:
        """True once the queue may belong to somebody else; ``await context.lost.wait()`` waits for that."""
        return self._generation.lost
