"""The handlers of all operations, built over the same tables and connected with each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

from rmq.wire.protocol.ops.core import Op

from .config import BrokerConfig
from .handlers.dead_letters import DeadAdminHandler
from .handlers.deferrals import DelayHandler
from .handlers.groups import GroupHandler, StartOffsets
from .handlers.inspect import GroupAdminHandler, RunningInfoHandler, StatsHandler
from .handlers.lookup import MessageHandler
from .handlers.notify import Notices
from .handlers.progress import ProgressHandler
from .handlers.pull import PullHandler
from .handlers.redelivery import CopyAppender, CopyQueue, SendBackHandler
from .handlers.send import SendHandler
from .handlers.session import HelloHandler, HistoryHandler
from .handlers.topics import TopicHandler
from .jobs.deferred_delivery import DeferredDelivery
from .jobs.maintenance import Maintenance
from .jobs.read_pool import ReadPool
from .net.connection import Connection, Handler
from .net.limits import AnswerBudget
from .state.deferred import Delays
from .state.groups import Membership
from .state.leases import LeaseTable
from .state.offsets import Ledger
from .state.parked_pulls import ParkedPullTable
from .state.producers import ProducerTable
from .state.sessions import SessionTable
from .state.topics import Topic, TopicTable
from .store.changes import Started
from .store.committer import Committer
from .store.message_store import MessageStore


class Tables(NamedTuple):
    """What is true, as far as it is not in the log alone."""

    topics: TopicTable
    ledger: Ledger
    locks: LeaseTable
    sessions: SessionTable
    members: Membership
    parked_pulls: ParkedPullTable
    producers: ProducerTable
    delays: Delays


class Handlers:
    """Builds the handlers and connects them. ``stats`` collects the numbers of the whole broker."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, tables: Tables, loop: asyncio.AbstractEventLoop, *,
        committer: Committer, pool: ReadPool, maintenance: Maintenance, stats: StatsHandler,
        connections: Callable[[], int], answers: AnswerBudget, now: Callable[[], float], clock: Callable[[], float],
        wall_us: Callable[[], int], started: Callable[[], Started],
    ) -> None:  # fmt: skip
        self._config = config
        self._store = store
        self._tables = tables
        self._connections = connections
        self._answers = answers
        self.topics = TopicHandler(
            tables.topics, store, committer, broker=config.name, default_queues=config.default_queues,
            auto_create=config.auto_create_topics, wall_us=wall_us, refusal=lambda: self.sends.refuse_because,
        )  # fmt: skip
        notices = Notices(tables.members, tables.sessions, call_soon=loop.call_soon, call_later=loop.call_later)
        self.progress = ProgressHandler(
            topics=tables.topics, members=tables.members, locks=tables.locks, ledger=tables.ledger,
            committer=committer, now=now, readable_range=store.readable_range, call_soon=loop.call_soon,
        )  # fmt: skip
        self.groups = GroupHandler(
            topics=tables.topics, sessions=tables.sessions, members=tables.members, locks=tables.locks,
            ledger=tables.ledger, progress=self.progress, committer=committer, now=now,
            topic_info=self.topics.info, notices=notices,
        )  # fmt: skip
        self.pulls = PullHandler(
            store, tables.topics, tables.parked_pulls, self.progress, now=now, clock=clock, call_soon=loop.call_soon,
            max_park_s=config.max_park_s, pool=pool, answers=answers,
        )  # fmt: skip
        self.sends = SendHandler(
            store, tables.topics, tables.producers, committer, tables.delays, durable=config.flush == "sync", now=now,
            clock=clock, call_soon=loop.call_soon,
        )  # fmt: skip
        self._hello = HelloHandler(
            config, sessions=tables.sessions, locks=tables.locks, ledger=tables.ledger, producers=tables.producers,
            progress=self.progress, committer=committer, now=now,
            history=lambda: store.history,
            durable_to=lambda: store.log.durable if config.flush == "sync" else store.log.written,
        )  # fmt: skip
        self._messages = MessageHandler(
            store, tables.topics, pool, index_now=maintenance.index_now, call_later=loop.call_later, clock=clock
        )
        self._histories = HistoryHandler(store, committer, started=started)
        copy_queue = CopyQueue(pool)
        appender = CopyAppender(
            store, committer, tables.delays, tables.ledger, make_topic=self.topics.own,
            refusal=lambda: self.sends.refuse_because,
        )  # fmt: skip
        self._send_backs = SendBackHandler(
            store, topics=tables.topics, locks=tables.locks, ledger=tables.ledger, progress=self.progress,
            committer=committer, copy_queue=copy_queue, appender=appender, delays=tables.delays,
            max_retries=config.max_retries, now=now,
        )  # fmt: skip
        self._dead_admin = DeadAdminHandler(
            store,
            topics=tables.topics,
            ledger=tables.ledger,
            committer=committer,
            copy_queue=copy_queue,
            appender=appender,
        )
        self.delivery = DeferredDelivery(
            store, tables.topics, committer, pool, loop, now_us=tables.delays.now_us, clock=clock
        )
        store.on_deferred = self.delivery.deferred
        self._waiting = DelayHandler(store, pool)
        self._group_admin = GroupAdminHandler(
            self.groups, topics=tables.topics, store=store, members=tables.members, locks=tables.locks,
            ledger=tables.ledger, progress=self.progress, committer=committer, now=now,
        )  # fmt: skip
        self.inquiries = RunningInfoHandler(self._group_admin, tables.members, now=now)
        self._connect(notices)
        stats.add("log", store.stats)
        stats.add("commit", committer.stats)
        stats.add("upkeep", maintenance.stats)
        stats.add("delays", self.delivery.stats)
        stats.add("serving", self._numbers)
        self.by_op = self._routes(stats)

    def _connect(self, notices: Notices) -> None:
        """Connect the handlers with each other."""
        tables, topics = self._tables, self.topics
        beginnings = StartOffsets(
            tables.topics, tables.members, self.progress, leased_topics=tables.locks.topics, end=self._store.end_since
        )
        topics.progress = self.progress
        topics.changed = notices.topic_changed
        topics.deleted = notices.topic_deleted
        topics.ended = self._topic_ended
        topics.made = beginnings.made
        self.groups.lease_changed = self.pulls.lease_changed
        self.groups.resubscribed = self.pulls.resubscribed
        self.groups.begins = beginnings.joined
        self.progress.revoke = self.groups.revoke

    def _routes(self, stats: StatsHandler) -> dict[int, Handler]:
        groups, progress, topics, messages = self.groups, self.progress, self.topics, self._messages
        return {
            Op.HELLO: self._hello.hello, Op.PING: self._hello.ping, Op.SEND: self.sends.send, Op.PULL: self.pulls.pull,
            Op.COMMIT: progress.commit, Op.ACQUIRE: groups.acquire, Op.RENEW: groups.renew, Op.RELEASE: groups.release,
            Op.JOIN: groups.join, Op.LEAVE: groups.leave, Op.ATTEMPT: progress.attempt,
            Op.LOCK_STATUS: groups.lock_status, Op.ROUTE: topics.route, Op.CREATE_TOPIC: topics.create,
            Op.LIST_TOPICS: topics.list, Op.RANGES: topics.ranges, Op.DELETE_TOPIC: topics.delete,
            Op.GROW_TOPIC: topics.grow, Op.DESCRIBE_TOPIC: topics.describe, Op.STATS: stats.stats,
            Op.QUERY_MESSAGES: messages.query, Op.GET_MESSAGE: messages.get, Op.OFFSETS_AT: messages.offsets_at,
            Op.STARTING: progress.starting, Op.DEAD_LETTER: self._send_backs.dead_letter,
            Op.SEND_BACK: self._send_backs.send_back, Op.LIST_DEAD: self._dead_admin.list_dead,
            Op.DEAD_STATES: self._dead_admin.dead_states, Op.REPLAY_DEAD: self._dead_admin.replay,
            Op.DROP_DEAD: self._dead_admin.drop,
            Op.RESET_OFFSETS: progress.reset, Op.LIST_GROUPS: self._group_admin.list_groups,
            Op.DESCRIBE_GROUP: self._group_admin.describe, Op.MEMBER_INFO: self.inquiries.ask,
            Op.RUNNING_INFO: self.inquiries.answer, Op.LIST_DELAYS: self._waiting.list_delays, Op.HEADS: messages.heads,
            Op.CONFIG: self._settings, Op.ACCEPT_HISTORY: self._histories.accept,
        }  # fmt: skip

    def _settings(self, connection: Connection, request_id: int, payload: Any) -> object:
        """CONFIG: what the broker works with, by name."""
        return asdict(self._config)

    def tick(self) -> None:
        """End what silence ends."""
        self.groups.expire()
        self.pulls.expire()
        self.inquiries.expire()

    def _topic_ended(self, topic: Topic) -> None:
        """What a deleted topic takes with it."""
        self.progress.forget_topic(topic.name)
        self.groups.forget_topic(topic.name)
        self._store.drop_topic(topic.name, topic.generation)
        self.pulls.topic_ended(topic.name, topic.queues)

    def _numbers(self) -> dict[str, Any]:
        tables = self._tables
        return {
            "connections": self._connections(), "topics": len(tables.topics.all()), "leases": len(tables.locks),
            "silent_members": tables.members.silent_count, "producers": len(tables.producers),
            "parked_pulls": len(tables.parked_pulls), "rescued_pulls": self.pulls.rescued,
            "unread_answer_bytes": self._answers.used, "evicted_readers": self._answers.evicted,
            "cold_reads": self.pulls.cold_reads, "damaged_reads": self.pulls.reader.damaged_reads,
            "other_histories": self.pulls.reader.other_histories,
            "failed_reads": self.pulls.reader.failed_reads,
            **self._send_backs.stats(), "replayed_dead_letters": self._dead_admin.replayed,
        }  # fmt: skip
