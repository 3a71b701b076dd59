"""``Consumer``: the façade. It puts the parts together, starts them, and stops them in an order that loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any

from rmq.engine.native.connection import Connection
from rmq.engine.native.group import BROADCASTING
from rmq.runtime.clock import boottime
from rmq.runtime.logging import get_logger
from rmq.wire import names
from rmq.wire.errors import BadName, ConfigError
from rmq.wire.model import MessageQueue
from rmq.wire.names import check_readable, wrap

from .config import ConsumerConfig
from .dispatch.concurrent import ConcurrentService
from .dispatch.failures import SendBacks, SkipFailures
from .dispatch.invoke import DispatchParts
from .dispatch.orderly import OrderlyScheduler
from .fetch.concurrent_queue import ConcurrentQueue
from .fetch.process_queue import ProcessQueue
from .group.allocation import Allocate, Strategy
from .group.tag_filter import Subscription
from .listener import Hooks, Listener, adapt
from .member import BaseConsumer, Connect, ConsumerRuntime, ConsumeService

log = get_logger("rmq.consumer")


class Consumer(BaseConsumer[ConsumerRuntime]):
    """
    A member of a consumer group that gives each queue's messages to ``listener``, one after the other.

    ::

        async with Consumer("127.0.0.1:10911", group="billing", listener=on_order) as consumer:
            consumer.subscribe("orders", "created || paid")
            await consumer.run()

    With ``orderly=False`` up to ``slots`` calls run at a time, also of one queue, and messages are finished in
    any order: those that fail are given back to the broker, which delivers them again later, and makes dead letters of
    those that failed 16 times more. The listener gets a :class:`~rmq.consumer.listener.ConcurrentContext` then.

    With ``model="broadcasting"`` every member gets every message, and keeps its progress in a file of its own (see
    ``instance`` and ``offsets_dir``); nothing is locked.

    Neither the broker nor the topic has to exist yet. A consumer runs once: it cannot be started again.
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
        handle_signals: bool = True,
        connect: Connect = Connection,
        now: Callable[[], float] = boottime,
        **settings: Any,
    ) -> None:
        """
        ``settings`` are fields of :class:`ConsumerConfig`, which they replace one by one.

        ``strategy`` is the setting of that name, or a way to share queues out of your own: a
        :class:`~rmq.consumer.group.allocation.Strategy`, or a function ``(queues, members, member) -> queues`` that
        says
        the same in every member. With a ``namespace`` the group and its topics are apart from those of others; you
        name them, and see them, without it. ``handle_signals=False`` leaves SIGTERM and SIGINT to you, see :meth:`run`.

        Raises:
            ConfigError: an unknown setting, or an invalid value.
        """
        if orderly is not None:
            settings["orderly"] = orderly
        super().__init__(
            "Consumer(address, group=..., listener=...)",
            config,
            settings,
            address=address,
            group=group,
            strategy=strategy,
            connect=connect,
            now=now,
            handle_signals=handle_signals,
        )
        if self._strategy is not None and self.config.model == BROADCASTING:
            raise ConfigError("a broadcasting member has every queue: leave strategy out")
        self._adapted, self._threads = adapt(listener, self.config.slots)
        self._hooks = Hooks(self.config.group, consume_timeout_s=self.config.consume_timeout_s)
        self._subscriptions: dict[str, Subscription] = {}
        if topics is not None and not isinstance(topics, Mapping):
            raise ConfigError(f"topics must be a dictionary such as {{'orders': '*'}}, not {topics!r}")
        for topic, expression in (topics or {}).items():
            self.subscribe(topic, expression)

    # What is consumed

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """
        Consume a topic, or the messages of it whose tag is in ``expression``; may be called at any time.

        All members of a group subscribe alike. A change of a running consumer that another member does not share is
        refused by the broker: it is logged as ``group.subscription_refused``, and the consumer goes on with the
        subscriptions it had. To change those of a group, stop its members first.

        Raises:
            ConfigError: the name or the expression is not legal.
        """
        try:
            check_readable(self._on_the_wire(topic))
        except BadName as error:
            raise ConfigError(str(error)) from error
        self._subscriptions[self._on_the_wire(topic)] = Subscription(expression)
        self._subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """
        Stop consuming a topic: its queues are handed over as in a rebalance.

        Without the last topic the consumer leaves its group until it is subscribed again. While it has others, what
        :meth:`subscribe` says about the members of a group is true here, too.

        Raises:
            ConfigError: the topic is not text.
        """
        self._subscriptions.pop(self._on_the_wire(topic), None)
        self._subscriptions_changed()

    def _on_the_wire(self, topic: str) -> str:
        if not isinstance(topic, str):
            raise ConfigError(f"a topic must be text, not {topic!r}")
        return wrap(self.config.namespace, topic)

    def _subscriptions_changed(self) -> None:
        if self._runtime is not None:
            self._runtime.rebalancer.subscribed()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this consumer owns, sorted; that of the group's own retries is left out."""
        retries = names.retry_topic(self.config.group)
        shown = [assignment.shown for assignment in self._assignments() if not assignment.dropped]
        return sorted(
            queue for queue in shown if queue.topic != retries or self._on_the_wire(retries) in self._subscriptions
        )

    @property
    def stopped_queues(self) -> dict[MessageQueue, str]:
        """
        The queues that wait for an operator, each with the reason and the offsets.

        At a gap in the log (see ``on_gap``), or at a message that ended one process after the other (CRASH_LOOP).
        """
        reasons = {
            assignment.shown: assignment.crash_loop or (assignment.stopped and str(assignment.stopped.gap))
            for assignment in self._assignments()
            if not assignment.dropped
        }
        return {queue: reason for queue, reason in reasons.items() if reason}

    def add_hook(self, hook: object) -> None:
        """
        Have ``hook.before(info)`` and ``hook.after(info)``, either may be missing, called around each listener call.

        ``info`` is a :class:`~rmq.consumer.listener.CallInfo`. May be called at any time; what a hook raises is logged.

        Raises:
            ConfigError: it has neither method, or one of them is a coroutine function.
        """
        self._hooks.add(hook)

    # Life

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if self._error is not None and error is None:
            raise self._error

    def start(self) -> None:
        """
        Begin, in the background: connect, and consume from the first subscription on.

        Raises:
            ConfigError: broadcasting, and another process has its progress, or that cannot be read or written.
            RuntimeError: it was stopped, or no event loop is running.
        """
        self._refuse_if_stopped()
        asyncio.get_running_loop()  # refused before anything is made that would be taken for a started consumer
        if self._runtime is None:
            self._runtime = ConsumerRuntime(
                self.config,
                self._subscriptions,
                make_service=self._make_service,
                make_cache=ProcessQueue
                if self.config.orderly
                else partial(ConcurrentQueue, max_span=self.config.max_span),
                connect=self._connect,
                now=self._now,
                on_failure=self._failed,
                pauses=self._pauses,
                strategy=self._strategy,
            )
            self._runtime.start()

    def _make_service(self, runtime: ConsumerRuntime) -> ConsumeService:
        """Make what calls the listener."""
        parts = DispatchParts(
            tasks=runtime.tasks,
            leases=runtime.keeper,
            on_turn=runtime.reporter.turned,
            hooks=self._hooks,
            statistics=runtime.statistics,
            stalled=runtime.stalls.stalled,
        )
        if self.config.orderly:
            return OrderlyScheduler(self._adapted, self.config, runtime.broker, parts)
        failures = SkipFailures() if runtime.is_broadcasting else SendBacks(self.config, runtime.broker)
        return ConcurrentService(self._adapted, self.config, runtime.broker, parts, failures=failures)

    async def run(self) -> None:
        """
        Consume until :meth:`stop` is called or a signal comes; cancelling it stops the consumer.

        In the main thread SIGTERM and SIGINT stop it as :meth:`stop` does, and this returns. A second signal cancels
        the running calls; later ones do what they did before. A signal for which the program has a handler of its own,
        or which it ignores, is left alone.

        Raises:
            ConfigError: nothing is subscribed.
            GroupMismatch: the group runs with other settings.
            RuntimeError: it was stopped before.
        """
        self._refuse_if_stopped()
        if not self._subscriptions:
            raise ConfigError("there is nothing to consume: call subscribe() before run()")
        self.start()
        with self._stop_signals(self._cancel_calls):
            try:
                await self._stopped.wait()
            finally:
                await self.stop()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    async def stop(self) -> None:
        """
        Stop: running calls end and are recorded, then everything is committed and given back in one request.

        Called by a listener it returns at once, since it cannot wait for its own end. Cancelling it leaves the stop
        going on in the background; a further call waits for it.
        """
        await self._stop_and_wait()

    async def _finish(self, runtime: ConsumerRuntime) -> None:
        # While the interpreter exits, those that run have ended, and the others would wait for ever.
        is_exiting = self._threads is not None and self._threads.is_exiting
        try:
            await runtime.stop(drain_s=0.0 if is_exiting else None)
        finally:
            if self._threads is not None:
                self._threads.close()
            self._stopped.set()
