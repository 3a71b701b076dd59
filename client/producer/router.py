"""
Routes of topics: asked for once, kept until they prove wrong; parcels wait for them in the order of their calls.

A topic may grow, which no answer to a send tells. So a route in use is asked for again every 30 s, while messages go on
by the one that is known. A topic that was deleted is found out by the refusal of a batch, or by that question; the
next parcel asks anew, and with ``auto_create`` makes it anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from rmq.engine.native.connection import Connection
from rmq.wire.batch.compression import Codec
from rmq.wire.errors import ConnectionLost, QueueNotFound, RequestTimeout, TopicNotFound, WireError
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import Op, Route, TopicInfo

from .outbox import Outbox
from .pending import Parcel
from .routing import TopicRoute
from .window import is_temporary

RETRY_S: Final = 0.1
REFRESH_S: Final = 30.0


class Router:
    """
    Places each parcel in the outbox of its queue; ``on_placed(outbox)`` tells when.

    Not of an outbox that is ``ready``: it is in the sender's round, and sent as soon as there is room.
    ``on_refused(error)`` gets each refusal after which the router asks again.
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

    def deliver(self, parcel: Parcel) -> None:
        """
        Place a parcel now, or as soon as the route is known; parcels of a topic never overtake each other.

        Raises:
            Exception: whatever the caller's selector raises.
        """
        route = self._topics.get(parcel.topic)
        if route is None:
            route = self._topics[parcel.topic] = TopicRoute(parcel.topic, self._codec)
        outbox = None
        if not route.waiting:
            try:
                outbox = route.place(parcel)
            except QueueNotFound:
                pass  # the topic may have grown since we asked
        if outbox is not None:
            if not outbox.ready:
                self._on_placed(outbox)
            return
        route.waiting.append(parcel)
        self._fetch(route)

    def left(self, outbox: Outbox) -> None:
        """A batch was made for a queue; now and then it is asked whether there are more of them."""
        route = self._topics[outbox.topic]
        route.left(outbox)
        if route.info is not None and self._loop.time() - route.asked_at > REFRESH_S:
            route.asked_at = self._loop.time()
            self._start(self._refresh(route, route.info))

    def forget(self, topic: str) -> None:
        """The route was wrong: ask again before the next parcel."""
        if topic in self._topics:
            self._topics[topic].info = None

    def forget_all(self) -> None:
        """The broker has another store than before."""
        for route in self._topics.values():
            route.info = None

    async def close(self) -> None:
        """Ask no more; what waits stays where it is."""
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
        """Ask until there is an answer or nobody waits any more."""
        try:
            while any(not parcel.settled for parcel in route.waiting):
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
                    for parcel in route.waiting:
                        parcel.trouble = error
                    await asyncio.sleep(RETRY_S)
                else:
                    self._place_all(route)
                    return
        finally:
            # No await since the loop's last look at ``waiting``: a parcel that comes later asks anew.
            route.fetching = False

    async def _refresh(self, route: TopicRoute, known: TopicInfo) -> None:
        """Ask once more for a route in use. Nobody waits for it, and it makes no topic: nothing may have been sent."""
        info: TopicInfo | None = known
        try:
            info = decode(TopicInfo, await self._connection.request(Op.ROUTE, Route(route.topic)))
        except TopicNotFound:
            info = None
        except (ConnectionLost, RequestTimeout, WireError):
            pass  # the one that is known does until the next time
        if route.info is known:  # else it proved wrong in the meantime, and was asked for anew
            route.info = info

    def _place_all(self, route: TopicRoute) -> None:
        while route.waiting:
            parcel = route.waiting.popleft()
            if parcel.settled:
                continue
            try:
                outbox = route.place(parcel)
            except Exception as error:  # a selector is the caller's code
                parcel.fail(error)
            else:
                assert outbox is not None, "the route was just answered"
                if not outbox.ready:
                    self._on_placed(outbox)

    def _fail(self, route: TopicRoute, error: WireError) -> None:
        while route.waiting:
            route.waiting.popleft().fail(error)
