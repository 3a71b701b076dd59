"""``PullConsumer``, for users who ask for messages instead of being called with them, and the parts that it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from rmq.engine.native.connection import Connection
from rmq.runtime.clock import boottime
from rmq.runtime.logging import get_logger
from rmq.wire.errors import ConfigError
from rmq.wire.model import MessageQueue

from ..config import ConsumerConfig
from ..fetch.flow_control import Target
from ..group.allocation import Allocate, Strategy
from ..group.assignment import Assignment
from ..member import BaseConsumer, Connect, ConsumerRuntime
from .commits import PullCommits
from .polls import PullService, RebalanceHook
from .queue import NotAssigned, PullCache, PulledBatch, cache_of
from .seeks import Seeks
from .targets import PullTargets, Queue, as_queue, check_hooks, check_timeout
from .watchdog import PollWatchdog

log = get_logger("rmq.consumer")

DEFAULT_BATCH = 10
DEFAULT_POLL_S = 5.0


class PullRuntime(ConsumerRuntime):
    """The parts of a started pull consumer: those of any consumer, with polls in the place of a listener."""

    def __init__(
        self,
        *arguments: Any,
        on_assigned: RebalanceHook | None,
        on_revoked: RebalanceHook | None,
        on_started: Callable[[], None],
        **named: Any,
    ) -> None:
        """``on_started`` is called for each queue that came; the others are those of ``ConsumerRuntime``."""

        def make_polls(runtime: ConsumerRuntime) -> PullService:
            broker, keeper = runtime.broker, runtime.keeper
            return PullService(
                runtime.config,
                broker,
                tasks=runtime.tasks,
                leases=keeper,
                commits=PullCommits(
                    runtime.assignments,
                    runtime.config,
                    broker,
                    believed=keeper.believed,
                    progressed=runtime.reporter.turned,
                ),
                watchdog=PollWatchdog(
                    runtime.config.consume_timeout_s,
                    now=broker.now,
                    rest=self._rest,
                ),
                statistics=runtime.statistics,
                stalled=runtime.stalls.stalled,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
            )

        super().__init__(*arguments, make_service=make_polls, make_cache=PullCache, **named)
        assert isinstance(self.service, PullService)
        self.polls = self.service
        self.seeks = Seeks(self.config, self.broker, tasks=self.tasks, service=self.polls, pull=self.puller.start)
        self._on_started = on_started
        self._has_last_word = on_revoked is not None

    @property
    def polled_ago_s(self) -> float:
        """How long the user has not polled."""
        return self.polls.watchdog.away_s

    def start(self) -> None:
        """Start every loop."""
        super().start()
        if self.config.auto_commit_every_s:
            self.tasks.start(self.polls.commits.run(), "auto-commit")
        self.tasks.start(self.polls.watchdog.watch(), "poll watchdog")

    def start_assignment(self, assignment: Assignment) -> None:
        """Pull a queue, unless the user has paused it."""
        super().start_assignment(assignment)
        self._on_started()

    def _rest(self, resting: bool) -> None:
        self.rebalancer.rest(resting)

    def halt(self) -> None:
        """Have no pass and no batch start, and end the poll under way."""
        super().halt()
        self.polls.close()

    def _waits_for_user(self) -> bool:
        return super()._waits_for_user() or (self._has_last_word and bool(self.assignments))

    async def _leave(self) -> list[Assignment]:
        taken = await super()._leave()
        self.polls.commits.left(taken)
        return taken


class PullConsumer(BaseConsumer[PullRuntime]):
    """
    A member of a consumer group whose user asks for messages, batch by batch, each of one queue.

    ::

        async with PullConsumer("127.0.0.1:10911", group="billing") as consumer:
            consumer.subscribe("orders", "created || paid")
            async for batch in consumer:
                for message in batch:
                    ...

    What a poll returned counts as done when the next one begins, at :meth:`commit`, or when the ``async with`` block
    ends without an exception. What is done is committed every ``auto_commit_every_s`` seconds (5), when a queue is
    handed over, and at the end; with 0 only by :meth:`commit`. What was returned and is not done when the consumer
    ends, or not committed, is delivered again.

    Queues are shared out, locked and handed over as those of a :class:`~rmq.consumer.Consumer`; one of them that is
    given to another member waits for a batch in hand for at most ``drain_s``. All of them go to others when no task
    polls or commits for ``consume_timeout_s`` (15 min), and come back with the next poll. One task polls.

    Within an ``async with`` block in the main thread SIGTERM and SIGINT stop it: the batch in hand is finished, the
    iteration ends, and :attr:`stopping` is true. A second signal cancels the task that entered the block; later ones do
    what they did before. A signal for which the program has a handler of its own, or which it ignores, is left alone.
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
        ``settings`` are fields of :class:`ConsumerConfig`, which they replace one by one; without a ``config``,
        ``batch`` (the most messages of a poll) is 10.

        ``on_assigned(queues)`` is called before the first message of a queue is returned, and may :meth:`seek` in it;
        ``on_revoked(queues)`` when no more of it will be, before the queue is given away: what is done can still be
        committed there, unless the lock is lost. Both may be coroutine functions; what they raise is logged.
        ``handle_signals=False`` leaves SIGTERM and SIGINT to you.

        Raises:
            ConfigError: an unknown setting, or an invalid value.
        """
        if config is None:
            settings.setdefault("batch", DEFAULT_BATCH)
        super().__init__(
            "PullConsumer(address, group=...)",
            config,
            settings,
            address=address,
            group=group,
            strategy=strategy,
            connect=connect,
            now=now,
            handle_signals=handle_signals,
        )
        if not self.config.orderly or self.config.model != "clustering":
            raise ConfigError("a pull consumer is an ordered member of a clustering group: leave orderly and model out")
        check_hooks(on_assigned=on_assigned, on_revoked=on_revoked)
        self._hooks = (on_assigned, on_revoked)
        self._targets = PullTargets(self.config.namespace)
        self._started = False
        self._polling = False
        self._poller: asyncio.Task[Any] | None = None  # who polled last
        self._iterating: asyncio.Task[Any] | None = None  # who has the batch in hand, if it came by an iteration
        self._came = asyncio.Event()  # a queue came, or none will
        self._signals = ExitStack()  # what the ``async with`` block has installed
        for topic, expression in self._targets.checked(topics).items():
            self.subscribe(topic, expression)

    # What is consumed

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """
        Consume a topic, or the messages of it whose tag is in ``expression``; may be called at any time.

        Its queues are shared out to the members of the group, which all subscribe alike.

        Raises:
            ConfigError: the name or the expression is not legal, or queues were assigned.
        """
        self._targets.subscribe(topic, expression)
        self._targets_changed()

    def unsubscribe(self, topic: str) -> None:
        """
        Stop consuming a topic: its queues are handed over as in a rebalance.

        Raises:
            ConfigError: the topic is not text.
        """
        self._targets.unsubscribe(topic)
        self._targets_changed()

    def assign(self, queues: Iterable[Queue]) -> None:
        """
        Consume exactly these queues, ``(topic, queue_id)`` each; may be called again, with all that is wanted then.

        Nothing is shared out: all members of such a group are assigned their queues. One that another member owns, or
        that does not exist yet, is waited for.

        Raises:
            ConfigError: one of them is not a queue, or a topic was subscribed.
        """
        self._targets.assign(queues)
        self._targets_changed()

    def _targets_changed(self) -> None:
        if self._runtime is not None:
            self._runtime.rebalancer.subscribed()
        elif self._started and not self._stopped.is_set():
            self._run()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this consumer owns, sorted."""
        return sorted(assignment.shown for assignment in self._assignments() if not assignment.dropped)

    # Messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PulledBatch:
        """The next batch; the iteration ends when the consumer was stopped, and raises what ended it otherwise."""
        while not self.stopping:
            if batch := await self.poll(None):
                self._iterating = asyncio.current_task()
                return batch
        self._finish_batch()
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    async def poll(self, timeout_s: float | None = DEFAULT_POLL_S) -> PulledBatch:
        """
        At most ``batch`` messages of one queue; empty if none came within ``timeout_s`` (None: wait for ever).

        What was returned before is done from here on. Cancelling is safe: no message is lost by it.

        Raises:
            ConfigError: the time is none, or nothing is subscribed or assigned.
            RuntimeError: the consumer does not run, or another task polls.
        """
        check_timeout(timeout_s)
        if self._started and not self._targets:
            raise ConfigError("there is nothing to consume: call subscribe() or assign() before poll()")
        self._refuse_second_task()
        if self._stop is not None:
            self._finish_batch()
        runtime = self._in_operation()
        self._polling, self._poller, self._iterating = True, asyncio.current_task(), None
        try:
            batch = await runtime.polls.poll(timeout_s)
        finally:
            self._polling = False
        if not batch and self._error is not None:
            raise self._error
        return batch

    def _refuse_second_task(self) -> None:
        """A poll makes done what was returned before: it must not be another task that works on that."""
        other = None if self._runtime is None or not self._runtime.polls.has_batch else self._iterating
        works = other is not None and other is not asyncio.current_task() and not other.done()
        if self._polling or works:
            raise RuntimeError("another task polls this consumer: poll with one task, or make a consumer for each")

    def _finish_batch(self) -> None:
        if self._runtime is not None:
            self._runtime.polls.finished()

    async def commit(self) -> None:
        """
        Count what was returned as done and have the progress of all queues committed; returns when it is durable.

        So it is for the task that works on the batch. In ``on_assigned`` and ``on_revoked`` only what is done already
        is committed: a batch of another queue may be in hand. Cancelling is safe: the next commit sends it. After a
        stop, which may be a signal's at any moment, everything that was done is committed, and there is nothing to do.

        Raises:
            Fenced: queues went to another owner before; all others are committed. Raised once.
            RequestTimeout: the broker did not answer within ``request_timeout_s``: try again, what is done stays so.
            RuntimeError: the consumer does not run.
        """
        if self._is_settled():
            return
        runtime = self._in_operation(also_stopping=True)
        if asyncio.current_task() not in runtime.service.owners():  # a hook does not know what the polling task is at
            runtime.polls.finished()
        await runtime.polls.commits.commit()

    def _is_settled(self) -> bool:
        """
        Return whether it was stopped without an error, so that nothing is left to be committed.

        Raises:
            Fenced: it was, and some of what was returned is delivered again.
        """
        if self._runtime is None or self._error is not None or not self._stopped.is_set():
            return False
        self._runtime.polls.commits.report_losses()
        return True

    # Positions

    def position(self, queue: Queue) -> int | None:
        """
        The offset after what was returned last of a queue; None until it is known where the group begins.

        Raises:
            NotAssigned: this consumer does not own the queue.
        """
        position = cache_of(self._owned(queue)).position
        return None if position < 0 else position

    async def committed(self, queue: Queue) -> int | None:
        """
        The offset that the next owner of a queue begins at, as the broker has it; None if the group has no progress.

        Raises:
            RmqError: the broker could not be asked, or the queue does not exist.
        """
        runtime = self._in_operation()
        return await runtime.seeks.committed(self._targets.on_the_wire(as_queue(queue)))

    async def seek(self, queue: Queue, to: int | str) -> int:
        """
        Go on at an offset of a queue, at its ``"first"`` message, or after its ``"last"``; returns the offset.

        What was cached or returned of it counts for nothing. Progress never goes back: below what is committed,
        messages are returned again, and the progress stays until they are passed (``rmq-admin group reset-offset`` is
        the way to put a whole group back). A seek forwards passes what lies between, with the next commit. A queue that
        was assigned is waited for. Cancelling is safe.

        Raises:
            OffsetOutOfRange: the queue does not hold that offset.
            NotAssigned: this consumer does not own the queue.
            RmqError: the broker could not be asked.
        """
        assignment = await self._awaited(queue)
        return await self._in_operation().seeks.seek(assignment, to)

    async def seek_to_time(self, target: Target | Queue, time: datetime) -> dict[MessageQueue, int]:
        """
        Go on at the first message of a queue, or of each owned queue of a topic, that was stored at ``time`` or later.

        Where there is none, at the end. A time without a zone is local. Returns the offsets. As :meth:`seek` otherwise.
        """
        if not isinstance(time, datetime):
            raise ConfigError(f"a time must be a datetime, not {time!r}")
        if isinstance(target, str):
            topic = self._targets.topic_on_the_wire(target)
            assignments = [each for each in self._assignments() if each.queue.topic == topic and not each.dropped]
            if not assignments:
                raise NotAssigned(f"this consumer owns no queue of {target}")
        else:
            assignments = [await self._awaited(target)]
        seeks = self._in_operation().seeks
        return {assignment.shown: await seeks.seek_to_time(assignment, time) for assignment in assignments}

    def _owned(self, queue: Queue) -> Assignment:
        wanted = as_queue(queue)
        for assignment in self._assignments():
            if assignment.shown == wanted and not assignment.dropped:
                return assignment
        raise NotAssigned(f"this consumer does not own {wanted}")

    async def _awaited(self, queue: Queue) -> Assignment:
        """A queue that is owned, or was assigned and comes."""
        while True:
            self._in_operation()
            self._came.clear()
            try:
                return self._owned(queue)
            except NotAssigned:
                if as_queue(queue) not in self._targets.assigned:
                    raise
            await self._came.wait()

    # For people

    @property
    def stopped_queues(self) -> dict[MessageQueue, str]:
        """The queues that wait at a gap in the log (see ``on_gap``), each with the reason; a seek passes it."""
        waiting = [each for each in self._assignments() if each.stopped is not None and not each.dropped]
        return {
            each.shown: str(each.stopped.gap)
            for each in sorted(waiting, key=lambda each: each.queue)
            if each.stopped is not None
        }

    # Life

    async def __aenter__(self) -> Self:
        self.start()
        task = asyncio.current_task()
        assert task is not None
        self._signals.enter_context(self._stop_signals(task.cancel))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._signals:
            if kind is None and self._is_batch_free():
                self._finish_batch()
            await self.stop()
        if self._error is not None and error is None:
            raise self._error

    def start(self) -> None:
        """
        Begin, in the background: connect, and consume from the first subscription or assignment on.

        Raises:
            RuntimeError: it was stopped, or no event loop is running.
        """
        self._refuse_if_stopped()
        asyncio.get_running_loop()
        self._started = True
        if self._runtime is None and self._targets:
            self._run()

    def _run(self) -> None:
        on_assigned, on_revoked = self._hooks
        self._runtime = PullRuntime(
            self.config,
            self._targets.subscriptions,
            connect=self._connect,
            now=self._now,
            on_failure=self._failed,
            pauses=self._pauses,
            strategy=self._targets.strategy or self._strategy,
            model=self._targets.model,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_started=self._came.set,
        )
        self._runtime.start()

    async def stop(self) -> None:
        """
        Stop: what is done is committed, the queues are given back, the group is left.

        A batch that another task has in hand is waited for, until that task polls or commits, at most ``drain_s``. One
        that the calling task has in hand is *not* done: say :meth:`commit` before, or leave the ``async with`` block.
        Cancelling it leaves the stop going on in the background; a further call waits for it.
        """
        if self._runtime is not None and self._is_batch_free():
            self._runtime.polls.abandon()
        await self._stop_and_wait()

    def _is_batch_free(self) -> bool:
        """Whether the task that has the batch in hand is this one, or has ended."""
        return self._poller is None or self._poller.done() or self._poller is asyncio.current_task()

    async def _finish(self, runtime: PullRuntime) -> None:
        try:
            await super()._finish(runtime)
        finally:
            self._came.set()

    def _in_operation(self, *, also_stopping: bool = False) -> PullRuntime:
        if self._stopped.is_set() or (self._stop is not None and not also_stopping):
            if self._error is not None:
                raise self._error
            raise RuntimeError("this consumer was stopped: make another one")
        if self._runtime is None:
            raise RuntimeError("this consumer does not run: start() it and subscribe() or assign() first")
        return self._runtime
