"""``BaseConsumer``: what all consumers have in common: their life, their pauses, and what they report."""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Self, TypeVar

from rmq.runtime.logging import get_logger
from rmq.runtime.stop_signals import StopSignals
from rmq.wire.errors import RmqError

from .config import ConsumerConfig
from .fetch.flow_control import Pauses, Target
from .group.assignment import Assignment
from .introspection import TopicStatistics
from .running import ConsumerRuntime

log = get_logger("rmq.consumer")

R = TypeVar("R", bound=ConsumerRuntime)


class BaseConsumer(ABC, Generic[R]):
    """A consumer of a group, which runs once: it cannot be started again."""

    def __init__(self, config: ConsumerConfig, *, now: Callable[[], float], handle_signals: bool) -> None:
        self.config = config
        self._handles_signals = handle_signals
        self._now = now
        self._pauses = Pauses()
        self._runtime: R | None = None
        self._stop: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()
        self._error: BaseException | None = None

    # What is consumed

    def pause(self, *targets: Target) -> None:
        """
        Give out no messages of topics or queues, of everything if none is named; may be called at any time.

        A running call ends, and what it did is reported. The locks are kept, so nobody else gets the queues. Queues
        that are taken later are paused with their topic.

        Raises:
            ConfigError: something that is neither a topic nor a queue.
        """
        self._set_paused(True, targets)

    def resume(self, *targets: Target) -> None:
        """
        Go on at once with what :meth:`pause` has stopped, with everything if nothing is named.

        Raises:
            ConfigError: something that is neither a topic nor a queue.
        """
        self._set_paused(False, targets)

    def _set_paused(self, paused: bool, targets: tuple[Target, ...]) -> None:
        self._pauses.set(paused, *targets)
        if self._runtime is not None:
            self._runtime.pauses_changed()

    # For people

    def statistics(self) -> dict[str, TopicStatistics]:
        """What was consumed and pulled, and how long that took, by ``topic@group``; empty before the start."""
        return {} if self._runtime is None else self._runtime.statistics.read(self._now())

    def running_info(self) -> dict[str, Any]:
        """
        What this consumer does now, as ``rmq-admin group members --verbose`` shows it; empty before the start.

        It is for people and their dashboards: names may come and go with versions.
        """
        return {} if self._runtime is None else self._runtime.info()

    def _assignments(self) -> list[Assignment]:
        """The queues that are held, by their names."""
        owned = {} if self._runtime is None else self._runtime.assignments
        return [assignment for _, assignment in sorted(owned.items())]

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop, by :meth:`stop`, a signal or an error; a loop of polls ends by this."""
        return self._stop is not None or self._stopped.is_set()

    # Life

    async def __aenter__(self) -> Self:
        self.start()
        return self

    @abstractmethod
    def start(self) -> None:
        """Begin, in the background."""

    @abstractmethod
    async def _finish(self, runtime: R) -> None:
        """Stop what runs; ``_stopped`` is set at its end."""

    def _refuse_if_stopped(self) -> None:
        if self.stopping:
            raise RuntimeError("this consumer was stopped: make another one") from self._error

    async def _end(self) -> None:
        """Stop, and wait for that; called by what would have to end first, it does not wait."""
        self._stop_soon()
        if self._runtime is not None and asyncio.current_task() not in self._runtime.owners():
            assert self._stop is not None
            await asyncio.shield(self._stop)

    def _stop_soon(self) -> None:
        """Stop, and do not wait for that."""
        if self._runtime is None:
            self._stopped.set()
        else:
            self._begin_stop(self._runtime)

    # Signals

    def _stop_signals(self, insist: Callable[[], object]) -> AbstractContextManager[StopSignals | None]:
        """Within the block a signal stops the consumer, and a second one has ``insist`` called on the loop."""
        if not self._handles_signals:
            return nullcontext()
        call_soon = asyncio.get_running_loop().call_soon_threadsafe
        return StopSignals(lambda number: call_soon(self._signalled, number), lambda: call_soon(insist))

    def _signalled(self, number: signal.Signals) -> None:
        log.info("consumer.signalled", group=self.config.group, signal=number.name, drain_s=self.config.drain_s)
        self._stop_soon()

    def _hurry(self) -> None:
        """Cancel running calls instead of waiting for them."""
        if self._runtime is not None:
            self._runtime.hurry()

    def _failed(self, error: BaseException) -> None:
        """A part of the consumer ended by an error: nothing can go on without it."""
        if self._error is None:
            self._error = error
            # A refusal explains itself; anything else is a defect, whose place matters.
            where = None if isinstance(error, RmqError) else error
            log.error("consumer.failed", group=self.config.group, error=str(error), exc_info=where)
        if self._runtime is not None:
            self._begin_stop(self._runtime)

    def _begin_stop(self, runtime: R) -> None:
        if self._stop is None:
            self._halt(runtime)
            self._stop = runtime.tasks.start(self._finish(runtime), "stop of the consumer")

    def _halt(self, runtime: R) -> None:
        """From here on nothing new begins."""
        runtime.halt()
