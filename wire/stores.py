"""
The ids of a store. A message keeps its id when its store is copied; the copy goes on under an id of its own.

A copy of a data directory is another history from its first start on: it and the original store different messages
at the same positions. So the copy takes a new id, and keeps the former ids, each with the position up to which the
messages were stored under it.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_LOG_EPOCH = (1 << 31) - 1  # a lease epoch is log_epoch << 32 | counter, in 64 bits with a sign
NOTHING_IN_COMMON = 0  # in place of the last log epoch that two stores have in common
UNKNOWN_IN_COMMON = 1  # the first one: they have a history in common, and nothing shows how much of it


class FormerStore(NamedTuple):
    """
    An id that a store had before it was copied.

    Messages below the log position ``until`` carry it. ``log_epoch`` is that of the first start under the next id,
    and ``copied_at`` the time of that start in microseconds.
    """

    store_id: int
    until: int
    log_epoch: int
    copied_at: int = 0


class StoreIds(NamedTuple):
    """The id of a store, and those it had before, oldest first."""

    current: int
    former: list[FormerStore] = []  # noqa: RUF012  # shared, so nobody may change it in place

    def at(self, position: int) -> int:
        """Return the id under which the batch at a log position was stored."""
        for store in self.former:
            if position < store.until:
                return store.store_id
        return self.current

    def find(self, store_id: int) -> FormerStore | None:
        """Return the former store of an id, or None if this store never had it."""
        return next((store for store in self.former if store.store_id == store_id), None)

    def has(self, store_id: int) -> bool:
        """Return whether this store has or had an id."""
        return store_id == self.current or self.find(store_id) is not None

    def is_related(self, other: StoreIds) -> bool:
        """Return whether two stores have a part of their history in common."""
        return other.has(self.current) or any(other.has(store.store_id) for store in self.former)

    def common_epoch(self, before: StoreIds, log_epoch: int) -> int:
        """
        Return the highest log epoch whose messages a reader of ``before``, up to ``log_epoch``, can have from here.

        Of unrelated stores this is :data:`NOTHING_IN_COMMON`, and :data:`UNKNOWN_IN_COMMON` where nothing shows it.
        """
        if before.current == self.current:
            return log_epoch
        former = self.find(before.current)
        if former is not None:
            return min(log_epoch, former.log_epoch - 1)
        return UNKNOWN_IN_COMMON if self.is_related(before) else NOTHING_IN_COMMON

    def copied(self, store_id: int, until: int, log_epoch: int, copied_at: int) -> StoreIds:
        """Return the ids of a copy that continues under ``store_id`` from the position ``until`` on."""
        return StoreIds(store_id, [*self.former, FormerStore(self.current, until, log_epoch, copied_at)])
