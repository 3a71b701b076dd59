"""
A consumer for code without asyncio: the same names, arguments, promises and errors, and calls that block.

::

    from rmq.consumer import ConsumeStatus
    from rmq.consumer.sync import Consumer

    def on_order(messages, context):
        for message in messages:
            print(message.body)
        return ConsumeStatus.SUCCESS

    with Consumer("127.0.0.1:10911", group="billing", listener=on_order) as consumer:
        consumer.subscribe("orders", "created || paid")
        consumer.run()

All calls may be made by any thread, by the listener and by handlers of signals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from rmq.client.clock import boottime
from rmq.client.connection import Connection
from rmq.client.loop_thread import LoopEnded, LoopThread
from rmq.wire.model import MessageQueue

from .allocation import Allocate, Strategy
from .config import ConsumerConfig
from .consumer import Consumer as AsyncConsumer
from .listeners import Listener
from .pauses import Target
from .running import Connect
from .statistics import TopicStatistics

P = ParamSpec("P")
T = TypeVar("T")

STOPPED = "this consumer was stopped: make another one"


class Consumer:
    """
    A member of a consumer group, as :class:`rmq.consumer.Consumer` is, whose arguments it has.

    It has a thread with an event loop. A listener that is a plain function runs in threads of its own, as many as
    there are ``slots``; one that is a coroutine function runs on the loop. Ctrl-C during :meth:`run` stops the consumer
    cleanly before it is raised; a second one is raised at once, and what was not committed by then is delivered again.

    One that is not stopped does not keep the program from ending, but for calls of the listener that run: those are
    waited for. It has a second then to commit what they did: what it cannot is delivered again, and others get the
    queues when the leases have expired. Inside a running event loop it refuses to work, as it does after a fork: make
    another one there.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        group: str | None = None,
        listener: Listener,
        orderly: bool | None = None,
        strategy: str | Strategy | Allocate | None = None,
        topics: Mapping[str, str] | None = None,
        config: ConsumerConfig | None = None,
        connect: Connect = Connection,
        now: Callable[[], float] = boottime,
        **settings: Any,
    ) -> None:
        """
        ``settings`` are fields of :class:`ConsumerConfig`, which they replace one by one.

        Raises:
            ConfigError: a setting that is unknown or cannot be.
        """
        self._consumer = AsyncConsumer(
            address,
            group=group,
            listener=listener,
            orderly=orderly,
            strategy=strategy,
            topics=topics,
            config=config,
            connect=connect,
            now=now,
            **settings,
        )
        self._is_entered = False
        self._thread = LoopThread("consumer", instead="rmq.consumer.Consumer", close=self._consumer.stop)
        self._thread.end_with(self)

    @property
    def config(self) -> ConsumerConfig:
        """Its settings."""
        return self._consumer.config

    # What is consumed

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """
        Consume a topic, or the messages of it whose tag is in ``expression``; may be called at any time.

        All members of a group subscribe alike; see :meth:`rmq.consumer.Consumer.subscribe`.

        Raises:
            ConfigError: the name or the expression is not legal.
        """
        self._change(self._consumer.subscribe, topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """
        Stop consuming a topic: its queues are handed over as in a rebalance.

        Raises:
            ConfigError: the topic is no text.
        """
        self._change(self._consumer.unsubscribe, topic)

    def pause(self, *targets: Target) -> None:
        """
        Stop giving messages of topics or queues to the listener, of everything if none is named; at any time.

        Raises:
            ConfigError: something that is neither a topic nor a queue.
        """
        self._change(self._consumer.pause, *targets)

    def resume(self, *targets: Target) -> None:
        """
        Go on at once with what :meth:`pause` has stopped, with everything if nothing is named.

        Raises:
            ConfigError: something that is neither a topic nor a queue.
        """
        self._change(self._consumer.resume, *targets)

    def add_hook(self, hook: object) -> None:
        """
        Have ``hook.before(info)`` and ``hook.after(info)``, either may be missing, called around each listener call.

        They are called on the loop, so they must not block. What a hook raises is logged.

        Raises:
            ConfigError: it has neither method, or one of them is a coroutine function.
        """
        self._change(self._consumer.add_hook, hook)

    # What it does

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this consumer holds the locks of, sorted."""
        return self._ask(lambda: self._consumer.assignment)

    @property
    def stopped_queues(self) -> dict[MessageQueue, str]:
        """The queues that wait for somebody, each with the reason and the offsets."""
        return self._ask(lambda: self._consumer.stopped_queues)

    def statistics(self) -> dict[str, TopicStatistics]:
        """What was consumed and pulled, and how long that took, by ``topic@group``; empty before the start."""
        return self._ask(self._consumer.statistics)

    def running_info(self) -> dict[str, Any]:
        """
        What this consumer does now, as ``rmq-admin group members --verbose`` shows it; empty before the start.

        It is for people and their dashboards: names may come and go with versions.
        """
        return self._ask(self._consumer.running_info)

    def _change(self, function: Callable[P, None], *args: P.args, **named: P.kwargs) -> None:
        try:
            self._thread.run(function, *args, **named)
        except LoopEnded:
            pass  # as of the other consumer: after the stop nobody asks for it

    def _ask(self, function: Callable[[], T]) -> T:
        try:
            return self._thread.run(function)
        except LoopEnded:
            return function()  # nothing changes any more

    # Life

    def __enter__(self) -> Self:
        self.start()
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_entered = False
        if self._thread.is_forked():
            return  # the consumer is the other process's
        try:
            self._thread.call(self._consumer.__aexit__, kind, error, trace)
        except LoopEnded:
            pass  # by a second Ctrl-C
        finally:
            self._thread.end()

    def start(self) -> None:
        """
        Begin, in the background: connect, and consume from the first subscription on.

        Raises:
            RuntimeError: it was stopped, an event loop is running here, or this process is a fork.
        """
        self._start_thread()
        self._thread.run(self._consumer.start)

    def run(self) -> None:
        """
        Consume until :meth:`stop` is called; Ctrl-C stops the consumer and is raised after that.

        Raises:
            ConfigError: there is no subscription.
            GroupMismatch: the group runs with other settings.
            RuntimeError: it was stopped before, an event loop is running here, or this process is a fork.
        """
        self._start_thread()
        try:
            self._thread.call(self._consumer.run)
        except LoopEnded:
            raise RuntimeError(STOPPED) from None
        finally:
            self._end()

    def stop(self) -> None:
        """
        Stop: running calls end and are recorded, then everything is committed and given back in one request.

        Called by a listener it returns at once, since it cannot wait for its own end.
        """
        if self._thread.is_inside():
            self._thread.post(self._consumer.stop)
            return
        try:
            self._thread.start()  # what was never started is told, too
        except LoopEnded:
            return  # it has stopped
        try:
            self._thread.call(self._consumer.stop)
        except LoopEnded:
            pass  # it has stopped meanwhile
        finally:
            self._end()

    def _start_thread(self) -> None:
        try:
            self._thread.start()
        except LoopEnded:
            raise RuntimeError(STOPPED) from None

    def _end(self) -> None:
        """End the thread of one that has stopped; within a ``with`` block its end has to ask what happened."""
        if not self._is_entered and self._consumer._stopped.is_set():
            self._thread.end()
