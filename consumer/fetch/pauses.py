"""Which topics and queues a user has paused. Pure: queues come and go, the wish stays."""

from __future__ import annotations

from rmq.wire.errors import ConfigError
from rmq.wire.model import MessageQueue

Target = str | MessageQueue


class Pauses:
    """
    The newest word counts: one about everything replaces all before, one about a topic those about its queues.

    So a queue that was resumed after its topic was paused runs, and one that is taken later follows its topic.
    """

    def __init__(self) -> None:
        self._all = False
        self._topics: dict[str, bool] = {}
        self._queues: dict[MessageQueue, bool] = {}

    def covers(self, queue: MessageQueue) -> bool:
        """Whether a queue is paused."""
        return self._queues.get(queue, self._topics.get(queue.topic, self._all))

    def set(self, paused: bool, *targets: Target) -> None:
        """
        Pause or resume topics and queues; with none of them, everything.

        Raises:
            ConfigError: something that is neither; nothing has changed then.
        """
        for target in targets:
            if not isinstance(target, str | MessageQueue):
                raise ConfigError(f"a topic or a MessageQueue can be paused and resumed, not {target!r}")
        if not targets:
            self._all = paused
            self._topics.clear()
            self._queues.clear()
        for target in targets:
            if isinstance(target, MessageQueue):
                self._queues[target] = paused
            else:
                self._topics[target] = paused
                self._queues = {queue: value for queue, value in self._queues.items() if queue.topic != target}
