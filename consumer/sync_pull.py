"""
A pull consumer for code without asyncio.

::

    from rmq.consumer.sync import PullConsumer

    with PullConsumer("127.0.0.1:10911", group="billing", topics={"orders": "*"}) as consumer:
        for batch in consumer:
            for message in batch:
                print(message.body)
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, Self, TypeVar

from rmq.engine.native.connection import Connection
from rmq.runtime.clock import boottime
from rmq.runtime.logging import get_logger
from rmq.runtime.loop_thread import LoopEnded, ThreadTasks
from rmq.runtime.stop_signals import StopSignals
from rmq.wire.model import MessageQueue

from .config import ConsumerConfig
from .fetch.pauses import Target
from .group.allocation import Allocate, Strategy
from .poll.polls import RebalanceHook
from .poll.pull_consumer import DEFAULT_POLL_S
from .poll.pull_consumer import PullConsumer as AsyncPullConsumer
from .poll.pulled_batch import PulledBatch
from .poll.targets import Queue
from .running import Connect
from .sync_base import STOPPED, BlockingConsumer

log = get_logger("rmq.consumer")

P = ParamSpec("P")
T = TypeVar("T")


class PullConsumer(BlockingConsumer):
    """
    A member of a consumer group whose user asks for messages, as :class:`rmq.consumer.PullConsumer` is.

    What is said there of tasks is true here of threads: one thread polls. Hooks that are plain functions run in a
    thread, so that they may use this object; coroutine functions run on the loop.

    Within a ``with`` block in the main thread SIGTERM and SIGINT stop it: the batch in hand is finished, the iteration
    ends, and :attr:`stopping` is true. A second signal raises ``KeyboardInterrupt``; later ones do what they did
    before. A signal for which the program has a handler of its own, or which it ignores, is left alone. Outside of such
    a block Ctrl-C ends the call that waits. No message is lost by any of it.

    One that is not stopped does not keep the program from ending: what is done may not be committed then, and is
    delivered again. Inside a running event loop it refuses to work, as it does after a fork: make another one there.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        group: str | None = None,
        strategy: str | Strategy | Allocate | None = None,
        topics: Mapping[str, str] | None = None,
        on_assigned: RebalanceHook | None = None,
        on_revoked: RebalanceHook | None = None,
        config: ConsumerConfig | None = None,
        handle_signals: bool = True,
        connect: Connect = Connection,
        now: Callable[[], float] = boottime,
        **settings: Any,
    ) -> None:
        """
        ``settings`` are fields of :class:`ConsumerConfig`, which they replace one by one. ``handle_signals=False``
        leaves SIGTERM and SIGINT to you.

        Raises:
            ConfigError: a setting that is unknown or cannot be.
        """
        self._consumer = AsyncPullConsumer(
            address,
            group=group,
            strategy=strategy,
            topics=topics,
            on_assigned=_in_thread(on_assigned, "on_assigned"),
            on_revoked=_in_thread(on_revoked, "on_revoked"),
            config=config,
            connect=connect,
            now=now,
            **settings,
        )
        self._tasks = ThreadTasks()
        close = partial(_close, self._consumer, self._tasks)
        super().__init__(self._consumer, close=close, handle_signals=handle_signals)
        self._signals = ExitStack()  # what the ``with`` block has installed
        self._handler: StopSignals | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._handler = self._signals.enter_context(self._stop_signals(_interrupt))
        return self

    @property
    def _is_signalled(self) -> bool:
        return self._handler is not None and self._handler.asked and self._consumer._error is None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._signals:
            super().__exit__(kind, error, trace)
        self._handler = None

    def assign(self, queues: Iterable[Queue]) -> None:
        """
        Consume exactly these queues, ``(topic, queue_id)`` each; may be called again, with all that is wanted then.

        Raises:
            ConfigError: something that is no queue, or a topic was subscribed.
        """
        self._change(self._consumer.assign, queues)

    # Messages

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PulledBatch:
        """The next batch; the iteration ends when the consumer was stopped, and raises what ended it otherwise."""
        self._refuse_if_not_started()
        try:
            batch = self._call(_next, self._consumer)
        except LoopEnded:
            batch = None
        if batch is None:
            raise StopIteration
        return batch

    def poll(self, timeout_s: float | None = DEFAULT_POLL_S) -> PulledBatch:
        """
        At most ``batch`` messages of one queue; empty if none came within ``timeout_s`` (None: wait for ever).

        What was returned before is done from here on. After a signal has stopped the consumer it is empty, since that
        may come at any moment, also right after :attr:`stopping` was asked for.

        Raises:
            ConfigError: the time is none, or nothing is subscribed or assigned.
            RuntimeError: the consumer does not run, or another thread polls.
        """
        try:
            return self._now_or_never(self._consumer.poll, timeout_s)
        except RuntimeError:
            if not self._is_signalled:
                raise
            return PulledBatch()

    def commit(self) -> None:
        """
        Count what was returned as done and have the progress of all queues committed; returns when it is durable.

        Raises:
            Fenced: queues went to another owner before; all others are committed. Told once.
            RequestTimeout: the broker did not answer within ``request_timeout_s``: try again, what is done stays so.
            RuntimeError: the consumer does not run.
        """
        self._refuse_if_not_started()
        try:
            self._call(self._consumer.commit)
        except LoopEnded:
            if not self._consumer._is_settled():
                raise RuntimeError(STOPPED) from None

    # Positions

    def position(self, queue: Queue) -> int | None:
        """
        The offset behind what was returned last of a queue; None until it is known where the group begins.

        Raises:
            NotAssigned: this consumer does not hold the queue.
        """
        return self._ask(partial(self._consumer.position, queue))

    def committed(self, queue: Queue) -> int | None:
        """
        The offset that the next owner of a queue begins at, as the broker has it; None if the group has no progress.

        Raises:
            RmqError: the broker could not be asked, or there is no such queue.
        """
        return self._now_or_never(self._consumer.committed, queue)

    def seek(self, queue: Queue, to: int | str) -> int:
        """
        Go on at an offset of a queue, at its ``"first"`` message, or behind its ``"last"``; returns the offset.

        What it does to progress is told at :meth:`rmq.consumer.PullConsumer.seek`.

        Raises:
            OffsetOutOfRange: the queue does not hold that offset.
            NotAssigned: this consumer does not hold the queue.
            RmqError: the broker could not be asked.
        """
        return self._now_or_never(self._consumer.seek, queue, to)

    def seek_to_time(self, target: Target | Queue, time: datetime) -> dict[MessageQueue, int]:
        """
        Go on at the first message of a queue, or of each queue held of a topic, that was stored at ``time`` or later.

        Where there is none, at the end. A time without a zone is local. Returns the offsets. As :meth:`seek` otherwise.
        """
        return self._now_or_never(self._consumer.seek_to_time, target, time)

    # Inside

    def _call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **named: P.kwargs) -> T:
        call = partial(function, *args, **named)
        return self._thread.call(self._tasks.run, threading.current_thread(), call)

    def _now_or_never(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **named: P.kwargs) -> T:
        self._refuse_if_not_started()
        try:
            return self._call(function, *args, **named)
        except LoopEnded:
            raise RuntimeError(STOPPED) from None


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


async def _next(consumer: AsyncPullConsumer) -> PulledBatch | None:
    return await anext(consumer, None)


async def _close(consumer: AsyncPullConsumer, tasks: ThreadTasks) -> None:
    await tasks.end()  # whoever had a batch in hand will not come back for another
    await consumer.stop()


def _in_thread(hook: RebalanceHook | None, name: str) -> RebalanceHook | None:
    """A hook that may block, and use the consumer; what is no function is left to be refused."""
    called = getattr(hook, "__call__", None)  # noqa: B004  an object whose call is a coroutine function
    if hook is None or not callable(hook) or any(map(inspect.iscoroutinefunction, (hook, called))):
        return hook

    @functools.wraps(hook)
    async def call(queues: list[MessageQueue]) -> None:
        within = contextvars.copy_context()
        try:
            running = asyncio.get_running_loop().run_in_executor(None, within.run, hook, queues)
        except RuntimeError:  # no thread begins any more
            log.warning("hook.left_out", hook=name, reason="the program ends, and did not stop the consumer")
            return
        waits = await running
        if waits is not None:
            await waits

    return call
