"""Progress and attempts: fenced, durable, and never backwards."""

from __future__ import annotations

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadRequest, Fenced, QueueNotFound, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Commit, CommitEntry, Op

from ..builders import ORDERS, files_limited_to, segment_files
from ..harness import Client, holder

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
