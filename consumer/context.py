"""What a listener is told beside its messages, and what it may ask for."""

from __future__ import annotations

from rmq.wire.model import MessageQueue

from .group.assignment import Generation, Lost


class CallContext:
    """What every listener is told; it belongs to the call it was given to."""

    __slots__ = ("_generation",)

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

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


class ConsumeContext(CallContext):
    """
    The second argument of a listener that gets the messages of a queue one after the other.

    ``auto_commit`` (True at each call): set it to False and progress is kept until a call returns ``COMMIT``.
    ``suspend_s`` (None at each call): set it and a failed message is tried again after exactly that pause.
    """

    __slots__ = ("auto_commit", "suspend_s")

    def __init__(self, generation: Generation) -> None:
        super().__init__(generation)
        self.auto_commit = True
        self.suspend_s: float | None = None

    def leave(self) -> None:
        """Return SUCCESS after this, and the messages are neither done nor failed: the next owner gets them."""
        self.auto_commit = False
        self._generation.left = True


class ConcurrentContext(CallContext):
    """
    The second argument of a listener that gets messages of a queue beside others of it (``orderly=False``).

    ``ack_index`` (None at each call): with SUCCESS, the index of the last message that is done; those behind it failed.
    ``delay_level`` (0 at each call): after which level a failed message comes again; 0 goes by how often it was
    delivered, and a negative one makes a dead letter of it at once.
    """

    __slots__ = ("ack_index", "delay_level", "is_left")

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self.ack_index: int | None = None
        self.delay_level = 0
        self.is_left = False

    def leave(self) -> None:
        """Whatever is returned after this, the messages are neither done nor failed: the next owner gets them."""
        self.is_left = True
