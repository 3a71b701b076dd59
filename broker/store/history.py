"""
Which history a log is: gives a copied data directory ids of its own, and numbers the starts of a broker.

A copy and its original store different messages from the copy's first start on. The copy takes a new store id, so
that message ids and readers' positions of the two are not confused, and higher log epochs than the original has used.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from rmq.wire.errors import LogTruncated, OtherHistory, Refused
from rmq.wire.model import MessageQueue
from rmq.wire.stores import MAX_LOG_EPOCH, StoreIds

from .changes import Started
from .commitlog import CommitLog
from .consume_queue import ConsumeQueue
from .directory import DataDirectory, LogIdentity, StoreError, new_store_id

EPOCHS_SINCE = 1_767_225_600  # 2026-01-01T00:00:00Z: seconds since then stay below 2^31 until the year 2094
COPY_STEP = 1 << 21  # 24 days: how far the original's clock may have been ahead
EPOCH_SPREAD = 1 << 12  # where the clock is below the epochs, two starts after the same one differ by chance
MAX_FORMER = 64  # where inodes are not stable, every start adds one
_CLOCK_LIMIT = MAX_LOG_EPOCH - (1 << 24)  # a clock beyond is wrong, and must not use up all epochs


class Parted(NamedTuple):
    """
    The offset up to which a reader and a queue agree; ``is_copy``: a copy parts them, else a crash of the broker.

    Without ``is_known`` nothing shows how far they agree, and the offset is the first that the queue has.
    """

    offset: int
    is_copy: bool
    is_known: bool = True


class PositionRefused(Refused):
    """A reader's position is not of this log; ``next_offset`` is where the two part."""

    def __init__(self, code: int, text: str, next_offset: int) -> None:
        super().__init__(text, code=code)
        self.next_offset = next_offset


class History(NamedTuple):
    """
    What one start of a broker stores messages under.

    ``start_id`` is random: it distinguishes two starts that have the same log epoch. ``is_copy``: this is the first
    start on a copy of another store. ``accepted``: an operator lets readers of another history continue in this one.
    """

    stores: StoreIds
    log_epoch: int
    start_id: int
    place: LogIdentity
    is_copy: bool
    accepted: bool = False

    def parted(self, queue: ConsumeQueue, log_epoch: int, offset: int) -> Parted | None:
        """
        Return where ``queue`` and a reader part that has the message before ``offset`` from ``log_epoch``.

        None if they agree. Under a later epoch a queue continued where it then ended: a reader that was further has
        what a crash lost, or what the original of a copy stored. For example, the original stored 0 to 9 under epoch 1
        and was backed up, and the reader has 10 to 19 of it from epoch 2; the copy stored 10 to 14 under epoch 3. The
        reader asks for 20 with epoch 2: epoch 3 began at 10, so they part there. Of an epoch that this log has not
        reached nothing shows how far the two agree.
        """
        if log_epoch > self.log_epoch:
            return Parted(queue.min_offset, is_copy=True, is_known=False)
        epoch, end = queue.epoch_after(log_epoch) or (self.log_epoch, queue.readable)
        is_copy = any(log_epoch < former.log_epoch <= epoch for former in self.stores.former)
        # The copy may have begun before what the queue remembers.
        is_known = not (is_copy and queue.forgot_epochs and epoch == queue.epochs[0])
        if not is_known:
            end = queue.min_offset
        if offset <= end or epoch <= log_epoch:
            return None
        return Parted(end, is_copy, is_known)

    def check(self, queue: ConsumeQueue, of: MessageQueue, log_epoch: int, offset: int, *, in_group: bool) -> None:
        """
        Refuse a reader whose position is not of this log.

        After a crash, and in a group, whose progress is in the log, it continues at ``next_offset`` (LOG_TRUNCATED).
        Any other reader of a copy stops (OTHER_HISTORY), until an operator accepts this history.

        Raises:
            PositionRefused: with that code.
        """
        parted = self.parted(queue, log_epoch, offset)
        if parted is None:
            return
        code, end = LogTruncated.code, parted.offset
        text = f"this store is a copy: {of} is what the reader has read up to offset {end}, not {offset}"
        if not parted.is_copy:
            text = (
                f"the log lost {of} from offset {end} on, which this reader has got: the broker went down before it "
                "was on the disk"
            )
        elif not parted.is_known:
            text = f"this store is a copy: nothing shows how far it has what the reader has read of {of} up to {offset}"
        if parted.is_copy and not in_group and not self.accepted:
            code = OtherHistory.code
            text += f"; `rmq-admin broker accept-history` lets readers continue at {end}"
        raise PositionRefused(code, text, end)

    def started(self, grace_s: float) -> Started:
        """Return the change that this start is in the log."""
        stores = self.stores
        return Started(stores.current, self.log_epoch, grace_s, *self.place, stores.former, self.accepted)


NO_HISTORY = History(StoreIds(0), 0, 0, LogIdentity(), is_copy=False)


def history_of(last: Started | None) -> History:
    """Return the history of a log that is only read, as its last start has it."""
    if last is None:
        return NO_HISTORY
    return NO_HISTORY._replace(stores=last.stores, log_epoch=last.log_epoch, accepted=last.accepted)


def begin_history(
    directory: DataDirectory, log: CommitLog, last: Started | None, last_epoch: int, wall_us: int
) -> History:
    """
    Decide what a start stores messages under; ``last`` is the start before it, as the recovered ``log`` has it.

    Raises:
        StoreError: no log epoch is left.
        OSError: the name of a new store cannot be written.
    """
    place = directory.place()
    is_copy = last is not None and directory.is_copy_of(LogIdentity(last.inode, last.born_ns))
    spread = secrets.randbelow(EPOCH_SPREAD)
    log_epoch = next_log_epoch(last_epoch, wall_us, spread, COPY_STEP + spread if is_copy else 0)
    if last is None:
        stores = StoreIds(directory.name(None))
    elif is_copy:
        former = last.former
        while len(former) >= MAX_FORMER and former[0].until <= log.start:  # no message of it is left
            former = former[1:]
        stores = StoreIds(last.store_id, former).copied(new_store_id(), log.written, log_epoch, wall_us)
    else:
        stores = StoreIds(directory.name(last.store_id), last.former)
    accepted = last is not None and last.accepted and not is_copy
    return History(stores, log_epoch, secrets.randbits(63), place, is_copy, accepted)


def next_log_epoch(last: int, wall_us: int, spread: int = 0, step: int = 0) -> int:
    """
    Return the log epoch of a start: above the last one, and above those of the same log's other copies.

    The clock keeps epochs of two copies apart that were started at different times. A recognised copy goes a ``step``
    further, so that a clock that stands still, or was ahead when the original was started, does no harm. While the
    clock is below the epochs, as for weeks after such a step, only ``spread``, which is random, keeps those of a copy
    that was not recognised apart.

    Raises:
        StoreError: none is left.
    """
    seconds = wall_us // 1_000_000 - EPOCHS_SINCE
    epoch = seconds if last < seconds <= _CLOCK_LIMIT else last + 1 + spread
    if epoch + step <= _CLOCK_LIMIT:
        epoch += step
    if last >= MAX_LOG_EPOCH:
        raise StoreError(f"log epoch {last} was the last one of this store: move its messages to a new data_dir")
    return min(epoch, MAX_LOG_EPOCH)
