"""
The broker: from its settings to an open port and back.

Start: lock the directory, recover the log, raise the log epoch and make that durable, then open the port. Stop:
close the port, commit what was accepted, write the replies, notify the clients, sync, unlock the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from rmq.runtime.clock import boottime, wall_us
from rmq.runtime.logging import get_broker_logger
from rmq.runtime.tasks import Timers
from rmq.wire.address import Address, parse_address
from rmq.wire.batch import checksum, native
from rmq.wire.errors import Fatal, ShuttingDown
from rmq.wire.model import MessageQueue

from .config import BrokerConfig, parse_levels
from .handlers.inspect import StatsHandler
from .jobs.maintenance import DiskWatch, Maintenance, Schedule
from .jobs.read_pool import ReadPool
from .net.connection import Connection, Handler, ReplyBatch
from .net.limits import Admission, AnswerBudget, PeerLimits, ReceiveBudget
from .process import cpu_s, possible_connections, resident_bytes
from .state.deferred import DelayClock, Delays
from .state.groups import Membership
from .state.leases import LeaseTable
from .state.offsets import Ledger
from .state.parked_pulls import ParkedPullTable
from .state.producers import ProducerTable
from .state.replay import DeferredLog, Replay
from .state.sessions import SessionTable
from .state.snapshot import Snapshot
from .state.topics import TopicTable
from .store.changes import LeaseEnded
from .store.checkpoint import CheckpointWork
from .store.commitlog import Moved
from .store.committer import Committer
from .store.directory import DataDirectory
from .store.files import Files
from .store.flusher import AnyFlusher, Failed, Flusher, FlusherFactory, SyncableLog, Synced
from .store.message_store import MessageStore, Recovered
from .wiring import Handlers, Tables

log = get_broker_logger(__name__)

RECEIVE_BUFFER = 256 << 10
TICK_S = 0.1
SECOND_S = 1.0
SWITCH_INTERVAL_S = 0.0005  # a thread back from fdatasync waits this long for the interpreter, not ten times that


class Broker:
    """
    One broker process. ``await start()`` returns when the port is open; ``await stop()`` when all is on disk.

    ``failed`` is set when the store can no longer be trusted: stop and start again.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        now: Callable[[], float] = boottime,
        clock: Callable[[], float] = time.perf_counter,
        wall_us: Callable[[], int] = wall_us,
        flusher: FlusherFactory | None = None,
        files: Files | None = None,
    ) -> None:
        self.config = config
        self._files = files or Files()
        self._make_flusher = flusher or self._thread
        self.now = now
        self.clock = clock
        self.wall_us = wall_us
        self.address = ""
        self.recovered: Recovered | None = None
        self.failed = asyncio.Event()
        self.failure = "the disk failed, so nothing more can be promised: start the broker again"  # once it has
        self.max_in_flight = config.max_in_flight
        self.high_water = config.write_high_water_bytes
        self.shared_buffer = memoryview(bytearray(RECEIVE_BUFFER))
        self.budget = ReceiveBudget(config.receive_memory_bytes)
        self.answers = AnswerBudget(config.answer_memory_bytes, now=now)
        self.handlers: dict[int, Handler] = {}
        self.outgoing: ReplyBatch
        self._admission = Admission(possible_connections(config.max_connections))
        self._connections = self._admission.connections
        self._server: asyncio.Server | None = None
        self._timers = Timers()
        self._stopping = False
        self._stopped = False
        self._flusher: AnyFlusher | None = None
        self._pools: list[ReadPool] = []
        self._started_at = now()

    # ---- start

    async def start(self) -> None:
        """
        Recover and serve.

        Raises:
            StoreError: the directory cannot be used, or the log is damaged.
            OSError: the port cannot be bound.
            ConfigError: the address makes no sense.
        """
        host, port = parse_address(self.config.listen, any_port=True)
        loop = asyncio.get_running_loop()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self.outgoing = ReplyBatch(loop.call_soon)
        self._open_store()
        try:
            self._build_services(loop)
            self._recover()
            self._build_maintenance()
            self._build_handlers(loop)
            self._start_flusher(loop)
            await self._make_start_durable(loop)
            self._watch_disk()
            self._server = await loop.create_server(lambda: Connection(self, loop), host, port, backlog=1024)
        except BaseException:
            self._abandon()
            raise
        self.address = str(Address(*self._server.sockets[0].getsockname()[:2]))
        self._replay.open_sessions(self._sessions, self._members, now=self.now())
        if self._replay.grace_s > self.config.grace_s:
            self._timers.keep(self._lower_grace(self._replay.grace_s))
        self._timers.every(TICK_S, self._handlers.tick)
        self._timers.every(SECOND_S, self._each_second)
        self._timers.every(self.config.park_sweep_s, self._pulls.sweep)
        self._timers.every(self.config.offset_flush_s, self._progress.flush_riding)
        self._delivery.start()

    def _open_store(self) -> None:
        self._directory = DataDirectory(
            self.config.data_path(), self._files, recognise_copies=self.config.recognise_copies
        )
        self._disk = DiskWatch(self._directory.path, self.config.min_free_bytes)
        try:
            self._store = MessageStore(
                self._directory, segment_bytes=self.config.segment_bytes, wall_us=self.wall_us,
                entries_per_file=self.config.index_file_entries, recent_bytes=self.config.recent_bytes,
            )  # fmt: skip
        except BaseException:
            self._directory.close()
            raise

    def _abandon(self) -> None:
        """Undo a failed start; only the log remains."""
        if self._flusher is not None:
            self._flusher.stop()
        for pool in self._pools:
            pool.close()
        self._store.abandon()

    def _build_services(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self.config
        self._topics = TopicTable()
        self._ledger = Ledger()
        self._locks = LeaseTable(config.lock_lease_s)
        self._sessions = SessionTable(config.grace_s)
        self._members = Membership(config.member_expiry_s)
        self._parked_pulls = ParkedPullTable()
        self._producers = ProducerTable()
        delay_clock = DelayClock()
        self._delays = Delays(
            self._store.delays, parse_levels(config.message_delay_level), max_delay_s=config.max_delay_s,
            now_us=lambda: delay_clock.read(self.wall_us(), self.now()),
        )  # fmt: skip
        self._committer = Committer(
            self._store, loop, sync=config.flush == "sync", exposed=self._exposed, clock=self.clock
        )
        self._read_pool = ReadPool(loop, config.read_threads)
        self._maintenance_pool = ReadPool(loop, 1)
        self._pools = [self._read_pool, self._maintenance_pool]

    def _recover(self) -> None:
        parked = DeferredLog()
        self._replay = Replay(self._topics, self._ledger, self._locks, self._producers, parked, now=self.now())
        self.recovered = self._store.recover(self._replay)
        parked.fill(self._store.delays)
        self._delays.start(self._store.newest_us)
        self._locks.start(self._store.log_epoch)
        self._members.start(self._store.log_epoch)
        if self.recovered.cut is not None:
            cut = self.recovered.cut
            log.warning(
                "log.tail_cut", position=cut.position, size=cut.size, reason=cut.reason, kept_in=str(cut.kept_in)
            )

    def _build_maintenance(self) -> None:
        config, store = self.config, self._store
        snapshot = Snapshot(
            store, topics=self._topics, ledger=self._ledger, locks=self._locks, producers=self._producers,
            grace_s=lambda: self._grace_s, now=self.now,
        )  # fmt: skip
        schedule = Schedule(
            config.checkpoint_bytes, config.checkpoint_s, config.retention_hours * 3600, config.retention_bytes
        )
        assert self.recovered is not None
        self._maintenance = Maintenance(
            store, self._maintenance_pool, schedule, snapshot=lambda rings: snapshot.changes(rings=rings),
            next_turn=self._committer.schedule, now=self.now, wall_us=self.wall_us,
            checkpoint_position=self.recovered.read_from, for_export=snapshot.for_export,
        )  # fmt: skip
        store.snapshot = lambda: snapshot.changes(rings=False)
        self._maintenance.has_unwritten = lambda: self._committer.has_unwritten
        self._committer.turn_over = self._maintenance.turn_over
        self._committer.on_synced = self._maintenance.synced
        self._committer.answered = self.outgoing.flush

    def _build_handlers(self, loop: asyncio.AbstractEventLoop) -> None:
        tables = Tables(
            self._topics, self._ledger, self._locks, self._sessions, self._members, self._parked_pulls, self._producers,
            self._delays,
        )  # fmt: skip
        stats = StatsHandler({"broker": self._own_stats, "flush": self._flush_stats}, self._store.traffic)
        self._handlers = Handlers(
            self.config, self._store, tables, loop, committer=self._committer, pool=self._read_pool,
            maintenance=self._maintenance, stats=stats, connections=lambda: len(self._connections),
            answers=self.answers, now=self.now, clock=self.clock, wall_us=self.wall_us,
            started=lambda: self._store.history.started(self._grace_s),
        )  # fmt: skip
        self._pulls, self._sends, self._groups = self._handlers.pulls, self._handlers.sends, self._handlers.groups
        self._progress, self._inquiries = self._handlers.progress, self._handlers.inquiries
        self._delivery = self._handlers.delivery
        self.handlers = self._handlers.by_op

    def _own_stats(self) -> dict[str, Any]:
        assert self.recovered is not None
        return {
            "name": self.config.name, "cluster": self.config.cluster, "pid": os.getpid(),
            "address": self.address, "data_dir": str(self._directory.path.absolute()), "flush": self.config.flush,
            "up_s": round(self.now() - self._started_at, 3), "free_disk_bytes": self._disk.free_bytes,
            "refuses_sends": self._disk.refusal, "damaged_places": len(self.recovered.damages),
            "lowered_offsets": self._lowered, "memory_bytes": resident_bytes(), "cpu_s": cpu_s(),
            "time_us": self.wall_us(), "checksums": checksum.MADE_BY, "loops": native.MADE_BY,
        }  # fmt: skip

    def _flush_stats(self) -> dict[str, float]:
        return self._flusher.stats() if self._flusher is not None else {}

    def _start_flusher(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flusher = self._make_flusher(
            self._store.log, loop.call_soon_threadsafe, self._committer.synced, self._poisoned
        )
        self._committer.attach(self._flusher.request)
        self._flusher.start()

    def _thread(self, log_: SyncableLog, post: Callable[..., object], synced: Synced, failed: Failed) -> Flusher:
        interval = 0.0 if self.config.flush == "sync" else self.config.flush_interval_s
        return Flusher(log_, post, synced, failed, interval_s=interval)

    async def _make_start_durable(self, loop: asyncio.AbstractEventLoop) -> None:
        """An epoch must never be given twice: this start is in the log, synced, before anything is granted."""
        assert self.recovered is not None
        if self.recovered.damages:
            for _, topic, queue_id, offset in self._ledger.offsets.rows():
                self._store.reserve(MessageQueue(topic, queue_id), offset)
        copies = self._replay.name_copies(self._store.reader())
        lowered = self._ledger.lower(lambda queue: self._store.queue(queue).readable)
        self._lowered = len(lowered)
        # If we crash at once, the longer grace still counts.
        self._grace_s = max(self._replay.grace_s, self.config.grace_s)
        ended = self._end_leases() if self._store.history.is_copy else []  # first: no snapshot has them with the new id
        self._store.turn_over()  # a new segment whose snapshot was cut off gets another one
        self._store.stage_changes([*ended, self._store.history.started(self._grace_s), *copies, *lowered])
        self._store.write()
        self._store.log.durable = await loop.run_in_executor(None, self._store.log.sync)
        if self._store.history.is_copy:  # only now: a crash before leaves the mark of a copy
            self._directory.write_name(self._store.stores.current)

    def _end_leases(self) -> list[LeaseEnded]:
        """End the leases that came with a copy: the original granted them, and may still be running."""
        ended = self._locks.release_all()
        former = self._store.stores.former[-1]
        log.warning(
            "store.copied", store_id=f"{self._store.stores.current:016x}", copy_of=f"{former.store_id:016x}",
            until=former.until, log_epoch=self._store.log_epoch, ended_leases=len(ended),
            advice="groups continue at their committed offsets; readers that keep their own position stop if they were "
            "further",
        )  # fmt: skip
        return [lease.ended() for lease in ended]

    async def _lower_grace(self, old_s: float) -> None:
        """Record the shorter grace once clients that knew the longer one are back or gone."""
        await asyncio.sleep(old_s + SECOND_S)
        self._grace_s = self.config.grace_s
        self._committer.record(self._store.history.started(self.config.grace_s))

    # ---- service

    def opened(self, connection: Connection) -> Fatal | None:
        """A connection came; the reason if it may not stay."""
        if self._stopping:
            return ShuttingDown("the broker is stopping")
        return self._admission.opened(connection)

    def closed(self, connection: Connection) -> None:
        """A connection ended; its session has a grace before anything is taken from it."""
        self._admission.closed(connection)
        self._pulls.closed(connection)
        self._inquiries.closed(connection)
        if connection.session is not None:
            self._sessions.lost(connection.session.id, connection, now=self.now())

    def unblocked(self, connection: Connection) -> None:
        """A connection can take large answers again."""
        self._pulls.unblocked(connection)

    def _exposed(self, queues: list[MessageQueue]) -> None:
        if self._disk.is_due(self._store.log.written):
            self._watch_disk()
        if queues:
            self._pulls.arrived(queues)
        self._delivery.exposed()

    def _each_second(self) -> None:
        now, limits = self.now(), PeerLimits(self.config.hello_timeout_s, self.config.stall_timeout_s)
        for connection in list(self._connections):
            connection.check_timeouts(now, limits)
        self._producers.expire(now=now)
        if self._is_replaced():  # upkeep goes by the path
            return
        self._maintenance.each_second()
        self._delivery.each_second()
        self._watch_disk()

    def _is_replaced(self) -> bool:
        """End if another directory has the path of ours; a path that leads nowhere may come back."""
        try:
            self._store.log.check_place()
        except Moved as error:
            self.failure = str(error)
            self._poisoned(error)
            return True
        except OSError:
            pass
        return False

    def _watch_disk(self) -> None:
        self._disk.look(self._store.log.written)
        self._sends.refuse_because = self._disk.refusal
        self._delivery.is_paused = self._disk.is_scarce

    def _poisoned(self, error: Exception) -> None:
        """What is on disk is unknown, or is not ours: nothing more may be acknowledged."""
        log.critical("store.poisoned", error=str(error) or repr(error))
        self._stopping = True
        self._delivery.stop()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.fail(ShuttingDown(self.failure))
        self.failed.set()

    # ---- stop

    async def stop(self) -> None:
        """Drain and close. Cancelling it leaves a log that recovers, as after a crash."""
        if self._stopped or self._server is None:
            return
        self._stopping = self._stopped = True
        self._server.close()
        self._timers.cancel()
        self._delivery.stop()
        if not self.failed.is_set():
            await self._drain()
        for connection in list(self._connections):
            connection.fail(ShuttingDown("the broker is stopping"))
        await self._until(lambda: not self._connections)
        for connection in list(self._connections):
            connection.abort()
        assert self._flusher is not None
        self._maintenance.want_nothing()
        # It syncs what is left, and a checkpoint may wait for that.
        await asyncio.get_running_loop().run_in_executor(None, self._flusher.stop)
        if not self.failed.is_set():  # else it would wait for ever
            await self._until(lambda: self._maintenance.idle)
        is_quiet = self._committer.idle and self._maintenance.idle and not self.failed.is_set()
        last = self._maintenance.capture() if is_quiet else None
        await asyncio.get_running_loop().run_in_executor(None, self._close_store, last)

    def _close_store(self, last: CheckpointWork | None) -> None:
        for pool in self._pools:
            pool.close()
        if last is None or self.failed.is_set():
            self._store.abandon()  # what a failed disk holds is for the next start to judge
            return
        try:
            self._store.log.sync()
            last.run()  # a start after this one has nothing to read
        except OSError as error:
            log.error("checkpoint.failed", error=str(error))
        finally:
            self._store.abandon()

    async def _drain(self) -> None:
        for connection in list(self._connections):
            connection.quiesce()
        self._progress.flush_riding()
        await self._until(lambda: self._committer.idle)

    async def _until(self, condition: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.drain_timeout_s):
                while not condition():
                    await asyncio.sleep(0.005)
