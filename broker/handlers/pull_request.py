"""A pull while it is served, waits in line, is read for by a thread, or is parked."""

from __future__ import annotations

from rmq.wire.batch.tags import Wanted
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Pull

from ..net.connection import Connection
from ..store.consume_queue import ConsumeQueue
from ..store.read import Found


class Read:
    """What a thread has read for a place of a pull, and what it was asked for."""

    __slots__ = ("queue", "result", "wanted")

    def __init__(self, queue: ConsumeQueue, wanted: Wanted | None, result: Found | Exception) -> None:
        self.queue = queue
        self.wanted = wanted
        self.result = result


class PullRequest:
    """
    A pull and how far it has come.

    ``offsets`` says where each of its queues is read on: behind what it has asked for, where batches were passed that
    hold no wanted tag. That counts under the expression in ``wanted`` only, and is not told before it is answered.
    """

    __slots__ = (
        "_places", "connection", "expires_at", "first", "generations", "had_turn", "is_behind", "is_filtered",
        "kept", "offsets", "pull", "queues", "read", "request_id", "stirred", "wanted",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, request_id: int, pull: Pull, expires_at: float, generations: list[int], *,
        wanted: Wanted | None = None,
    ) -> None:  # fmt: skip
        self.connection = connection
        self.request_id = request_id
        self.pull = pull
        self.queues = tuple(MessageQueue(queue.topic, queue.queue_id) for queue in pull.queues)
        self.expires_at = expires_at
        self.generations = generations  # of each queue's topic, as it was when the pull came
        self.offsets = [queue.queue_offset for queue in pull.queues]
        self.wanted = [wanted] * len(pull.queues)
        self.is_filtered = wanted is not None  # whether any of them is for some tags only
        self.read: dict[int, Read] = {}  # by place
        self.first = 0  # the place to begin with: no queue with much that is unwanted holds up the others
        self.is_behind = False  # the time was over before all that is unwanted was passed
        self.kept = 0  # bytes of frames that the batches of its answer keep in memory, besides their own
        self.had_turn = False  # a thread has read for it since it last stood in line for that
        self.stirred: set[MessageQueue] = set()  # queues that grew while it is parked, still to be looked at
        self._places: dict[MessageQueue, list[int]] = {}

    def has_passed(self, place: int) -> bool:
        """Whether unwanted batches were passed at a place."""
        return self.offsets[place] != self.pull.queues[place].queue_offset

    def want(self, place: int, wanted: Wanted | None) -> None:
        """Read a place for these tags; what was passed for others is looked at again."""
        if wanted != self.wanted[place]:
            self.wanted[place] = wanted
            self.is_filtered = any(self.wanted)
            self.offsets[place] = self.pull.queues[place].queue_offset

    def order(self) -> list[int]:
        """All places, in the order in which they are to be served."""
        places = [*range(len(self.queues))]
        return places[self.first :] + places[: self.first] if self.first else places

    def places_of(self, queue: MessageQueue) -> list[int]:
        """The places of a queue; a pull may name one twice."""
        if not self._places:
            for place, of in enumerate(self.queues):
                self._places.setdefault(of, []).append(place)
        return self._places[queue]
