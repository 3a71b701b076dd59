"""
Routing: chooses the queue of each message, and keeps the routes of topics.

The choice is pure: the same key and topic always give the same queue, on every machine and in RocketMQ. A route is
requested once and kept until it proves wrong; sends wait for it in the order of their calls.

A topic may grow, which no answer to a send reports. So a route in use is requested again every 30 s, while messages
use the known one. A deleted topic is noticed by the refusal of a batch, or by that request; the next send requests the
route again, and creates the topic again with ``auto_create``.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from rmq.engine.native.connection import Connection
from rmq.wire.batch.compression import Codec
from rmq.wire.batch.hashing import shard, shard_of_int
from rmq.wire.errors import ConfigError, ConnectionLost, QueueNotFound, RequestTimeout, TopicNotFound, WireError
from rmq.wire.model import Message, MessageQueue, check_key
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import Op, Route, TopicInfo

from .outbox import Outbox
from .pending import PendingSend
from .window import is_temporary

Selector = Callable[[Sequence[MessageQueue], Message, Any], int | MessageQueue]


class Choice(NamedTuple):
    """
    How the caller wants the queue to be chosen; nothing set is round robin.

    ``key`` is kept with the messages. Where the queue is chosen in another way, they keep a key of their own.
    """

    key: str | None = None
    queue_id: int | None = None
    selector: Selector | None = None
    arg: Any = None


ROUND_ROBIN = Choice()


def by_int(queues: Sequence[MessageQueue], message: Message, arg: Any) -> int:
    """
    Choose the queue as RocketMQ's hash selector does for a Java ``Integer``: its absolute value modulo the queues.

    Use it as ``selector``. The number is ``arg``, or else the message's ``key`` as decimal digits.
    """
    value = arg
    if value is None and message.key is not None and _DECIMAL.match(message.key):
        value = int(message.key)
    if not isinstance(value, int):
        given = f"arg={arg!r}" if arg is not None else f"key={message.key!r}"
        raise ValueError(f'by_int needs a whole number, got {given}: give arg=17, or a message with key="17"')
    return queues[shard_of_int(value, len(queues))].queue_id


_DECIMAL: Final = re.compile(r"-?[0-9]{1,4300}\Z", re.ASCII)


def choice(key: str | None, queue_id: int | None, selector: Selector | None, arg: Any) -> Choice:
    """
    Check how the caller chooses.

    Raises:
        ValueError: in more ways than one, or by an empty key.
        TypeError: a key that is not a text.
    """
    if key is None and queue_id is None and selector is None:
        return ROUND_ROBIN
    if (key is not None) + (queue_id is not None) + (selector is not None) > 1:
        raise ValueError("give one of key, queue_id and selector: each of them chooses the queue")
    if key is not None:
        check_key(key)
    return Choice(key, queue_id, selector, arg)


def keyed(wanted: Choice, key: str) -> Choice:
    """
    Return how the queue of a message with a key is chosen: by its key, unless the caller chooses in another way.

    Raises:
        ConfigError: the caller gives another key.
    """
    if wanted is ROUND_ROBIN:
        return Choice(key)
    if wanted.key is not None and wanted.key != key:
        raise ConfigError(f"the message has the key {key!r} and the call gives key={wanted.key!r}: give it once")
    return wanted


def runs_of(wanted: Choice, messages: Sequence[Message]) -> list[tuple[Choice, Sequence[Message]]]:
    """
    Return neighbours that go to one queue, and how it is chosen, for messages some of which have a key.

    Raises:
        ConfigError: the caller gives another key than a message has.
        ValueError: by_int is the selector, and a key is not a whole number.
    """
    by_key = wanted.selector is by_int and wanted.arg is None
    if wanted is not ROUND_ROBIN and not by_key:
        for message in messages:
            if message.key is not None:
                keyed(wanted, message.key)
        return [(wanted, messages)]
    runs: list[tuple[Choice, Sequence[Message]]] = []
    for key, run in groupby(messages, attrgetter("key")):
        together = tuple(run)
        if by_key:
            by_int((_ANY_QUEUE,), together[0], None)  # before anything is sent
        runs.append((wanted if key is None or by_key else Choice(key), together))
    return runs


_ANY_QUEUE: Final = MessageQueue("", 0)


def choose(info: TopicInfo, wanted: Choice, message: Message | None, turn: int) -> int:
    """
    The queue for ``message``; ``turn`` counts the batches that went round robin.

    Raises:
        QueueNotFound: the topic has no such queue.
    """
    if wanted is ROUND_ROBIN:
        return info.queues[turn % len(info.queues)].queue_id
    if wanted.key is not None:
        return info.queues[shard(wanted.key, info.shards)].queue_id
    if wanted.queue_id is not None:
        return _existing(info, wanted.queue_id)
    if wanted.selector is not None and message is not None:
        # A topic that grew still divides numbers by what it began with, as it does keys.
        among = info.queues[: info.shards] if wanted.selector is by_int else info.queues
        queues = [MessageQueue(info.topic, queue.queue_id) for queue in among]
        chosen = wanted.selector(queues, message, wanted.arg)
        if isinstance(chosen, MessageQueue) and chosen.topic != info.topic:
            raise QueueNotFound(f"the selector chose {chosen} for a message of {info.topic!r}")
        return _existing(info, chosen.queue_id if isinstance(chosen, MessageQueue) else chosen)
    return info.queues[turn % len(info.queues)].queue_id


def _existing(info: TopicInfo, queue_id: int) -> int:
    queues = info.queues
    if type(queue_id) is int and 0 <= queue_id < len(queues) and queues[queue_id].queue_id == queue_id:
        return queue_id  # found where brokers put it
    if any(queue.queue_id == queue_id for queue in queues):
        return queue_id
    ids = [queue.queue_id for queue in info.queues]
    raise QueueNotFound(f"the topic {info.topic!r} has no queue {queue_id}: it has {min(ids)} to {max(ids)}")


class TopicRoute:
    """The route of a topic, and the sends that wait for it."""

    def __init__(self, topic: str, codec: Codec | None = None) -> None:
        self.topic = topic
        self._codec = codec
        self._info: TopicInfo | None = None
        self._at_turn: Outbox | None = None  # of the next round-robin message; None: to be chosen
        self.unrouted: deque[PendingSend] = deque()
        self.fetching = False
        self.asked_at = 0.0  # written by the router: when the route was last requested
        self._outboxes: dict[int, Outbox] = {}
        self._turn = random.randrange(1 << 16)  # many short-lived producers must not all start with one queue

    @property
    def info(self) -> TopicInfo | None:
        """The route; None if it has to be requested."""
        return self._info

    @info.setter
    def info(self, info: TopicInfo | None) -> None:
        self._info = info
        self._at_turn = None

    def place(self, pending: PendingSend) -> Outbox | None:
        """
        Choose the queue of a send and put it into its outbox; None while the route is not known.

        Raises:
            Exception: the queue does not exist, or the selector failed.
        """
        outbox = self._at_turn
        if outbox is None or pending.choice is not ROUND_ROBIN:
            info = self._info
            if info is None:
                return None
            first = None if pending.messages is None else pending.messages[0]
            outbox = self._outbox(choose(info, pending.choice, first, self._turn), info.generation)
            if pending.choice is ROUND_ROBIN:
                self._at_turn = outbox
        pending.queue_id = outbox.queue_id
        outbox.put(pending)
        if pending.count > 1:
            self.left(outbox)
        return outbox

    def _outbox(self, queue_id: int, generation: int) -> Outbox:
        outbox = self._outboxes.get(queue_id)
        if outbox is None or outbox.generation != generation:  # what waits for a dead topic goes down with it
            outbox = self._outboxes[queue_id] = Outbox(self.topic, queue_id, self._codec)
            outbox.generation = generation
        return outbox

    def left(self, outbox: Outbox) -> None:
        """Record that a batch was cut: if it was its queue's turn, the turn moves on."""
        if self._info is not None and choose(self._info, ROUND_ROBIN, None, self._turn) == outbox.queue_id:
            self._turn += 1
            self._at_turn = None


