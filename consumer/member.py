"""
What all consumers have in common, whether they call a listener or are polled.

``BaseConsumer`` is what the user has: its life, its pauses, and what it reports. ``ConsumerRuntime`` puts the parts of
a started consumer together, hands them what the broker says, and stops them in an order that loses nothing.
"""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Protocol, Self, TypeVar

import msgpack

from rmq.engine.native.connection import Connection
from rmq.engine.native.group import BROADCASTING, GroupClient
from rmq.runtime.clock import boottime
from rmq.runtime.logging import get_logger
from rmq.runtime.package import version
from rmq.runtime.stop_signals import StopSignals
from rmq.runtime.tasks import TaskSet
from rmq.wire.errors import OK, BadRequest, ConfigError, ConnectionLost, RmqError, code_name
from rmq.wire.model import MessageQueue
from rmq.wire.names import wrap
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.hello import HelloReply
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op, Push
from rmq.wire.protocol.ops.groups import RunningInfo

from .broadcast.member import Broadcaster
from .broadcast.progress import LocalOffsets, open_offsets
from .config import ConsumerConfig, configure
from .dispatch.stall_watch import StallWatch
from .fetch.flow_control import Pauses, Target
from .fetch.process_queue import MakeCache
from .fetch.puller import Puller
from .group.allocation import EVERYTHING, Allocate, Strategy, named
from .group.assignment import Assignment
from .group.leases import LeaseKeeper, NoLeases
from .group.progress import OffsetReporter, agree, lease_end
from .group.rebalancer import Rebalancer
from .group.tag_filter import Subscription
from .introspection import Program, Statistics, TopicStatistics, running_info

log = get_logger("rmq.consumer")


class Connect(Protocol):
    """Makes the connection; :class:`~rmq.engine.native.connection.Connection` unless a test has its own."""

    def __call__(
        self,
        address: str,
        *,
        on_push: Callable[[int, list[Any]], None],
        on_connected: Callable[[HelloReply], None],
        on_lost: Callable[[Exception], None],
        keep_alive: bool,
        now: Callable[[], float],
        zone: str = "",
    ) -> Connection: ...


class ConsumeService(Protocol):
    """
    Gives the messages of the queues to the listener.

    :class:`~rmq.consumer.dispatch.orderly.OrderlyScheduler` does so one after the other,
    :class:`~rmq.consumer.dispatch.concurrent.ConcurrentService` many at a time.
    """

    @property
    def turns(self) -> int:
        """How many calls, or stays with a queue, are running: while there are any, progress is made."""
        ...

    def start(self, assignment: Assignment) -> None:
        """Begin to give a queue's messages to the listener; the puller fills its cache from now on."""
        ...

    async def finish(self, assignment: Assignment, *, within_s: float | None = None) -> None:
        """
        Return when nothing of a dropped assignment runs any more; running calls end first and are recorded.

        After ``within_s`` seconds (None: never) they are cancelled.
        """
        ...

    def owners(self) -> Sequence[asyncio.Task[None] | None]:
        """The tasks that call the listener."""
        ...


