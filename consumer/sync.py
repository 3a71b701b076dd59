"""
Consumers for code without asyncio: the same names, arguments, promises and errors, and calls that block.

::

    from rmq.consumer import ConsumeStatus
    from rmq.consumer.sync import Consumer, PullConsumer

    def on_order(messages, context):
        for message in messages:
            print(message.body)
        return ConsumeStatus.SUCCESS

    with Consumer("127.0.0.1:10911", group="billing", listener=on_order) as consumer:
        consumer.subscribe("orders", "created || paid")
        consumer.run()

    with PullConsumer("127.0.0.1:10911", group="billing", topics={"orders": "*"}) as consumer:
        for batch in consumer:
            for message in batch:
                print(message.body)

A consumer runs on an event loop in a thread of its own. All calls may be made by any thread, by the listener and by
signal handlers. A method that only waits for that loop is made of the one it is named after, and has its docstring.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar

from rmq.engine.native.connection import Connection
from rmq.runtime.clock import boottime
from rmq.runtime.logging import get_logger
from rmq.runtime.loop_thread import LoopEnded, LoopThread, ThreadTasks
from rmq.runtime.stop_signals import StopSignals
from rmq.wire.model import MessageQueue

from .config import ConsumerConfig
from .consumer import Consumer as AsyncConsumer
from .group.allocation import Allocate, Strategy
from .listener import Listener
from .member import BaseConsumer, Connect
from .poll.polls import RebalanceHook
from .poll.pull_consumer import DEFAULT_POLL_S
from .poll.pull_consumer import PullConsumer as AsyncPullConsumer
from .poll.queue import PulledBatch

__all__ = ["Consumer", "PullConsumer"]


P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=AsyncConsumer | AsyncPullConsumer)
STOPPED = "this consumer was stopped: make another one"
log = get_logger("rmq.consumer")


def _changes(method: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """Make a method that runs another one on the loop; once the consumer has stopped it does nothing."""

    @functools.wraps(method)
    def change(self: BlockingConsumer[Any], /, *args: P.args, **named: P.kwargs) -> None:
        try:
            self._thread.run(method, self._consumer, *args, **named)
        except LoopEnded:
            pass

    return change


def _asks(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a method that reads on the loop; once the consumer has stopped nothing changes any more."""

    @functools.wraps(method)
    def ask(self: BlockingConsumer[Any], /, *args: P.args, **named: P.kwargs) -> T:
        return self._ask(partial(method, self._consumer, *args, **named))

    return ask