RETRY_S: Final = 0.1
REFRESH_S: Final = 30.0


class Router:
    """
    Places each send in the outbox of its queue, and calls ``on_placed(outbox)``.

    It does not call for an outbox that is ``ready``: that is in the sender's round already. ``on_refused(error)`` gets
    each refusal after which the router tries again.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        auto_create: bool,
        on_placed: Callable[[Outbox], None],
        on_refused: Callable[[WireError], None],
        codec: Codec | None = None,
    ) -> None:
        self._connection = connection
        self._codec = codec
        self._auto_create = auto_create
        self._on_placed = on_placed
        self._on_refused = on_refused
        self._topics: dict[str, TopicRoute] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def deliver(self, pending: PendingSend) -> None:
        """
        Place a send now, or as soon as the route is known; sends of a topic never overtake each other.

        Raises:
            Exception: raised by the caller's selector.
        """
        route = self._topics.get(pending.topic)
        if route is None:
            route = self._topics[pending.topic] = TopicRoute(pending.topic, self._codec)
        outbox = None
        if not route.unrouted:
            try:
                outbox = route.place(pending)
            except QueueNotFound:
                pass  # the topic may have grown since the route was requested
        if outbox is not None:
            if not outbox.ready:
                self._on_placed(outbox)
            return
        route.unrouted.append(pending)
        self._fetch(route)

    def left(self, outbox: Outbox) -> None:
        """Record that a batch was cut, and request a route again that is older than 30 s."""
        route = self._topics[outbox.topic]
        route.left(outbox)
        if route.info is not None and self._loop.time() - route.asked_at > REFRESH_S:
            route.asked_at = self._loop.time()
            self._start(self._refresh(route, route.info))

    def forget(self, topic: str) -> None:
        """Request a route again before the next send, as it proved wrong."""
        if topic in self._topics:
            self._topics[topic].info = None

    def forget_all(self) -> None:
        """Request all routes again, as the broker has another store."""
        for route in self._topics.values():
            route.info = None

    async def close(self) -> None:
        """End all requests; waiting sends stay where they are."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _fetch(self, route: TopicRoute) -> None:
        if route.fetching:
            return
        route.fetching = True
        self._start(self._ask(route))

    def _start(self, asking: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(asking, name="asking for a route")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, route: TopicRoute) -> None:
        """Request a route until there is an answer, or no send waits for it any more."""
        try:
            while any(not pending.settled for pending in route.unrouted):
                try:
                    await self._connection.wait_connected()
                    wanted = Route(route.topic, self._auto_create)
                    route.info = decode(TopicInfo, await self._connection.request(Op.ROUTE, wanted))
                    route.asked_at = self._loop.time()
                except (ConnectionLost, RequestTimeout, WireError) as error:
                    if isinstance(error, WireError):
                        if not is_temporary(error.code):
                            self._fail(route, error)
                            return
                        self._on_refused(error)
                    for pending in route.unrouted:
                        pending.trouble = error
                    await asyncio.sleep(RETRY_S)
                else:
                    self._place_all(route)
                    return
        finally:
            # No await since the loop's last look at ``unrouted``: a send that comes later starts another request.
            route.fetching = False

    async def _refresh(self, route: TopicRoute, known: TopicInfo) -> None:
        """Request a route in use again. No send waits for it, and it creates no topic: nothing may have been sent."""
        info: TopicInfo | None = known
        try:
            info = decode(TopicInfo, await self._connection.request(Op.ROUTE, Route(route.topic)))
        except TopicNotFound:
            info = None
        except (ConnectionLost, RequestTimeout, WireError):
            pass  # the known one serves until the next time
        if route.info is known:  # else it proved wrong in the meantime, and was requested again
            route.info = info

    def _place_all(self, route: TopicRoute) -> None:
        while route.unrouted:
            pending = route.unrouted.popleft()
            if pending.settled:
                continue
            try:
                outbox = route.place(pending)
            except Exception as error:  # raised by a selector, which is the caller's code
                pending.fail(error)
            else:
                assert outbox is not None, "the route was just answered"
                if not outbox.ready:
                    self._on_placed(outbox)

    def _fail(self, route: TopicRoute, error: WireError) -> None:
        while route.unrouted:
            route.unrouted.popleft().fail(error)
