"""What the user of a pull consumer wants: subscribed topics or assigned queues, never both. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from rmq.wire.errors import BadName, ConfigError
from rmq.wire.model import MessageQueue
from rmq.wire.names import check_readable, wrap

from ..group.allocation import Strategy, by_config
from ..group.tag_filter import Subscription

Queue = MessageQueue | tuple[str, int]

CLUSTERING = "clustering"
ASSIGNED = "assigned"


def as_queue(queue: Queue) -> MessageQueue:
    """
    A queue that a user named.

    Raises:
        ConfigError: it is none.
    """
    match queue:
        case (str() as topic, int() as queue_id) if not isinstance(queue_id, bool) and queue_id >= 0:
            return MessageQueue(topic, queue_id)
    raise ConfigError(f"a queue is (topic, queue_id), such as ('orders', 0), not {queue!r}")


def check_timeout(timeout_s: object) -> None:
    """
    Refuse a timeout that a poll cannot have.

    Raises:
        ConfigError: it is neither None nor a number of seconds.
    """
    if timeout_s is None:
        return
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s >= 0:
        raise ConfigError(f"timeout_s must be 0 or more seconds, or None, not {timeout_s!r}")


def check_hooks(**hooks: object) -> None:
    """
    Refuse hooks that cannot be called.

    Raises:
        ConfigError: one of them is neither None nor a function.
    """
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise ConfigError(f"{name} must be a function of a list of queues, not {hook!r}")


class PullTargets:
    """
    The wishes of the user. The first of them decides which way the consumer goes, for all its life.

    ``subscriptions`` are by the names on the wire, ``assigned`` by those of the user.
    """

    def __init__(self, namespace: str = "") -> None:
        self._namespace = namespace
        self.subscriptions: dict[str, Subscription] = {}
        self.assigned: set[MessageQueue] = set()
        self.model = ""  # not decided yet

    def __bool__(self) -> bool:
        return bool(self.subscriptions)

    @property
    def strategy(self) -> Strategy | None:
        """The strategy of a member whose queues are assigned; None if they are shared out."""
        return Strategy(ASSIGNED, partial(by_config, wanted=self.assigned)) if self.model == ASSIGNED else None

    def checked(self, topics: Mapping[str, str] | None) -> Mapping[str, str]:
        """
        Topics and expressions as a constructor takes them.

        Raises:
            ConfigError: they are no dictionary.
        """
        if topics is not None and not isinstance(topics, Mapping):
            raise ConfigError(f"topics must be a dictionary such as {{'orders': '*'}}, not {topics!r}")
        return topics or {}

    def subscribe(self, topic: str, expression: str) -> None:
        """
        Consume a topic.

        Raises:
            ConfigError: the name or the expression is not legal, or queues were assigned.
        """
        name, subscription = self._checked_topic(topic), Subscription(expression)
        self._decide(CLUSTERING)
        self.subscriptions[name] = subscription

    def unsubscribe(self, topic: str) -> None:
        """
        Consume a topic no more.

        Raises:
            ConfigError: the topic is not text, or queues were assigned.
        """
        name = self.topic_on_the_wire(topic)
        self._decide(CLUSTERING)
        self.subscriptions.pop(name, None)

    def assign(self, queues: Iterable[Queue]) -> None:
        """
        Consume exactly these queues.

        Raises:
            ConfigError: one of them is not a queue, or a topic was subscribed; nothing has changed then.
        """
        if isinstance(queues, str | MessageQueue) or not isinstance(queues, Iterable):
            raise ConfigError(f"assign() takes a list of queues such as [('orders', 0)], not {queues!r}")
        wanted = {as_queue(queue) for queue in queues}
        names = {self._checked_topic(queue.topic) for queue in wanted}
        self._decide(ASSIGNED)
        self.assigned.clear()
        self.assigned.update(wanted)
        for name in self.subscriptions.keys() - names:
            del self.subscriptions[name]
        for name in names:
            self.subscriptions.setdefault(name, Subscription())

    def on_the_wire(self, queue: MessageQueue) -> MessageQueue:
        """A queue as the broker knows it."""
        return MessageQueue(self.topic_on_the_wire(queue.topic), queue.queue_id)

    def topic_on_the_wire(self, topic: str) -> str:
        """
        A topic as the broker knows it.

        Raises:
            ConfigError: it is not text.
        """
        if not isinstance(topic, str):
            raise ConfigError(f"a topic must be text, not {topic!r}")
        return wrap(self._namespace, topic)

    def _checked_topic(self, topic: str) -> str:
        name = self.topic_on_the_wire(topic)
        try:
            check_readable(name)
        except BadName as error:
            raise ConfigError(str(error)) from error
        return name

    def _decide(self, model: str) -> None:
        if self.model not in ("", model):
            raise ConfigError("a pull consumer either subscribes to topics or is assigned queues: make another one")
        self.model = model