def _awaits(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Make a method that waits for a coroutine function of a pull consumer that runs."""

    @functools.wraps(method)
    def wait(self: PullConsumer, /, *args: P.args, **named: P.kwargs) -> T:
        return self._now_or_never(method, self._consumer, *args, **named)

    return wait


class BlockingConsumer(Generic[C]):
    """A consumer, and the thread in which it runs."""

    def __init__(self, consumer: C, *, close: Callable[[], Coroutine[Any, Any, None]], handle_signals: bool) -> None:
        """``close`` stops the consumer; it must not refer to this object."""
        self._consumer = consumer
        self._handles_signals = handle_signals
        self._is_entered = False
        self._thread = LoopThread("consumer", instead=f"rmq.consumer.{type(consumer).__name__}", close=close)
        self._thread.end_with(self)

    @property
    def config(self) -> ConsumerConfig:
        """Its settings."""
        return self._consumer.config

    pause = _changes(BaseConsumer.pause)
    resume = _changes(BaseConsumer.resume)
    statistics = _asks(BaseConsumer.statistics)
    running_info = _asks(BaseConsumer.running_info)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this consumer owns, sorted."""
        return self._ask(lambda: self._consumer.assignment)

    @property
    def stopped_queues(self) -> dict[MessageQueue, str]:
        """The queues that wait for an operator, each with the reason and the offsets."""
        return self._ask(lambda: self._consumer.stopped_queues)

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop, by :meth:`stop`, a signal or an error; a loop of polls ends by this."""
        return self._ask(lambda: self._consumer.stopping)

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
            self._call(self._consumer.__aexit__, kind, error, trace)
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

    def stop(self) -> None:
        """
        Stop, as the other consumer does, and end the thread.

        Called by what the consumer itself calls it returns at once, since that cannot wait for its own end.
        """
        if self._thread.is_inside():
            self._thread.post(self._consumer.stop)
            return
        try:
            self._thread.start()  # one that was never started stops as well
        except LoopEnded:
            return  # it has stopped
        try:
            self._call(self._consumer.stop)
        except LoopEnded:
            pass  # it has stopped meanwhile
        finally:
            self._end()

    def _stop_signals(self, insist: Callable[[], object]) -> AbstractContextManager[StopSignals | None]:
        """Within the block a signal stops the consumer, and a second one has ``insist`` called in the main thread."""
        if not self._handles_signals:
            return nullcontext()
        return StopSignals(lambda number: self._thread.post(self._consumer._signalled, number), insist)

    def _call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **named: P.kwargs) -> T:
        """Run something on the loop that depends on who calls."""
        return self._thread.call(function, *args, **named)

    def _refuse_if_not_started(self) -> None:
        if self._thread.is_new:
            raise RuntimeError("this consumer does not run: start() it, or use it in a `with` block")

    def _start_thread(self) -> None:
        try:
            self._thread.start()
        except LoopEnded:
            raise RuntimeError(STOPPED) from None

    def _end(self) -> None:
        """End the thread of one that has stopped; within a ``with`` block its end has to ask what happened."""
        if not self._is_entered and self._consumer._stopped.is_set():
            self._thread.end()


class Consumer(BlockingConsumer[AsyncConsumer]):
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
            ConfigError: an unknown setting, or an invalid value.
        """
        consumer = AsyncConsumer(
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
        super().__init__(consumer, close=consumer.stop, handle_signals=handle_signals)

    subscribe = _changes(AsyncConsumer.subscribe)
    unsubscribe = _changes(AsyncConsumer.unsubscribe)
    add_hook = _changes(AsyncConsumer.add_hook)

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
            ConfigError: nothing is subscribed.
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
        self._thread.post(self._consumer._cancel_calls)
        self._thread.hurry()

    async def _run(self, signals: StopSignals | None) -> None:
        asked = signals is not None and signals.asked  # before this began
        if asked or (self._is_entered and self._consumer._stop is not None):
            await self._consumer._stopped.wait()
        else:
            await self._consumer.run()


class PullConsumer(BlockingConsumer[AsyncPullConsumer]):
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
            ConfigError: an unknown setting, or an invalid value.
        """
        consumer = AsyncPullConsumer(
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
        close = partial(_close, consumer, self._tasks)
        super().__init__(consumer, close=close, handle_signals=handle_signals)
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
            Fenced: queues went to another owner before; all others are committed. Raised once.
            RequestTimeout: the broker did not answer within ``request_timeout_s``: try again, what is done stays so.
            RuntimeError: the consumer does not run.
        """
        self._refuse_if_not_started()
        try:
            self._call(self._consumer.commit)
        except LoopEnded:
            if not self._consumer._is_settled():
                raise RuntimeError(STOPPED) from None

    subscribe = _changes(AsyncPullConsumer.subscribe)
    unsubscribe = _changes(AsyncPullConsumer.unsubscribe)
    assign = _changes(AsyncPullConsumer.assign)
    position = _asks(AsyncPullConsumer.position)
    committed = _awaits(AsyncPullConsumer.committed)
    seek = _awaits(AsyncPullConsumer.seek)
    seek_to_time = _awaits(AsyncPullConsumer.seek_to_time)

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
    await tasks.end()  # a thread that had a batch in hand will not come back for another
    await consumer.stop()


def _in_thread(hook: RebalanceHook | None, name: str) -> RebalanceHook | None:
    """Make a hook that may block, and use the consumer; what cannot be called is left to be refused."""
    called = getattr(hook, "__call__", None)  # noqa: B004  an object whose call is a coroutine function
    if hook is None or not callable(hook) or any(map(inspect.iscoroutinefunction, (hook, called))):
        return hook

    @functools.wraps(hook)
    async def call(queues: list[MessageQueue]) -> None:
        within = contextvars.copy_context()
        try:
            running = asyncio.get_running_loop().run_in_executor(None, within.run, hook, queues)
        except RuntimeError:  # no thread begins any more
            log.warning("hook.skipped", hook=name, reason="the program ends, and did not stop the consumer")
            return
        waits = await running
        if waits is not None:
            await waits

    return call
