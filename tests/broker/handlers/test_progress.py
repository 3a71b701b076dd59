"""
Progress and attempts: fenced, durable, and never backwards.

A lease that ends without being given back is held against one message; a reset clears it.

Every mode of a group is fenced by leases; those who keep their own progress have none here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmq.broker.handlers.progress import RESETS_A_TURN
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import (
    OK,
    BadRequest,
    Fenced,
    GroupMismatch,
    Internal,
    LockHeld,
    OffsetOutOfRange,
    QueueNotFound,
    TopicNotFound,
)
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import MAX_ENTRIES, NO_OFFSET, Commit, CommitEntry, Op, Push

from ..builders import ORDERS, files_limited_to, segment_files
from ..harness import Client, bodies, crash_copy, holder, until
from rigs.stalling_broker import StallingBroker

pytestmark = pytest.mark.virtual_time


async def test_a_commit_under_a_live_lease_is_stored(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")

        assert await client.commit(epoch, 2) == (0, None)
        assert await client.committed() == 2
        assert await client.committed(group="other") == -1


async def test_a_commit_never_goes_backwards(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")
        await client.commit(epoch, 2)

        assert (await client.commit(epoch, 1)).status == 0
        assert await client.committed() == 2


async def test_a_late_commit_does_not_undo_progress_that_rode_on_a_pull(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")
        await client.pull(3, group="g", epoch=epoch, commit=3)

        await client.commit(epoch, 1)

        assert await client.committed() == 3


@pytest.mark.parametrize("offset", [4, -1, -5, 1 << 62])
async def test_an_offset_that_the_queue_does_not_have_cannot_be_committed(broker: InMemoryBroker, offset: int) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")

        outcome = await client.commit(epoch, offset)

        assert outcome.status == BadRequest.code
        assert outcome.text == f"offset {offset} cannot be committed: orders/0 ends at 3"
        assert await client.committed() == -1


async def test_a_stale_missing_or_foreign_epoch_commits_nothing(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two:
        await two.join()
        await one.send(b"a")

        assert (await one.commit(epoch - 1, 1)).status == Fenced.code
        assert (await one.commit(None, 1)).status == Fenced.code
        assert (await two.commit(epoch, 1)).status == Fenced.code
        assert (await two.commit(None, 1)).status == Fenced.code
        assert (await one.commit(epoch, 1, group="nobody")).status == Fenced.code
        assert await one.committed() == -1


async def test_entries_of_one_commit_have_an_outcome_each(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a")
        entries = [
            CommitEntry("nothing", 0, epoch, 1), CommitEntry(*ORDERS, epoch, 1), CommitEntry("orders", 9, epoch, 1),
            CommitEntry("orders", 1, epoch, 0),
        ]  # fmt: skip

        outcomes = await client.request(Op.COMMIT, Commit("g", entries))

        assert [outcome[0] for outcome in outcomes] == [TopicNotFound.code, 0, QueueNotFound.code, Fenced.code]


async def test_a_new_owner_gets_offset_and_attempts_with_its_grant(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two:
        await two.join()
        await one.send(b"a", b"b", b"c")
        await one.commit(epoch, 1)
        await one.attempt(epoch, 1, 1)
        await one.attempt(epoch, 1, 2)
        await one.attempt(epoch, 1, 1)  # repeated after a lost answer
        await one.pull(1, group="g", epoch=epoch, commit=1)
        await one.release(epoch)

        grant = await two.acquire()

        assert (grant.committed_offset, grant.attempt_offset, grant.attempts) == (1, 1, 2)
        await two.commit(grant.epoch, 2)
        grant = await two.acquire()
        assert (grant.committed_offset, grant.attempt_offset, grant.attempts) == (2, -1, 0)


async def test_attempts_are_fenced(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two:
        await two.join()
        await one.send(b"a")

        for client, stale in ((one, epoch - 1), (one, 0), (two, epoch)):
            with pytest.raises(Fenced):
                await client.attempt(stale, 0, 1)
        assert (await one.attempt(epoch, 0, 1)).status == 0


@pytest.mark.parametrize(("offset", "attempts"), [(0, 0), (0, -1), (0, 1 << 31), (-1, 1), (1, 1), (1 << 40, 1)])
async def test_an_attempt_that_cannot_be_is_refused(broker: InMemoryBroker, offset: int, attempts: int) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a")

        with pytest.raises(BadRequest):
            await client.attempt(epoch, offset, attempts)
        with pytest.raises(QueueNotFound):
            await client.attempt(epoch, 0, 1, MessageQueue("orders", 9))


async def test_changes_wait_for_a_disk_that_cannot_be_written_and_are_answered_later(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a")
        (segment,) = segment_files(broker.broker.config.data_path())
        with files_limited_to(segment.stat().st_size):
            with pytest.raises(TimeoutError):
                await client.connection.request(Op.COMMIT, Commit("g", [CommitEntry(*ORDERS, epoch, 1)]), timeout_s=2.0)
            assert await client.request(Op.PING, []) == []  # the rest goes on

        assert (await client.commit(epoch, 1)).status == 0
        await broker.restart()
        await client.connection.wait_connected()
        assert await client.committed() == 1


GRACE_S = 5.0


OVER_S = GRACE_S + 0.2


async def die(client: Client) -> None:
    """End without a word, and let the grace pass."""
    await client.connection.close()
    await asyncio.sleep(OVER_S)


async def owner(broker: InMemoryBroker, name: str = "a") -> tuple[Client, ops.Grant]:
    client = await Client(broker, name).__aenter__()
    await client.join()
    return client, await client.acquire()


async def crash_at(broker: InMemoryBroker, *, announced: int | None = None, committed: int = -1) -> ops.Grant:
    """An owner that pulls everything, perhaps commits, perhaps announces, and dies; returns what it was granted."""
    client, grant = await owner(broker)
    await client.pull(max(grant.committed_offset, 0), group="g", epoch=grant.epoch)
    if committed >= 0:
        await client.commit(grant.epoch, committed)
    if announced is not None:
        await client.starting(grant.epoch, announced)
    await die(client)
    return grant


def marked(grant: ops.Grant) -> tuple[int, int, int]:
    return grant.abandoned, grant.suspect_offset, grant.careful_until


async def filled(broker: InMemoryBroker, count: int = 6) -> None:
    async with Client(broker, "producer") as client:
        await client.create()
        await client.send(*(b"%d" % i for i in range(count)))


async def test_a_lease_that_ended_without_unlock_marks_the_committed_offset(broker: InMemoryBroker) -> None:
    await filled(broker)
    await crash_at(broker, committed=2)

    client, grant = await owner(broker, "b")

    assert marked(grant) == (1, 2, -1)
    assert grant.attempts == 0  # it may never have been started
    await client.connection.close()


async def test_a_given_back_lease_and_one_without_messages_leave_no_mark(broker: InMemoryBroker) -> None:
    await filled(broker)
    client, grant = await owner(broker)
    await client.pull(0, group="g", epoch=grant.epoch)
    await client.release(grant.epoch)
    await client.acquire()
    await die(client)  # it has pulled nothing under this lease

    client, grant = await owner(broker, "b")

    assert marked(grant) == (0, -1, -1)
    await client.connection.close()


async def leave_and_die(broker: InMemoryBroker, *, announced: int | None = None) -> None:
    """An owner that pulls everything, perhaps announces a message, says that it is leaving, and is killed."""
    client, grant = await owner(broker)
    await client.pull(max(grant.committed_offset, 0), group="g", epoch=grant.epoch)
    if announced is not None:
        await client.starting(grant.epoch, announced)
    assert (await client.renew(grant.epoch, leaving=True)).status == OK
    await client.renew(grant.epoch)  # the beat goes on while it drains, and takes nothing back
    await die(client)


async def test_a_member_that_announced_its_leaving_is_never_counted_as_crashed(broker: InMemoryBroker) -> None:
    await filled(broker)
    with capture_logs() as logs:
        for _ in range(20):
            await leave_and_die(broker)

    client, grant = await owner(broker, "b")

    assert marked(grant) == (0, -1, -1)
    assert "lock.abandoned" not in {entry["event"] for entry in logs}
    assert sum(entry["event"] == "group.leaving" for entry in logs) == 20
    await client.connection.close()


async def test_that_a_member_is_leaving_is_answered_when_it_is_durable() -> None:
    async with StallingBroker() as broker:
        await filled(broker)
        client, grant = await owner(broker)
        broker.stall()
        leaving = asyncio.create_task(client.renew(grant.epoch, leaving=True))
        await asyncio.sleep(1.0)
        assert not leaving.done()
        assert (await client.renew(grant.epoch)).status == OK, "a beat records nothing, and waits for nothing"

        broker.go_on()

        assert (await leaving).status == OK
        await client.connection.close()


async def test_a_lease_that_expires_while_its_owner_drains_leaves_no_mark(broker: InMemoryBroker) -> None:
    await filled(broker)
    client, grant = await owner(broker)
    await client.pull(0, group="g", epoch=grant.epoch)
    await client.renew(grant.epoch, leaving=True)
    assert [row.state for row in await client.locks()] == ["held, leaving"]
    await asyncio.sleep(61)
    await client.join()

    assert marked(await client.acquire()) == (0, -1, -1)
    await client.connection.close()


async def test_leaving_members_neither_add_to_the_crashes_of_others_nor_hide_them(broker: InMemoryBroker) -> None:
    await filled(broker)
    for _ in range(3):
        await crash_at(broker, announced=0)
        await leave_and_die(broker, announced=0)

    client, grant = await owner(broker)

    assert (*marked(grant), grant.attempts) == (3, 0, 6, 3)
    await client.connection.close()


@pytest.mark.parametrize("crashes", [False, True])
async def test_what_a_member_announced_survives_a_restart_of_the_broker(
    broker: InMemoryBroker, tmp_path: Path, crashes: bool
) -> None:
    await filled(broker)
    await crash_at(broker)
    await crash_at(broker)
    client, grant = await owner(broker)
    await client.starting(grant.epoch, 0)  # so that its end would count, whatever the next start knows of its pulls
    await client.renew(grant.epoch, leaving=True)
    if crashes:
        async with crash_copy(broker, tmp_path / "copy") as again:
            await asyncio.sleep(OVER_S)
            other, grant = await owner(again, "b")
            await other.connection.close()
    else:
        await client.connection.close()
        await broker.restart()
        await asyncio.sleep(OVER_S)
        other, grant = await owner(broker, "b")
        await other.connection.close()

    assert (*marked(grant), grant.attempts) == (2, 0, 6, 0)
    await client.connection.close()


async def test_progress_that_rode_on_a_pull_counts_when_the_lease_ends(broker: InMemoryBroker) -> None:
    await filled(broker)
    client, grant = await owner(broker)
    await client.pull(0, group="g", epoch=grant.epoch)
    await client.pull(6, group="g", epoch=grant.epoch, commit=6)
    await die(client)

    client, grant = await owner(broker, "b")

    assert (grant.committed_offset, *marked(grant)) == (6, 0, -1, -1)
    await client.connection.close()


async def test_the_second_one_makes_the_queue_careful_and_announced_messages_are_convicted(
    broker: InMemoryBroker,
) -> None:
    await filled(broker)
    await crash_at(broker)
    await crash_at(broker)
    assert marked(await crash_at(broker, announced=0)) == (2, 0, 6)

    client, grant = await owner(broker)

    assert (*marked(grant), grant.attempt_offset, grant.attempts) == (3, 0, 6, 0, 1)
    await client.starting(grant.epoch, 3, 3)  # 0 to 2 are done
    assert (await client.acquire())[2:5] == (3, -1, 0)
    again = await client.acquire()
    await client.starting(again.epoch, 3)
    await die(client)
    client, grant = await owner(broker)
    assert (*marked(grant), grant.runs) == (1, 3, 6, [(3, 4, 1)])
    await client.commit(grant.epoch, 6)
    assert marked(await client.acquire()) == (0, -1, -1)
    await client.connection.close()


async def test_a_message_that_kills_convicts_none_of_another_queue_of_its_process(broker: InMemoryBroker) -> None:
    other = MessageQueue("orders", 1)
    await filled(broker)
    async with Client(broker, "producer") as producer:
        await producer.send(b"innocent", to=other)
    for crash in range(5):
        client, grant = await owner(broker)
        beside = await client.acquire(other)
        await client.pull(0, group="g", epoch=grant.epoch)
        await client.pull(0, queue=other, group="g", epoch=beside.epoch)
        if crash >= 2:
            await client.starting(grant.epoch, 0)  # the other queue's message waits for its turn
        await die(client)

    client, grant = await owner(broker)
    async with client:
        beside = await client.acquire(other)

        assert (marked(grant), grant.attempts) == ((5, 0, 6), 3)
        assert (marked(beside), beside.attempts) == ((2, 0, 1), 0)


async def test_marks_and_announcements_survive_kill_9(broker: InMemoryBroker, memory_path: Path) -> None:
    await filled(broker)
    await crash_at(broker)
    await crash_at(broker)
    client, grant = await owner(broker)
    await client.starting(grant.epoch, 1, 1)
    copy = crash_copy(broker, memory_path / "copy")
    await client.connection.close()

    async with copy:
        await asyncio.sleep(OVER_S)  # the owner does not come back
        client, grant = await owner(copy)

        assert (grant.committed_offset, *marked(grant), grant.runs) == (1, 1, 1, 6, [(1, 2, 1)])
        await client.connection.close()


async def test_an_expired_lease_of_a_connected_owner_is_abandoned_too(broker: InMemoryBroker) -> None:
    await filled(broker)
    silent, grant = await owner(broker)
    async with silent, Client(broker, "b") as other:
        await other.join()
        granted_at = asyncio.get_running_loop().time()
        await silent.pull(0, group="g", epoch=grant.epoch)
        await until(granted_at + 60.2)

        assert marked(await other.acquire()) == (1, 0, -1)
        with pytest.raises(Fenced):
            await silent.starting(grant.epoch, 0)


async def test_lock_status_shows_the_mark(broker: InMemoryBroker) -> None:
    await filled(broker)
    await crash_at(broker)
    await crash_at(broker, announced=0)
    client, _ = await owner(broker)
    async with client:
        (row,) = await client.locks()

        assert row.state == "held, retrying offset 0 (attempt 2), offset 0 abandoned 2 times, careful until 6"


async def test_a_take_over_and_a_refused_one_are_logged_with_both_owners(broker: InMemoryBroker) -> None:
    """Scenario 4: takeover logs old/new owner."""
    await filled(broker)
    one, _ = await owner(broker, "one")
    async with Client(broker, "two") as two:
        await two.join()
        with capture_logs() as logs:
            await two.acquire()
            await die(one)
            await two.acquire()

    (refused,) = [entry for entry in logs if entry["event"] == "lock.refused"]
    (taken,) = [entry for entry in logs if entry["event"] == "lock.taken_over"]
    assert (refused["owner"], refused["asked_by"]) == (one.member, two.member)
    assert (taken["former"], taken["owner"]) == (one.member, two.member)


# ---- STARTING


async def test_starting_is_fenced_and_stays_inside_what_is_left(broker: InMemoryBroker) -> None:
    await filled(broker, 3)
    client, grant = await owner(broker)
    async with client:
        await client.commit(grant.epoch, 1)

        for epoch in (grant.epoch - 1, 0):
            with pytest.raises(Fenced):
                await client.starting(epoch, 1)
        for offset, commit in ((0, -1), (3, -1), (-1, -1), (1, 2), (1, 4), (2, -7)):
            with pytest.raises(BadRequest):
                await client.starting(grant.epoch, offset, commit)
        with pytest.raises(QueueNotFound):
            await client.starting(grant.epoch, 0, queue=MessageQueue("orders", 9))
        assert await client.committed() == 1
        assert await client.starting(grant.epoch, 2, 2) == (0, None)
        assert await client.committed() == 2


# ---- attempts in runs


async def test_a_failed_batch_is_counted_message_by_message(broker: InMemoryBroker) -> None:
    await filled(broker)
    client, grant = await owner(broker)
    async with client:
        await client.attempt(grant.epoch, 0, 1, runs=[(0, 4, 1)])
        await client.attempt(grant.epoch, 0, 2, runs=[(0, 2, 2), (2, 3, 1)])
        await client.commit(grant.epoch, 1)

        grant = await client.acquire()

        assert grant.runs == [(1, 2, 2), (2, 4, 1)]
        assert (grant.attempt_offset, grant.attempts) == (1, 2)
        await client.attempt(grant.epoch, 0, 5)  # late: it is done
        assert (await client.acquire()).runs == grant.runs


@pytest.mark.parametrize(
    "runs",
    [
        [(0, 0, 1)], [(2, 1, 1)], [(-1, 1, 1)], [(0, 2, 1), (1, 3, 1)], [(2, 3, 1), (0, 1, 1)], [(0, 7, 1)],
        [(0, 1, 0)], [(0, 1, 1 << 31)],
    ],
)  # fmt: skip
async def test_runs_that_cannot_be_are_refused(broker: InMemoryBroker, runs: list[tuple[int, int, int]]) -> None:
    await filled(broker)
    client, grant = await owner(broker)
    async with client:
        with pytest.raises(BadRequest):
            await client.attempt(grant.epoch, 0, 1, runs=runs)
        assert (await client.acquire()).runs == []


async def test_a_report_has_at_most_1024_runs(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        with pytest.raises(BadRequest, match="at most 1024 entries, not 1025"):
            await client.attempt(1, 0, 1, runs=[(i, i + 1, 1) for i in range(1025)])


# ---- RESET_OFFSETS


async def test_a_reset_goes_back_and_forgets_what_was_held_against_the_queue(broker: InMemoryBroker) -> None:
    await filled(broker)
    await crash_at(broker, committed=3)
    await crash_at(broker, announced=3)
    async with Client(broker, "admin") as admin:
        assert await admin.reset(1, dry_run=True) == (0, 3, 1, None)
        assert await admin.committed() == 3

        assert await admin.reset(1) == (0, 3, 1, None)

    await broker.restart()
    client, grant = await owner(broker, "b")
    assert (grant.committed_offset, *marked(grant), grant.runs) == (1, 0, -1, -1, [])
    await client.connection.close()


async def test_a_reset_ends_the_lease_at_once_and_the_next_epoch_is_higher(broker: InMemoryBroker) -> None:
    await filled(broker)
    client, epoch = await holder(broker)
    async with client, Client(broker, "admin") as admin:
        await client.commit(epoch, 6)
        parked = asyncio.ensure_future(client.pull(6, group="g", epoch=epoch, wait_ms=15_000))
        await client.pull(6, group="g", epoch=epoch, commit=6)
        began = asyncio.get_running_loop().time()

        assert (await admin.reset(2)).status == 0
        answer = await parked

        assert answer.status == Fenced.code
        assert asyncio.get_running_loop().time() - began < 1.0
        assert client.of(Push.LEASE_FREE) == [["g", "orders", 0]], "an owner that does not pull learns it by this"
        assert (await client.commit(epoch, 6)).status == Fenced.code
        with pytest.raises(Fenced):
            await client.attempt(epoch, 2, 1)
        grant = await client.acquire()
        assert (grant.committed_offset, grant.epoch > epoch) == (2, True)


async def test_a_reset_queue_is_not_granted_while_its_owner_may_be_within_a_call(
    broker: InMemoryBroker,
) -> None:
    await filled(broker)
    client, epoch = await holder(broker)
    async with client, Client(broker, "b") as other, Client(broker, "admin") as admin:
        await other.join()
        await admin.reset(2)
        assert (await client.commit(epoch, 6)).status == Fenced.code
        await asyncio.sleep(59.9)
        assert (await other.acquire()).status == LockHeld.code

        await asyncio.sleep(0.3)
        assert (await other.acquire()).status == OK
        assert (await client.join()).members == (await other.join()).members, "it is not taken for silent"


async def test_an_owner_that_gives_back_a_queue_that_was_reset_frees_it_at_once(broker: InMemoryBroker) -> None:
    await filled(broker)
    client, epoch = await holder(broker)
    async with client, Client(broker, "b") as other, Client(broker, "admin") as admin:
        await other.join()
        await admin.reset(2)
        await client.release(epoch, 6)

        grant = await other.acquire()
        assert (grant.status, grant.committed_offset, *marked(grant)) == (OK, 2, 0, -1, -1)


async def test_an_owner_that_dies_after_a_reset_leaves_no_mark(broker: InMemoryBroker) -> None:
    await filled(broker)
    client, grant = await owner(broker)
    await client.pull(0, group="g", epoch=grant.epoch)
    async with Client(broker, "admin") as admin:
        await admin.reset(2)
    await die(client)

    client, grant = await owner(broker, "b")

    assert (grant.committed_offset, *marked(grant)) == (2, 0, -1, -1)
    await client.connection.close()


async def test_progress_that_rides_does_not_undo_a_reset(broker: InMemoryBroker) -> None:
    await filled(broker)
    client, epoch = await holder(broker)
    async with client, Client(broker, "admin") as admin:
        await client.pull(6, group="g", epoch=epoch, commit=6)
        assert await admin.reset(0) == (0, 6, 0, None)
        await asyncio.sleep(1.0)

        assert await admin.committed() == 0


async def test_a_reset_of_several_queues_has_a_result_each(broker: InMemoryBroker) -> None:
    await filled(broker, 3)
    async with Client(broker, "admin") as admin:
        entries = [("orders", 0, 3), ("orders", 0, 4), ("orders", 0, -1), ("orders", 9, 0), ("nothing", 0, 0)]

        results = await admin.request(
            Op.RESET_OFFSETS, ops.ResetOffsets("never-seen", [ops.ResetEntry(*entry) for entry in entries])
        )

        codes = [0, OffsetOutOfRange.code, OffsetOutOfRange.code, QueueNotFound.code, TopicNotFound.code]
        assert [result[0] for result in results] == codes
        assert results[1][3] == "offset 4 is out of range: orders/0 holds 0 to 3, choose one of these"
        assert await admin.committed(group="never-seen") == 3


OVER_S_MODES = 5.2  # longer than the grace


CONCURRENT = {"ordered": False, "model": "clustering"}


ASSIGNED = {"ordered": True, "model": "assigned"}


BROADCASTING = {"ordered": True, "model": "broadcasting"}


async def member(broker: InMemoryBroker, name: str = "m", **mode: object) -> tuple[Client, ops.Grant]:
    """A member of the group that asks for orders/0, in which two messages lie."""
    client = await Client(broker, name).__aenter__()
    await client.create()
    if (await client.range()).max_offset == 0:
        await client.send(b"a", b"b")
    await client.join(**mode)  # type: ignore[arg-type]
    return client, await client.acquire()


@pytest.mark.parametrize("mode", [CONCURRENT, ASSIGNED], ids=["concurrent", "assigned"])
async def test_pulls_and_commits_of_every_mode_are_fenced(broker: InMemoryBroker, mode: dict[str, object]) -> None:
    client, grant = await member(broker, **mode)
    async with client:
        for stale in (None, 0, grant.epoch - 1, grant.epoch + 1):
            assert (await client.pull(0, group="g", epoch=stale)).status == Fenced.code
            assert (await client.commit(stale, 1)).status == Fenced.code

        assert bodies(await client.pull(0, group="g", epoch=grant.epoch)) == [b"a", b"b"]
        assert (await client.commit(grant.epoch, 1)).status == 0
        await client.release(grant.epoch)
        assert (await client.commit(grant.epoch, 2)).status == Fenced.code
        assert (await client.commit(None, 2)).status == Fenced.code
        assert await client.committed() == 1


@pytest.mark.parametrize("mode", [CONCURRENT, ASSIGNED], ids=["concurrent", "assigned"])
async def test_a_queue_of_every_mode_has_one_owner(broker: InMemoryBroker, mode: dict[str, object]) -> None:
    one, grant = await member(broker, **mode)
    two, refused = await member(broker, "two", **mode)
    async with one, two:
        assert (refused.status, refused.text) == (151, f"held by {one.member}")

        await one.release(grant.epoch, 1)
        second = await two.acquire()

        assert (second.status, second.committed_offset) == (0, 1)
        assert (await one.commit(grant.epoch, 2)).status == Fenced.code


async def test_who_holds_a_queue_keeps_it_whatever_the_group_has_become(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "two") as two:
        await one.send(b"a", b"b")
        await one.join(ordered=False)  # it is alone, and may change its mind
        await two.join(ordered=False)

        assert (await two.commit(None, 1)).status == Fenced.code
        assert (await two.pull(0, group="g")).status == Fenced.code
        assert (await one.commit(epoch, 1)).status == 0
        await one.join(ordered=False)


async def test_the_mode_of_a_group_without_members_does_not_matter(broker: InMemoryBroker, memory_path: Path) -> None:
    """After a crash nobody has joined yet: who holds a lease goes on, who does not is fenced."""
    owner, grant = await member(broker, **CONCURRENT)
    session = owner.connection.session
    async with crash_copy(broker, memory_path / "copy") as after:
        async with Client(after, "other") as other:
            assert (await other.pull(0, group="g")).status == Fenced.code
            await other.join(ordered=False)
            assert (await other.commit(None, 2)).status == Fenced.code
            await other.leave()
        again = Client(after)
        again.connection.session = session
        async with again:
            assert bodies(await again.pull(0, group="g", epoch=grant.epoch)) == [b"a", b"b"]
            assert (await again.commit(grant.epoch, 1)).status == 0
    await owner.connection.close()


# ---- broadcasting


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_broadcasting_group_commits_nothing_and_locks_nothing(broker: InMemoryBroker, ordered: bool) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a")
        await client.join(ordered=ordered, model="broadcasting")

        refused = await client.commit(None, 1)
        assert (refused.status, refused.text) == (
            GroupMismatch.code,
            "group 'g' is broadcasting: its members keep their progress themselves, and pull without a group",
        )
        assert (await client.commit(7, 1)).status == GroupMismatch.code
        assert (await client.pull(0, group="g")).status == GroupMismatch.code
        with pytest.raises(GroupMismatch, match="share all queues and lock none"):
            await client.acquire()
        assert bodies(await client.pull(0)) == [b"a"]
        assert await client.committed() == NO_OFFSET


async def test_a_broadcasting_group_that_begins_at_the_end_leaves_no_progress_here(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a")

        await client.request(Op.JOIN, ops.Join("g", True, "broadcasting", "average", {"orders": "*"}, ["orders"]))

        assert await client.committed() == NO_OFFSET


async def test_a_lease_from_before_a_group_began_to_broadcast_is_good_to_its_end(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one:
        await one.send(b"a")
        await one.join(model="broadcasting")

        assert (await one.commit(epoch - 1, 1)).status == Fenced.code
        assert (await one.commit(epoch, 1)).status == 0
        await one.release(epoch)
        assert (await one.commit(epoch, 1)).status == GroupMismatch.code


# ---- marks


async def abandon(broker: InMemoryBroker, **mode: object) -> ops.Grant:
    """An owner that pulls everything and dies; returns what it was granted."""
    client, grant = await member(broker, **mode)
    await client.pull(max(grant.committed_offset, 0), group="g", epoch=grant.epoch)
    await client.connection.close()
    await asyncio.sleep(OVER_S_MODES)
    return grant


async def test_a_concurrent_lease_that_is_abandoned_leaves_no_mark(broker: InMemoryBroker) -> None:
    for _ in range(3):
        grant = await abandon(broker, **CONCURRENT)
        assert (grant.abandoned, grant.suspect_offset, grant.careful_until) == (0, -1, -1)

    grant = await abandon(broker)  # ordered from now on
    assert (grant.abandoned, grant.suspect_offset) == (0, -1)
    client, grant = await member(broker)
    assert (grant.abandoned, grant.suspect_offset) == (1, 0)
    await client.connection.close()


async def test_that_a_lease_is_concurrent_survives_a_crash(broker: InMemoryBroker, memory_path: Path) -> None:
    owner, grant = await member(broker, **CONCURRENT)
    session = owner.connection.session
    async with crash_copy(broker, memory_path / "copy") as after:
        again = Client(after)
        again.connection.session = session
        async with again:
            await again.pull(0, group="g", epoch=grant.epoch)
        await asyncio.sleep(OVER_S_MODES)
        client, second = await member(after)
        assert (second.status, second.abandoned, second.suspect_offset) == (0, 0, -1)
        await client.connection.close()
    await owner.connection.close()


async def test_a_concurrent_owner_counts_and_gets_no_attempts(broker: InMemoryBroker) -> None:
    ordered, grant = await member(broker)
    async with ordered:
        await ordered.attempt(grant.epoch, 0, 3)
        await ordered.leave(ops.LeaseEnd(*ORDERS, grant.epoch))
    client, grant = await member(broker, **CONCURRENT)
    async with client:
        assert (grant.attempts, grant.attempt_offset, grant.runs) == (0, -1, [])
        assert [row.state for row in await client.locks("g")] == ["held"]
        with pytest.raises(GroupMismatch, match="'g' is concurrent: a message that fails is sent back"):
            await client.attempt(grant.epoch, 0, 4)
        with pytest.raises(GroupMismatch, match="is concurrent"):
            await client.starting(grant.epoch, 0)
        await client.blip()
        assert [(lease.attempts, lease.runs) for lease in client.hello.leases] == [(0, [])]
        await client.leave(ops.LeaseEnd(*ORDERS, grant.epoch))
    ordered, grant = await member(broker)
    async with ordered:
        assert (grant.attempt_offset, grant.attempts) == (0, 3)


async def test_an_offset_reset_fences_a_concurrent_owner(broker: InMemoryBroker) -> None:
    client, grant = await member(broker, **CONCURRENT)
    async with client:
        await client.commit(grant.epoch, 2)

        assert (await client.reset(0))[:3] == (0, 2, 0)

        assert (await client.commit(grant.epoch, 2)).status == Fenced.code
        assert (await client.pull(0, group="g", epoch=grant.epoch)).status == Fenced.code
        assert (await client.renew(grant.epoch)).status == Fenced.code
        again = await client.acquire()
        assert (again.status, again.committed_offset) == (0, 0)
        assert again.epoch > grant.epoch


async def test_a_group_changes_its_mode_when_its_last_member_has_left(broker: InMemoryBroker) -> None:
    one, grant = await member(broker)
    two, _ = await member(broker, "two")
    async with one, two:
        for mode in (CONCURRENT, ASSIGNED, BROADCASTING):
            with pytest.raises(GroupMismatch):
                await two.join(**mode)  # type: ignore[arg-type]
        await two.leave()
        await one.leave(ops.LeaseEnd(*ORDERS, grant.epoch, 1))

        for mode in (CONCURRENT, ASSIGNED):
            await two.join(**mode)  # type: ignore[arg-type]
            grant = await two.acquire()
            assert (grant.status, grant.committed_offset) == (0, 1)
            await two.leave(ops.LeaseEnd(*ORDERS, grant.epoch))
        await two.join(**BROADCASTING)  # type: ignore[arg-type]


# ---- a reset of many queues is cut into turns: its work is counted here, in changes and lines of the log a turn


CHANGES = 2  # of each queue with an owner: the end of the lease, the offset


TURNS = MAX_ENTRIES // RESETS_A_TURN


def entries(count: int = MAX_ENTRIES) -> list[ops.ResetEntry]:
    return [ops.ResetEntry("orders", queue_id, 0) for queue_id in range(count)]


async def owner_turns(broker: InMemoryBroker) -> Client:
    """A member that holds all queues of a topic with as many as a request may name."""
    client = await Client(broker, "owner").__aenter__()
    await client.create(queues=MAX_ENTRIES)
    await client.join()
    refs = [ops.QueueRef("orders", queue_id) for queue_id in range(MAX_ENTRIES)]
    grants = await client.request(Op.ACQUIRE, ops.Acquire("g", refs))
    assert {grant[0] for grant in grants} == {0}
    return client


def watch_changes(broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many changes each turn has brought into the log from now on."""
    store, staged = broker.broker._store, []
    stage = store.stage_changes

    def counted(changes: Sequence[Any]) -> None:
        staged.append(len(changes))
        stage(changes)

    monkeypatch.setattr(store, "stage_changes", counted)
    return staged


