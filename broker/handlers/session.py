"""
HELLO and PING: who connects, what it may do, and which leases it still has. ACCEPT_HISTORY: an operator lets readers
of another history of this store continue in this one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch import layout
from rmq.wire.errors import (
    OK,
    BadRequest,
    ProducerFenced,
    ProtocolUnsupported,
    Refused,
    SequenceConflict,
    SessionReplaced,
)
from rmq.wire.protocol import frames
from rmq.wire.protocol.hello import (
    AttemptRun,
    Hello,
    HelloReply,
    Limits,
    ProducerHello,
    ProducerOutcome,
    ProducerResumed,
    ResumedLease,
    hello_from_map,
    hello_to_map,
    other_protocol,
)
from rmq.wire.protocol.ops.core import PROTOCOL, HistoryAccepted

from ..config import BrokerConfig
from ..net.connection import DEFERRED, Connection
from ..state.attempts import NO_ATTEMPT
from ..state.leases import Lease, LeaseTable
from ..state.offsets import Ledger
from ..state.producers import Known, ProducerTable, Resumed, Spent
from ..state.sessions import Session, SessionTable
from ..store.changes import Started
from ..store.committer import Committer
from ..store.history import History
from ..store.message_store import MessageStore
from .progress import ProgressHandler

log = get_broker_logger(__name__)
SESSION_BYTES = 16
MAX_CLIENT_NAME = 128
PRODUCER_WINDOW = 256


class HelloHandler:
    """
    Greets, resumes a known session and ends its older connection.

    A producer learns what became of its unresolved batches. That reply leaves when all it reports is as durable as
    the answers to these batches would be, and nothing else of the connection is served before it.
    """

    def __init__(
        self, config: BrokerConfig, *, sessions: SessionTable, locks: LeaseTable, ledger: Ledger,
        producers: ProducerTable, progress: ProgressHandler, committer: Committer, now: Callable[[], float],
        history: Callable[[], History], durable_to: Callable[[], int],
    ) -> None:  # fmt: skip
        self._config = config
        self._sessions = sessions
        self._locks = locks
        self._ledger = ledger
        self._producers = producers
        self._progress = progress
        self._committer = committer
        self._now = now
        self._history = history
        self._durable_to = durable_to  # how far the log is as durable as a send's answer promises
        self._raising: dict[int, int] = {}  # producers whose epoch was raised, until that is durable

    def hello(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Greet; the reply says what the session still holds."""
        if connection.session is not None:
            raise BadRequest("this connection has greeted already")
        hello: Hello = hello_from_map(Hello, payload)
        self._judge(hello)
        now = self._now()
        producer = hello.producer if hello.producer and hello.producer.producer_id else None
        # May refuse: before the session knows this connection.
        raised = None if producer is None else self._producers.resume(*producer, now=now)
        session, older = self._sessions.hello(hello.session, hello.client, connection, now=now)
        if isinstance(older, Connection):
            older.fail(SessionReplaced("a newer connection took this session over"))
            older.abort()
        connection.greeted(session)
        log.debug("session.greeted", member=session.member, peer=connection.peer)
        if producer is None:
            return hello_to_map(self._reply(session, None))
        last = (self._producers.next_sequence(producer.producer_id) or 0) - 1
        if raised is not None:
            self._raising[producer.producer_id] = producer.producer_epoch
            self._committer.record(raised)
            self._committer.when_durable(partial(self._raised, producer))
        raising = producer.producer_id in self._raising
        if not raising:
            resumed = self._producers.resumed(*producer, last=last)
            if self._is_durable(resumed):
                return hello_to_map(self._reply(session, resumed))
        connection.suspend()
        self._committer.when_durable(
            partial(self._answer, connection, request_id, session, producer, last),
            partial(self._refuse, connection, request_id) if raising else None,
        )
        return DEFERRED

    def _raised(self, producer: ProducerHello) -> None:
        """A raised epoch is durable now."""
        if self._raising.get(producer.producer_id) == producer.producer_epoch:
            del self._raising[producer.producer_id]

    def _refuse(self, connection: Connection, request_id: int, error: Refused) -> None:
        """The disk does not take the epoch, so the producer must come again; an older one stays fenced meanwhile."""
        connection.refuse(request_id, error)
        connection.resume()

    def _is_durable(self, resumed: Resumed) -> bool:
        durable_to = self._durable_to()
        return all(fate.end_position <= durable_to for fate in resumed.fates if isinstance(fate, Known))

    def _answer(
        self, connection: Connection, request_id: int, session: Session, producer: ProducerHello, last: int
    ) -> None:
        """All that was there when the producer said hello is durable now, or was taken back by a failed write."""
        if connection.closing:
            return  # and so is a connection that was replaced meanwhile
        try:
            resumed = self._producers.resumed(*producer, last=last)
        except ProducerFenced as error:
            connection.refuse(request_id, error)
        else:
            connection.reply(request_id, hello_to_map(self._reply(session, resumed)))
        connection.resume()

    def _producer(self, resumed: Resumed) -> ProducerResumed:
        next_sequence, known, first, fates = resumed
        return ProducerResumed(next_sequence, known, first, [self._outcome(fate) for fate in fates])

    def _outcome(self, fate: Known | Spent) -> ProducerOutcome:
        if isinstance(fate, Known):
            durable = self._config.flush == "sync"
            return ProducerOutcome(OK, fate.base_offset, fate.physical_offset, fate.stored_at, durable)
        if fate.code:
            return ProducerOutcome(fate.code, text=f"batch {fate.sequence} of this producer was refused for good")
        text = f"batch {fate.sequence} of this producer was not stored; why is not known any more"
        return ProducerOutcome(SequenceConflict.code, text=text)

    def _judge(self, hello: Hello) -> None:
        if len(hello.proto) != 2 or not hello.proto[0] <= PROTOCOL <= hello.proto[1]:
            raise ProtocolUnsupported(
                other_protocol(f"this broker speaks protocol {PROTOCOL}, the client", hello.proto)
            )
        if len(hello.session) != SESSION_BYTES:
            raise BadRequest(f"a session id has {SESSION_BYTES} bytes, not {len(hello.session)}")
        if not hello.client or len(hello.client) > MAX_CLIENT_NAME or not hello.client.isprintable():
            raise BadRequest(f"the client's name must have 1 to {MAX_CLIENT_NAME} printable characters")
        if hello.namespace is not None:
            raise BadRequest("namespaces are not supported by this broker")
        if hello.producer is not None:
            _judge_producer(hello.producer)

    def _reply(self, session: Session, resumed: Resumed | None) -> HelloReply:
        config, history = self._config, self._history()
        in_flight = min(PRODUCER_WINDOW, config.max_in_flight)
        limits = Limits(
            frames.MAX_FRAME, layout.MAX_BATCH, in_flight, config.grace_s, config.ping_s, config.lock_lease_s,
            config.member_expiry_s,
        )  # fmt: skip
        leases = [
            ResumedLease(
                lease.group, lease.queue.topic, lease.queue.queue_id, lease.epoch,
                self._progress.committed(lease.group, lease.queue),
                *self._failed(lease),
            )
            for lease in self._locks.of_session(session.id, now=self._now())
        ]  # fmt: skip
        return HelloReply(
            PROTOCOL, config.name, config.cluster, history.stores.current, history.log_epoch, session.member, limits,
            leases, producer=None if resumed is None else self._producer(resumed), start_id=history.start_id,
            former=history.stores.former,
        )  # fmt: skip

    def _failed(self, lease: Lease) -> tuple[int, int, list[AttemptRun]]:
        """The first message that fails and how often it did, and the same of all; who owns it out of order has none."""
        attempts = self._ledger.attempts
        if not lease.ordered:
            return *NO_ATTEMPT, []
        return *attempts.get(lease.group, lease.queue), attempts.runs(lease.group, lease.queue)

    def ping(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Show that the broker is there."""
        return ()


def _judge_producer(producer: ProducerHello) -> None:
    """A number that no batch header can hold would never be met, or be met by another's."""
    for name, value, bits in zip(producer._fields, producer, (64, 16, 64), strict=True):
        if not 0 <= value < 1 << bits:
            raise BadRequest(f"the {name} of a producer is a number of {bits} bits, not {value}")


class HistoryHandler:
    """Records that this history is accepted; ``started`` returns this start as a change of the log."""

    def __init__(self, store: MessageStore, committer: Committer, *, started: Callable[[], Started]) -> None:
        self._store = store
        self._committer = committer
        self._started = started

    def accept(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Accept this history; the answer follows when that is durable."""
        before, store_id = self._store.history, self._store.stores.current
        if not before.accepted:
            self._store.accept_history()
            self._committer.record(self._started())
            log.warning("history.accepted", store_id=f"{store_id:016x}", former=len(before.stores.former))
        answer = HistoryAccepted(store_id, before.accepted)
        self._committer.when_durable(lambda: connection.reply(request_id, answer))
        return DEFERRED
