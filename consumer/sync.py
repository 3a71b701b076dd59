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

All calls may be made by any thread, by the listener and by handlers of signals. :class:`PullConsumer` is for those who
ask for messages instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rmq.engine.native.connection import Connection
from rmq.runtime.clock import boottime
from rmq.runtime.loop_thread import LoopEnded
from rmq.runtime.stop_signals import StopSignals

from .config import ConsumerConfig
from .consumer import Consumer as AsyncConsumer
from .group.allocation import Allocate, Strategy
from .listener import Listener
from .running import Connect
from .sync_base import STOPPED, BlockingConsumer
from .sync_pull import PullConsumer

__all__ = ["Consumer", "PullConsumer"]


class Consumer(BlockingConsumer):
    """
    A member of a consumer group, as :class:`rmq.consumer.Consumer` is, whose arguments it has.

    It has a thread with an event loop. A listener that is a plain function runs in threads of its own, as many as
    there are ``slots``; one that is a coroutine function runs on the loop.

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
        handle_signals: bool = True,
        connect: Connect = Connection,
        now: Callable[[], float] = boottime,
        **settings: Any,
    ) -> None:
        """
        ``settings`` are fields of :class:`ConsumerConfig`, which they replace one by one. ``handle_signals=False``
        leaves SIGTERM and SIGINT to you, see :meth:`run`.

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
        super().__init__(self._consumer, close=self._consumer.stop, handle_signals=handle_signals)

    def add_hook(self, hook: object) -> None:
        """
        Have ``hook.before(info)`` and ``hook.after(info)``, either may be missing, called around each listener call.

        They are called on the loop, so they must not block. What a hook raises is logged.

        Raises:
            ConfigError: it has neither method, or one of them is a coroutine function.
        """
        self._change(self._consumer.add_hook, hook)

    def run(self) -> None:
        """
        Consume until :meth:`stop` is called or a signal comes.

        In the main thread SIGTERM and SIGINT stop it as :meth:`stop` does, and this returns. A second signal cancels
        the running calls of a coroutine function; those in threads are waited for. Later signals do what they did
        before: Ctrl-C is raised at once then, and what was not committed is delivered again. A signal for which the
        program has a handler of its own, or which it ignores, is left alone; what such a handler raises stops the
        consumer before it goes on.

        In a ``with`` block it returns at once if a listener has stopped the consumer before this was called.

        Raises:
            ConfigError: there is no subscription.
            GroupMismatch: the group runs with other settings.
            RuntimeError: it was stopped before, an event loop is running here, or this process is a fork.
        """
        self._start_thread()
        try:
            with self._stop_signals(self._hurry) as signals:
                self._thread.call(self._run, signals)
        except LoopEnded:
            raise RuntimeError(STOPPED) from None
        finally:
            self._end()

    def _hurry(self) -> None:
        self._thread.post(self._consumer._hurry)
        self._thread.hurry()

    async def _run(self, signals: StopSignals | None) -> None:
        asked = signals is not None and signals.asked  # before this began
        if asked or (self._is_entered and self._consumer._stop is not None):
            await self._consumer._stopped.wait()
        else:
            await self._consumer.run()
