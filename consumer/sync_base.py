"""What the consumers for code without asyncio share: calls on the loop of their thread, and the life of that thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from rmq.runtime.loop_thread import LoopEnded, LoopThread
from rmq.runtime.stop_signals import StopSignals
from rmq.wire.model import MessageQueue

from .config import ConsumerConfig
from .consumer import Consumer as AsyncConsumer
from .fetch.pauses import Target
from .poll.pull_consumer import PullConsumer as AsyncPullConsumer
from .statistics import TopicStatistics

P = ParamSpec("P")
T = TypeVar("T")

STOPPED = "this consumer was stopped: make another one"


class BlockingConsumer:
    """A consumer, and the thread in which it runs."""

    def __init__(
        self,
        consumer: AsyncConsumer | AsyncPullConsumer,
        *,
        close: Callable[[], Coroutine[Any, Any, None]],
        handle_signals: bool,
    ) -> None:
        """``close`` stops the consumer; it must not refer to this object."""
        self._member = consumer
        self._handles_signals = handle_signals
        self._is_entered = False
        self._thread = LoopThread("consumer", instead=f"rmq.consumer.{type(consumer).__name__}", close=close)
        self._thread.end_with(self)

    @property
    def config(self) -> ConsumerConfig:
        """Its settings."""
        return self._member.config

    # What is consumed

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """
        Consume a topic, or the messages of it whose tag is in ``expression``; may be called at any time.

        All members of a group subscribe alike.

        Raises:
            ConfigError: the name or the expression is not legal.
        """
        self._change(self._member.subscribe, topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """
        Stop consuming a topic: its queues are handed over as in a rebalance.

        Raises:
            ConfigError: the topic is no text.
        """
        self._change(self._member.unsubscribe, topic)

    def pause(self, *targets: Target) -> None:
        """
        Stop giving messages of topics or queues to the listener, of everything if none is named; at any time.

        Raises:
            ConfigError: something that is neither a topic nor a queue.
        """
        self._change(self._member.pause, *targets)

    def resume(self, *targets: Target) -> None:
        """
        Go on at once with what :meth:`pause` has stopped, with everything if nothing is named.

        Raises:
            ConfigError: something that is neither a topic nor a queue.
        """
        self._change(self._member.resume, *targets)

    # What it does

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this consumer holds the locks of, sorted."""
        return self._ask(lambda: self._member.assignment)

    @property
    def stopped_queues(self) -> dict[MessageQueue, str]:
        """The queues that wait for somebody, each with the reason and the offsets."""
        return self._ask(lambda: self._member.stopped_queues)

    def statistics(self) -> dict[str, TopicStatistics]:
        """What was consumed and pulled, and how long that took, by ``topic@group``; empty before the start."""
        return self._ask(self._member.statistics)

    def running_info(self) -> dict[str, Any]:
        """
        What this consumer does now, as ``rmq-admin group members --verbose`` shows it; empty before the start.

        It is for people and their dashboards: names may come and go with versions.
        """
        return self._ask(self._member.running_info)

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop, by :meth:`stop`, a signal or an error; a loop of polls ends by this."""
        return self._ask(lambda: self._member.stopping)

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
            self._call(self._member.__aexit__, kind, error, trace)
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
        self._thread.run(self._member.start)

    def stop(self) -> None:
        """
        Stop, as the other consumer does, and end the thread.

        Called by what the consumer itself calls it returns at once, since that cannot wait for its own end.
        """
        if self._thread.is_inside():
            self._thread.post(self._member.stop)
            return
        try:
            self._thread.start()  # what was never started is told, too
        except LoopEnded:
            return  # it has stopped
        try:
            self._call(self._member.stop)
        except LoopEnded:
            pass  # it has stopped meanwhile
        finally:
            self._end()

    def _stop_signals(self, insist: Callable[[], object]) -> AbstractContextManager[StopSignals | None]:
        """Within the block a signal stops the consumer, and a second one has ``insist`` called in the main thread."""
        if not self._handles_signals:
            return nullcontext()
        return StopSignals(lambda number: self._thread.post(self._member._signalled, number), insist)

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
        if not self._is_entered and self._member._stopped.is_set():
            self._thread.end()
