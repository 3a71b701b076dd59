"""ACCEPT_HISTORY: an operator lets readers of another history of this store continue in this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmq.runtime.logging import get_broker_logger
from rmq.wire.protocol.ops.core import HistoryAccepted

from ..net.connection import DEFERRED, Connection
from ..store.changes import Started
from ..store.committer import Committer
from ..store.message_store import MessageStore

log = get_broker_logger(__name__)


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