async def test_a_reset_of_1024_queues_costs_each_turn_64_queues_and_a_few_lines_of_the_log(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = await owner_turns(broker)
    async with Client(broker, "admin") as admin:
        staged = watch_changes(broker, monkeypatch)
        with capture_logs() as lines:
            results = await admin.request(Op.RESET_OFFSETS, ops.ResetOffsets("g", entries()))

    assert [result[0] for result in results] == [0] * MAX_ENTRIES
    assert max(staged) <= CHANGES * RESETS_A_TURN
    assert sum(staged) == CHANGES * MAX_ENTRIES
    events = Counter(line["event"] for line in lines)
    assert (events["offset.reset"], events["lock.revoked"]) == (TURNS, TURNS)
    await member.connection.close()


async def test_the_log_names_every_queue_with_its_old_and_its_new_offset(broker: InMemoryBroker) -> None:
    async with Client(broker, "admin") as admin:
        await admin.create(queues=100)
        await admin.request(Op.RESET_OFFSETS, ops.ResetOffsets("g", entries(100)))
        with capture_logs() as lines:
            await admin.request(Op.RESET_OFFSETS, ops.ResetOffsets("g", entries(100)))

    told = " ".join(line["offsets"] for line in lines if line["event"] == "offset.reset").split()
    assert told == [f"orders/{queue_id}:0>0" for queue_id in range(100)]


def reset(client: Client, **changed: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(client.request(Op.RESET_OFFSETS, ops.ResetOffsets("g", entries(), **changed)))


async def begun(broker: InMemoryBroker) -> None:
    """Wait until the first queue was reset."""
    while broker.broker._ledger.offsets.get("g", MessageQueue("orders", 0)):
        await asyncio.sleep(0)


def is_reset(broker: InMemoryBroker) -> bool:
    """Whether the last queue was reset."""
    return broker.broker._ledger.offsets.get("g", MessageQueue("orders", MAX_ENTRIES - 1)) == 0


async def test_what_comes_after_a_reset_on_its_connection_waits_for_all_of_it(broker: InMemoryBroker) -> None:
    async with Client(broker, "admin") as admin:
        await admin.create(queues=MAX_ENTRIES)
        running = reset(admin)
        last = asyncio.create_task(admin.committed(MessageQueue("orders", MAX_ENTRIES - 1)))

        assert await last == 0
        assert len(await running) == MAX_ENTRIES


async def test_other_connections_are_served_between_the_turns_of_a_reset(broker: InMemoryBroker) -> None:
    async with Client(broker, "admin") as admin, Client(broker, "other") as other:
        await admin.create(queues=MAX_ENTRIES)
        running = reset(admin)
        await begun(broker)

        await other.request(Op.PING, ())

        assert not is_reset(broker)
        assert len(await running) == MAX_ENTRIES
        assert is_reset(broker)


async def test_a_reset_is_completed_though_its_connection_ends_meanwhile(broker: InMemoryBroker) -> None:
    async with Client(broker, "admin") as admin:
        await admin.create(queues=MAX_ENTRIES)
        running = reset(admin)
        await begun(broker)
        assert not is_reset(broker)
    await asyncio.gather(running, return_exceptions=True)

    await asyncio.sleep(1.0)

    assert is_reset(broker)


async def test_a_defect_in_a_later_turn_is_answered_and_the_connection_goes_on(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(broker, "admin") as admin:
        await admin.create(queues=MAX_ENTRIES)
        ledger = broker.broker._ledger
        monkeypatch.setattr(ledger, "reset", lambda group, queue, offset: [] if queue.queue_id < 100 else 1 // 0)

        with pytest.raises(Internal):
            await reset(admin)

        await admin.request(Op.PING, ())


async def test_a_dry_run_changes_nothing(broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Client(broker, "admin") as admin:
        await admin.create(queues=MAX_ENTRIES)
        staged = watch_changes(broker, monkeypatch)

        results = await reset(admin, dry_run=True)

        assert results == [[0, -1, 0, None]] * MAX_ENTRIES
        assert sum(staged) == 0