class ConsumerRuntime:
    """The parts of a started consumer. ``make_service`` makes the one that gives the messages to the user."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscriptions: dict[str, Subscription],
        *,
        make_service: Callable[[ConsumerRuntime], ConsumeService],
        make_cache: MakeCache,
        connect: Connect,
        now: Callable[[], float],
        on_failure: Callable[[BaseException], None],
        pauses: Pauses,
        strategy: Strategy | None = None,
        model: str | None = None,
    ) -> None:
        self.config = config
        self.statistics = Statistics(config.group)
        self._pauses = pauses
        self.assignments: dict[MessageQueue, Assignment] = {}
        self._doubted: list[Assignment] = []  # whose leases the broker has called free
        self.tasks = TaskSet(on_failure)
        self._link = connect(
            config.broker,
            on_push=self._on_push,
            on_connected=self._on_connected,
            on_lost=self._on_connection_lost,
            keep_alive=True,
            now=now,
            zone=config.zone,
        )
        self._hello: HelloReply | None = None  # the broker's newest
        self._began_at = now()
        self._rebalancing: asyncio.Task[None] | None = None
        group = wrap(config.namespace, config.group)
        self.broker: GroupClient
        self.keeper: LeaseKeeper | NoLeases
        self.reporter: OffsetReporter | LocalOffsets
        self._local: LocalOffsets | None = None  # the progress of a member that shares it with no other
        if config.model == BROADCASTING:
            self._local = self.reporter = open_offsets(config, group, self.assignments, now=now, busy=self._is_busy)
            self.broker = broadcaster = Broadcaster(
                self._link, group, config, self._local, topics=lambda: self.rebalancer.topics, now=now
            )
            self.keeper = NoLeases(broadcaster.begun)
            strategy = EVERYTHING
        else:
            self.broker = GroupClient(
                self._link, group, now=now, timeout_s=config.request_timeout_s, lock_timeout_s=config.lock_timeout_s,
                ordered=config.orderly, model=model or config.model,
            )  # fmt: skip
            self.keeper = LeaseKeeper(self.assignments, config, self.broker)
            self.reporter = OffsetReporter(
                self.assignments, config, self.broker, believed=self.keeper.believed, busy=self._is_busy
            )
        self.stalls = StallWatch(
            config.stall_limit_s, now=now, group=group, calls=self._calls, by_thread=now is boottime
        )
        self.service = make_service(self)
        self.rebalancer = Rebalancer(
            self.assignments,
            subscriptions,
            config,
            self.broker,
            workers=self,
            tasks=self.tasks,
            strategy=strategy,
            make_cache=make_cache,
        )
        self.puller = Puller(
            self.assignments,
            config,
            self.broker,
            tasks=self.tasks,
            # whether a pull may take progress along
            believed=self.keeper.believed if self._local is None else lambda _: False,
            progressed=self.reporter.turned,
            topics=self.rebalancer,
            statistics=self.statistics,
        )

    @property
    def polled_ago_s(self) -> float | None:
        """How long the user has not polled; None for a consumer that calls a listener."""
        return None

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message."""
        return self._local is not None

    def _is_busy(self) -> bool:
        """Whether turns are running, so that there will be progress."""
        return self.service.turns > 0

    def start(self) -> None:
        """Start every loop; the connection is made in the background."""
        self._link.start()
        self._rebalancing = self.tasks.start(self.rebalancer.run(), "rebalancer")
        if isinstance(self.keeper, LeaseKeeper):
            self.tasks.start(self.keeper.run(), "lease keeper")
            self.tasks.start(self.keeper.watch(), "lease watch")
        self.tasks.start(self.reporter.run(), "offset reporter")
        self.tasks.start(self.stalls.run(), "stall watch")
        self.tasks.start(self._link.wait_connected(), "first connection")  # fails if the broker does not want us

    def _calls(self) -> list[str]:
        """The queues whose listener is being called; also for a thread, while the loop stands still."""
        return [str(each.shown) for each in list(self.assignments.values()) if each.called_at is not None]

    def pauses_changed(self) -> None:
        """What the user has paused is other than before."""
        for assignment in self.assignments.values():
            assignment.set_paused(self._pauses.covers(assignment.shown))

    # For the rebalancer

    def start_assignment(self, assignment: Assignment) -> None:
        """Pull and consume a queue, unless the user has paused it."""
        assignment.set_paused(self._pauses.covers(assignment.shown))
        self.keeper.added(assignment)
        self.service.start(assignment)
        self.puller.start(assignment)

    async def finish_assignment(self, assignment: Assignment) -> None:
        """Let the running call of a queue end; what it did is known from here on."""
        await self.service.finish(assignment)
        if self._local is not None:
            self._local.note(assignment)

    # What the broker says

    def _on_connected(self, hello: HelloReply) -> None:
        if self._local is not None:
            self._local.enter(hello.stores, None if self._hello is None else self._hello.stores)
        before, self._hello = self._hello, hello
        if before is not None and _is_another_store(before, hello):
            self._another_store(before, hello)
        if isinstance(self.keeper, LeaseKeeper):
            self._resume(self.keeper, hello)
        elif self._local is not None:
            self._compare_logs(hello)
        self.rebalancer.connected()

    def _another_store(self, before: HelloReply, hello: HelloReply) -> None:
        is_related = hello.stores.is_related(before.stores)
        log.warning(
            "broker.other_history" if is_related else "broker.other_store",
            group=self.broker.group,
            store_id=f"{hello.store_id:016x}",
            log_epoch=hello.log_epoch,
            store_id_before=f"{before.store_id:016x}",
            log_epoch_before=before.log_epoch,
            advice="it is a copy, or was rolled back: a group continues at the offsets that it has there; broadcasting "
            "members stop where it does not have what they have read"
            if is_related
            else "its topics and its messages are others: what was done before does not count there",
        )
        if self._local is not None and hello.is_rolled_back(before):
            self._local.disown(hello.log_epoch)
        self.rebalancer.another_store(hello.stores.common_epoch(before.stores, before.log_epoch))

    def _compare_logs(self, hello: HelloReply) -> None:
        """A log that is another may have lost messages: the next pull tells."""
        for assignment in self.assignments.values():
            if not assignment.agrees(hello.log_epoch):
                assignment.ask_now()

    def _resume(self, keeper: LeaseKeeper, hello: HelloReply) -> None:
        """A lease that the broker still lists under our epoch goes on; any other is lost, on either side."""
        owned = {
            (lease.topic, lease.queue_id, lease.epoch) for lease in hello.leases if lease.group == self.broker.group
        }
        for assignment in list(self.assignments.values()):
            if (*assignment.queue, assignment.epoch) in owned:
                owned.discard((*assignment.queue, assignment.epoch))
                keeper.proven(assignment)
                if not assignment.agrees(hello.log_epoch):
                    assignment.ask_now()
            else:
                assignment.lose("the broker did not resume it")
        self.rebalancer.listed(MessageQueue(topic, queue_id) for topic, queue_id, _ in owned)
        keeper.connected()
        if self.assignments:
            # The greeting shows that the leases are ours, but renews none.
            self.tasks.start(keeper.renew_all(), "renewal after a reconnect")

    def _on_connection_lost(self, error: Exception) -> None:
        log.debug("consumer.disconnected", group=self.broker.group, error=str(error))

    def _on_push(self, push: int, payload: list[Any]) -> None:
        try:
            self._handle_push(push, payload)
        except (BadRequest, TypeError, ValueError) as error:
            log.warning("push.unreadable", push=push, error=str(error))

    def _handle_push(self, push: int, payload: list[Any]) -> None:
        if push == Push.TOPIC_CHANGED:
            self.rebalancer.topic_changed(decode(ops.TopicInfo, payload))
        elif push == Push.TOPIC_DELETED:
            topic, topic_generation = payload[:2]
            self.rebalancer.topic_deleted(str(topic), int(topic_generation))
        elif push == Push.MEMBERS_CHANGED:
            group, members, version = payload[:3]
            if group == self.broker.group:
                self.rebalancer.members_changed(list(members), int(version))
        elif push == Push.LEASE_FREE:
            group, topic, queue_id = payload[:3]
            if group == self.broker.group:
                self._lease_free(MessageQueue(topic, queue_id))
        elif push == Push.RUNNING_INFO:
            token, group = payload[:2]
            if group == self.broker.group:
                self._reply_running_info(int(token))

    def _lease_free(self, queue: MessageQueue) -> None:
        """
        A queue has no owner; if we thought that was us, ask: a queue that is not pulled would not learn it soon.

        One that is being handed over is not pulled, and its call has to learn of it before the next owner begins.
        """
        assignment = self.assignments.get(queue)
        if assignment is not None and not assignment.lease.lost and not assignment.ended.is_set():
            self._doubted.append(assignment)
            if len(self._doubted) == 1:  # those that are reported in the same step are asked for together
                self.tasks.start(self._renew_doubted(), "renewal of doubted leases")
        self.rebalancer.lease_free(queue)

    async def _renew_doubted(self) -> None:
        doubted, self._doubted = self._doubted, []
        await self.keeper.renew_these(doubted)

    def _reply_running_info(self, token: int) -> None:
        """Reply at once and wait for nothing: the caller has a second, and no other request may be kept waiting."""
        answer = msgpack.packb(RunningInfo(token, self.info()))
        try:
            self._link.submit(Op.RUNNING_INFO, (answer,), _note_reply)
        except ConnectionLost as error:
            log.debug("running_info.unsent", error=str(error))

    def info(self) -> dict[str, Any]:
        """What this consumer does at this moment."""
        now = self.broker.now()
        program = Program(
            version(), self._link.member, self.broker.group, now - self._began_at, self.stalls.lag_s,
            self.service.turns, self.rebalancer.refused, self.polled_ago_s,
        )  # fmt: skip
        return running_info(program, self.config, self.assignments.values(), self.statistics.read(now), now=now)

    # The end

    def halt(self) -> None:
        """
        No pass and no batch starts from here on.

        If code of the user has to end first, the broker learns now that this member is leaving: if the process is
        killed meanwhile, that does not count as a crash.
        """
        self.rebalancer.halt()
        for assignment in self.assignments.values():
            assignment.drop()
        if isinstance(self.keeper, LeaseKeeper):
            self.keeper.leave()
            if self._waits_for_user():
                self.tasks.start(self.keeper.renew_all(), "announcement of leaving")

    def _waits_for_user(self) -> bool:
        """Whether code of the user has to end before the queues can be given back."""
        return any(assignment.guard.busy for assignment in self.assignments.values())

    def cancel_calls(self) -> None:
        """Cancel the running calls of a consumer that stops; those in a thread are waited for all the same."""
        for assignment in self.assignments.values():
            if assignment.dropped:
                self.tasks.start(self.service.finish(assignment, within_s=0.0), f"cancelling of {assignment.queue}")

    async def stop(self, *, drain_s: float | None = None) -> None:
        """
        Stop rebalancing, stop pulling, drain the running calls, then commit, unlock and leave in one request.

        Renewals go on until the calls have ended, so that they end under their leases. ``drain_s`` is in place of the
        setting.
        """
        try:
            await self._end_calls(self.config.drain_s if drain_s is None else drain_s)
        finally:
            if self._local is not None:
                await self._local.close()
        await self._leave()
        await self.tasks.cancel(*self.tasks.others())
        await self._link.close()
        self.assignments.clear()

    async def _end_calls(self, drain_s: float) -> None:
        if self._rebalancing is not None:
            # The pass under way ends first, so that what it is granted is known and given back.
            await asyncio.wait([self._rebalancing])
        assignments = list(self.assignments.values())
        await self.tasks.cancel(*(assignment.puller for assignment in assignments))
        await asyncio.gather(*(self.service.finish(assignment, within_s=drain_s) for assignment in assignments))
        await self.rebalancer.handovers_ended()
        for assignment in self.assignments.values():
            assignment.ended.set()  # what is to be committed goes with the request that leaves

    async def _leave(self) -> list[Assignment]:
        """
        Give everything back; return the assignments of which the broker has taken the progress.

        A broker that is away is waited for as long as for an answer.
        """
        if not self.rebalancer.joined:
            return []
        try:
            async with asyncio.timeout(self.config.request_timeout_s):
                while True:
                    await self._link.wait_connected()
                    await self._agree()
                    log_epoch = self.broker.log_epoch
                    owned = [each for each in self.assignments.values() if not each.lease.lost]
                    try:
                        outcomes = await self.broker.leave([lease_end(each, log_epoch) for each in owned])
                        log.info("group.left", group=self.broker.group, leases=len(owned))
                        # strict=False: a broadcasting member has queues, and no leases to be answered
                        return [each for each, outcome in zip(owned, outcomes, strict=False) if outcome.status == OK]
                    except ConnectionLost:
                        continue
        except (RmqError, TimeoutError) as error:
            log.warning("group.left_without_answer", group=self.broker.group, error=str(error) or "no connection")
            return []

    async def _agree(self) -> None:
        """Ask a broker that restarted whether it has what was done; without an answer nothing of it is reported."""
        if self._local is not None:
            return
        timeout_s = self.config.request_timeout_s / 3  # the request that leaves has to have time left
        asked = [agree(assignment, self.broker, timeout_s=timeout_s) for assignment in self.assignments.values()]
        await asyncio.gather(*asked, return_exceptions=True)


def _is_another_store(before: HelloReply, hello: HelloReply) -> bool:
    """Return whether a broker has other topics and members than before, as after a backup was put back."""
    return hello.store_id != before.store_id or hello.is_rolled_back(before)


def _note_reply(status: int, _: object) -> None:
    if status != OK:
        log.debug("running_info.refused", reason=code_name(status))


R = TypeVar("R", bound=ConsumerRuntime)


class BaseConsumer(ABC, Generic[R]):
    """A consumer of a group, which runs once: it cannot be started again."""

    def __init__(
        self,
        example: str,
        config: ConsumerConfig | None,
        settings: dict[str, Any],
        *,
        address: str | None,
        group: str | None,
        strategy: str | Strategy | Allocate | None,
        connect: Connect,
        now: Callable[[], float],
        handle_signals: bool,
    ) -> None:
        """``example`` is a call with a group, for the user who left that out."""
        given = {"broker": address, "group": group, "strategy": strategy if isinstance(strategy, str) else None}
        settings |= {name: value for name, value in given.items() if value is not None}
        if config is None and "group" not in settings:
            raise ConfigError(f"a consumer needs a group: {example}")
        self.config = configure(config, **settings)
        self._strategy = None if strategy is None or isinstance(strategy, str) else named(strategy)
        self._connect = connect
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

        A running call ends, and what it did is reported. The locks are kept, so no other member gets the queues. Queues
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
        """The assignments, by the names of their queues."""
        owned = {} if self._runtime is None else self._runtime.assignments
        return [assignment for _, assignment in sorted(owned.items())]

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop, by :meth:`stop`, a signal or an error; a loop of polls ends by this."""
        return self._stop is not None or self._stopped.is_set()

    # Life

    async def __aenter__(self) -> Self:
        self.start()
        return self

    @abstractmethod
    def start(self) -> None:
        """Begin, in the background."""

    async def _finish(self, runtime: R) -> None:
        """Stop what runs."""
        try:
            await runtime.stop()
        finally:
            self._stopped.set()

    def _refuse_if_stopped(self) -> None:
        if self.stopping:
            raise RuntimeError("this consumer was stopped: make another one") from self._error

    def _begin_stop(self) -> None:
        """Have nothing new begin, and stop in the background, once."""
        if self._runtime is None:
            self._stopped.set()
        elif self._stop is None:
            self._runtime.halt()
            self._stop = self._runtime.tasks.start(self._finish(self._runtime), "stop of the consumer")

    async def _stop_and_wait(self) -> None:
        """Stop, and wait for that; called by a task that would have to end first, it does not wait."""
        self._begin_stop()
        if self._runtime is not None and asyncio.current_task() not in self._runtime.service.owners():
            assert self._stop is not None
            await asyncio.shield(self._stop)

    # Signals

    def _stop_signals(self, insist: Callable[[], object]) -> AbstractContextManager[StopSignals | None]:
        """Within the block a signal stops the consumer, and a second one has ``insist`` called on the loop."""
        if not self._handles_signals:
            return nullcontext()
        call_soon = asyncio.get_running_loop().call_soon_threadsafe
        return StopSignals(lambda number: call_soon(self._signalled, number), lambda: call_soon(insist))

    def _signalled(self, number: signal.Signals) -> None:
        log.info("consumer.signalled", group=self.config.group, signal=number.name, drain_s=self.config.drain_s)
        self._begin_stop()

    def _cancel_calls(self) -> None:
        """Cancel running calls instead of waiting for them."""
        if self._runtime is not None:
            self._runtime.cancel_calls()

    def _failed(self, error: BaseException) -> None:
        """A part of the consumer ended by an error: nothing can go on without it."""
        if self._error is None:
            self._error = error
            # A refusal explains itself; anything else is a defect, whose place matters.
            where = None if isinstance(error, RmqError) else error
            log.error("consumer.failed", group=self.config.group, error=str(error), exc_info=where)
        if self._runtime is not None:
            self._begin_stop()
