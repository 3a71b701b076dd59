"""The parts of a consumer together: what the broker says reaches the part that it is for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import ConsumeContext, ConsumeStatus
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op, Push

from .fake_broker import FakeBroker
from .recorder import QUEUE, SUCCESS, SUSPEND, Make, Messages, Recorder, now, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def take_away(broker: FakeBroker, *queue_ids: int) -> None:
    """The broker ends leases, as a reset of offsets does, and says so in one go."""
    for queue_id in queue_ids:
        del broker.leases["g", MessageQueue("t", queue_id)]
    for queue_id in queue_ids:
        broker.connections[0].push(Push.LEASE_FREE, ("g", "t", queue_id))


def renewals(broker: FakeBroker) -> list[int]:
    """How many leases each renewal was for."""
    return [len(request.payload[1]) for request in broker.requests if request.op is Op.RENEW]


async def test_a_queue_that_is_not_pulled_learns_at_once_that_its_lease_was_ended(
    broker: FakeBroker, make: Make
) -> None:
    """A paused one, or one in a crash loop, has no pull that would be fenced; its next renewal may be 20 s away."""
    broker.create("t", 3)
    async with make(topics={"t": "*"}) as consumer:
        await asyncio.sleep(1.5)
        consumer.pause("t")
        await asyncio.sleep(0.5)
        epochs = [queue["epoch"] for queue in consumer.running_info()["queues"]]
        before = len(renewals(broker))

        take_away(broker, 0, 2)
        await asyncio.sleep(0.5)

        after = [queue["epoch"] for queue in consumer.running_info()["queues"]]
        assert [old == new for old, new in zip(epochs, after, strict=True)] == [False, True, False]
        assert renewals(broker)[before:] == [2]


async def test_a_running_call_learns_at_once_that_its_lease_was_ended(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"])
    lost_after: list[float] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        began = now()
        await context.lost.wait()
        lost_after.append(now() - began)
        return SUCCESS

    async with make(listener, topics={"t": "*"}, cache_messages=1, pull_when_drained=True):
        await asyncio.sleep(1.5)
        take_away(broker, 0)
        await asyncio.sleep(0.1)

    assert lost_after[0] == pytest.approx(1.5, abs=0.1)


async def test_a_lease_that_was_called_free_and_is_ours_goes_on(broker: FakeBroker, make: Make) -> None:
    """What the broker says may be older than what it has granted since."""
    broker.create("t")
    listener = Recorder()
    async with make(listener, topics={"t": "*"}) as consumer:
        await asyncio.sleep(0.5)
        (before,) = consumer.running_info()["queues"]
        broker.connections[0].push(Push.LEASE_FREE, ("g", "t", 0))
        broker.send("t", 0, b"x")
        await asyncio.sleep(0.2)

        (after,) = consumer.running_info()["queues"]
        assert after["epoch"] == before["epoch"]
        assert listener.offsets == [0]


async def test_a_free_queue_of_another_group_or_of_nobody_is_asked_for_by_no_renewal(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    async with make(topics={"t": "*"}):
        await asyncio.sleep(0.5)
        broker.connections[0].push(Push.LEASE_FREE, ("other", "t", 0))
        broker.connections[0].push(Push.LEASE_FREE, ("g", "t", 7))
        await asyncio.sleep(0.2)

        assert renewals(broker) == []


# A stop: what runs is waited for as long as is wished, everything goes with one request, and twice is as once


@pytest.mark.parametrize(
    ("drain_s", "stopped_at", "committed"), [(0.0, 0.5, 0), (0.4, 0.9, 0), (0.6, 1.0, 1), (2.0, 1.0, 1)]
)
async def test_a_running_call_has_the_time_to_drain_and_no_more(
    broker: FakeBroker, make: Make, drain_s: float, stopped_at: float, committed: int
) -> None:
    """RocketMQ waits 0 s unless told otherwise; here 30 s."""
    broker.create("t", bodies=[b"a", b"b"])
    listener = Recorder(takes_s=1.0)
    consumer = make(listener, topics={"t": "*"}, drain_s=drain_s)

    async with consumer:
        await asyncio.sleep(0.5)
        await consumer.stop()
        assert now() == pytest.approx(stopped_at)

    assert listener.offsets == [0]
    assert broker.offsets["g", QUEUE] == committed
    assert broker.holder("g", QUEUE) is None


async def test_nothing_is_asked_after_the_request_that_commits_unlocks_and_leaves(
    broker: FakeBroker, make: Make
) -> None:
    """RocketMQ unlocks first and persists afterwards; here one acknowledged request does both, then we leave."""
    broker.create("t", 5)
    for queue_id in range(5):
        broker.send("t", queue_id, b"a", b"b")
    consumer = make(Recorder(takes_s=1.0), topics={"t": "*"}, commit_every_s=5.0)

    async with consumer:
        await asyncio.sleep(1.5)
        await consumer.stop()

    last = broker.requests[-1]
    assert last.op is Op.LEAVE
    assert sorted((end.queue_id, end.queue_offset) for end in last.payload.leases) == [(i, 2) for i in range(5)]
    assert Op.RELEASE not in {request.op for request in broker.requests}
    assert broker.leases == {}


async def test_a_stop_that_has_to_wait_for_a_call_is_announced_first_and_after_every_reconnect(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 2, bodies=[b"a"])
    consumer = make(Recorder(takes_s=10.0), topics={"t": "*"}, relock_first_s=20.0)

    async with consumer:
        await asyncio.sleep(1)
        stopping = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(1)
        broker.go_down()
        await asyncio.sleep(1)
        broker.come_up()
        await stopping

    announced = [
        (request.at, len(request.payload.leases), request.payload.leaving) for request in broker.sent(Op.RENEW)
    ]
    assert announced == [(1.0, 2, True), (3.0, 2, True)]
    assert broker.requests[-1].op is Op.LEAVE


async def test_a_stop_that_waits_for_nothing_announces_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])

    await run_for(0.5, make(Recorder(), topics={"t": "*"}))

    assert broker.sent(Op.RENEW) == []
    assert broker.leases == {}


async def test_a_second_stop_does_nothing_and_one_beside_the_first_waits_for_it(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    consumer = make(Recorder(takes_s=3.0), topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        await asyncio.gather(consumer.stop(), consumer.stop())
        assert now() == pytest.approx(3.0)
        before = len(broker.requests)
        await consumer.stop()

    assert len(broker.requests) == before
    assert len(broker.sent(Op.LEAVE)) == 1


async def test_a_stop_during_the_pause_of_a_failed_message_waits_for_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    consumer = make(Recorder(*[SUSPEND] * 9), topics={"t": "*"}, suspend_s=30.0)

    async with consumer:
        await asyncio.sleep(1)
        await consumer.stop()
        assert now() == pytest.approx(1.0)

    assert broker.runs["g", QUEUE] == {0: 1}


async def test_a_stop_of_a_queue_that_stands_still_waits_for_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    broker.suspicions["g", QUEUE] = (5, 0, 1)
    consumer = make(Recorder(), topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        assert consumer.stopped_queues
        await consumer.stop()
        assert now() == pytest.approx(1.0)

    assert broker.holder("g", QUEUE) is None


# A connection that breaks: during a stop, during a drain, and for good


async def listener(messages: Any, context: Any) -> ConsumeStatus:
    return ConsumeStatus.SUCCESS


# Stop against reconnect, in both orders
async def test_a_connection_lost_during_the_last_request_is_waited_for_and_the_request_sent_again(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a"])
    hold = broker.hold_request(Op.LEAVE)
    consumer = make(Recorder(), topics={"t": "*"}, commit_every_s=5)

    async with consumer:
        await asyncio.sleep(1)
        stopping = asyncio.ensure_future(consumer.stop())
        await hold.reached.wait()
        broker.go_down()
        await asyncio.sleep(1)
        broker.come_up()
        await stopping
        hold.let_go.set()

    assert len(broker.sent(Op.LEAVE)) == 2
    assert broker.leases == {}
    assert broker.offsets["g", QUEUE] == 1


async def test_a_stop_while_disconnected_waits_for_the_broker_and_then_gives_up(broker: FakeBroker, make: Make) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.go_down()
        await asyncio.sleep(1)

    assert asyncio.get_running_loop().time() == pytest.approx(5.0)
    assert broker.sent(Op.LEAVE) == []


async def test_a_reconnect_during_the_drain_keeps_the_leases_until_the_call_has_ended(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a"])
    consumer = make(Recorder(takes_s=10.0), topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        stopping = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(1)
        broker.go_down()
        await asyncio.sleep(2)
        broker.come_up()
        await stopping

    assert broker.offsets["g", QUEUE] == 1
    assert broker.leases == {}


# Reconnect
async def test_a_lease_the_broker_lists_goes_on_and_is_renewed_at_once(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    recorder = Recorder()

    async with make(recorder, topics={"t": "*"}) as consumer:
        await asyncio.sleep(2)
        broker.go_down()
        await asyncio.sleep(1)
        broker.come_up()
        broker.send("t", 0, b"a")
        await asyncio.sleep(1)
        assert consumer.assignment == [QUEUE]

    assert len(broker.sent(Op.ACQUIRE)) == 1
    assert broker.times(Op.RENEW) == [1.0, 3.0]
    assert broker.times(Op.JOIN) == [0.0, 0.0, 3.0]
    assert recorder.times == [3.0]


async def test_a_blip_below_the_grace_moves_no_queue_restarts_no_message_and_keeps_the_attempts(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 2)
    broker.send("t", 0, b"a", b"b")  # the first fails three times
    broker.send("t", 1, *[b"x"] * 4)  # one call runs through the blip
    recorders = [Recorder(*[ConsumeStatus.SUSPEND] * 3), Recorder(takes_s=3.0)]

    async def listener(messages: Any, context: Any) -> Any:
        return await recorders[context.queue.queue_id](messages, context)

    async with make(listener, topics={"t": "*"}) as consumer:
        await asyncio.sleep(2)
        epochs = {queue: held.epoch for (_, queue), held in broker.leases.items()}
        broker.go_down()
        await asyncio.sleep(3.9)
        broker.come_up()
        await asyncio.sleep(15)
        assert len(consumer.assignment) == 2
        assert {queue: held.epoch for (_, queue), held in broker.leases.items()} == epochs

    assert len(broker.sent(Op.ACQUIRE)) == 1
    assert recorders[0].offsets == [0, 0, 0, 0, 1]
    assert recorders[0].attempts == [1, 2, 3, 4, 1]
    assert recorders[1].offsets == [0, 1, 2, 3]
    # What was cached is not fetched again: each queue was asked for at its end.
    asked = [request.payload.queues[0][1:3] for request in broker.sent(Op.PULL)]
    assert {offset for queue_id, offset in asked if queue_id == 1} == {0, 4}


async def test_a_queue_that_could_not_be_pulled_without_a_connection_is_not_taken_for_a_dead_one(
    broker: FakeBroker, make: Make
) -> None:
    broker.grace_s = 300.0
    broker.create("t")
    recorder = Recorder(takes_s=200.0)
    broker.send("t", 0, b"a", b"b")

    async with make(recorder, topics={"t": "*"}, drain_s=0.0, relock_every_s=29.0):
        await asyncio.sleep(10)
        broker.go_down()
        await asyncio.sleep(130)  # longer than pull_expiry_s
        broker.come_up()
        await asyncio.sleep(100)

    assert len(broker.sent(Op.ACQUIRE)) == 1
    assert recorder.offsets == [0, 1]


async def test_a_lease_the_broker_does_not_list_is_lost_and_begun_anew(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b", b"c"])
    recorder = Recorder(takes_s=2.0)

    async with make(recorder, topics={"t": "*"}):
        await asyncio.sleep(3)
        broker.go_down()
        broker.leases.clear()
        await asyncio.sleep(2)
        broker.come_up()
        await asyncio.sleep(20)

    # The calls that ended after the connection were of the lost lease: from the first of them on all comes again.
    assert recorder.offsets == [0, 1, 2, 1, 2]
    assert broker.offsets["g", QUEUE] == 3


async def test_a_lease_listed_with_another_epoch_is_not_ours(broker: FakeBroker, make: Make) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}) as consumer:
        await asyncio.sleep(0.2)
        broker.go_down()
        broker.leases["g", QUEUE].epoch = 77
        holds = [broker.hold_request(Op.RENEW), broker.hold_request(Op.PULL)]  # the greeting alone has to tell
        broker.come_up()
        await asyncio.sleep(0.2)
        assert consumer.assignment == [QUEUE]
        for hold in holds:
            hold.let_go.set()

    assert len(broker.sent(Op.ACQUIRE)) == 2


async def test_a_lease_listed_that_we_neither_have_nor_want_is_given_back(broker: FakeBroker, make: Make) -> None:
    """A broker that crashed right after an offset reset keeps the queue for us, who may have lost it to another."""
    broker.create("t")

    async with make(topics={"t": "*"}) as consumer:
        await asyncio.sleep(0.2)
        broker.go_down()
        broker.leases["g", QUEUE].epoch = 77
        broker.set_members("g", "a")
        broker.come_up()
        await asyncio.sleep(1)
        assert consumer.assignment == []
        assert broker.holder("g", QUEUE) is None


async def test_a_connection_without_answers_stops_the_turns_before_the_grace_is_over(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"x"] * 100)
    recorder = Recorder(takes_s=1.0)

    async with make(recorder, topics={"t": "*"}):
        await asyncio.sleep(10.5)
        broker.connections[0].silent = True
        await asyncio.sleep(10)
        assert recorder.times[-1] == 14.0
        broker.connections[0].silent = False
        await asyncio.sleep(5)

    assert recorder.times[15] > 20
    assert recorder.offsets == list(range(len(recorder.offsets)))


async def test_garbage_pushed_by_the_broker_is_ignored(broker: FakeBroker, make: Make) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}) as consumer:
        await asyncio.sleep(1)
        for push, payload in ((1, []), (2, ["g"]), (3, ["t", "x"]), (99, [1]), (1, ["g", 7]), (2, [1, 2, 3])):
            broker.connections[0].push(push, payload)  # type: ignore[arg-type]
        await asyncio.sleep(25)
        assert consumer.assignment == [QUEUE]


async def test_a_changed_subscription_filters_what_comes_next(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    recorder = Recorder()

    async with make(recorder, topics={"t": "a"}) as consumer:
        await asyncio.sleep(1)
        broker.send("t", 0, b"x", b"y", tags=["a", "b"])
        await asyncio.sleep(1)
        consumer.subscribe("t", "b")
        await asyncio.sleep(1)
        broker.send("t", 0, b"x", b"y", tags=["a", "b"])
        await asyncio.sleep(1)

    assert recorder.offsets == [0, 3]


# A broker that comes back with another store, or with an old backup of its own: nothing that was known is true

QUEUES = [MessageQueue("t", 0), MessageQueue("t", 1)]


class Bodies(Recorder):
    """A listener that notes the bodies, too."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__(takes_s=takes_s)
        self.bodies: list[bytes] = []

    async def __call__(self, messages: Any, context: Any) -> Any:
        self.bodies += [message.body for message in messages]
        return await super().__call__(messages, context)


def go_down_for_another(broker: FakeBroker, *, store_id: int, log_epoch: int = 1) -> None:
    """The broker goes; what comes up has no topic, group, member or lease, and numbers everything from 1."""
    broker.go_down()
    broker.delete("t", tell=False)
    for table in (broker.members, broker.subscribed, broker.leases, broker.offsets):
        table.clear()
    broker.members_version = 0
    broker.store_id, broker.log_epoch = store_id, log_epoch


@pytest.mark.parametrize("put_back", [False, True], ids=["another store", "a backup of it"])
async def test_members_that_leave_in_the_new_store_are_noticed_and_their_queues_taken(
    broker: FakeBroker, make: Make, put_back: bool
) -> None:
    broker.log_epoch, broker.members_version = 9, 9 << 32
    broker.create("t", 2)
    recorder, other = Bodies(), make(topics={"t": "*"})

    async with make(recorder, topics={"t": "*"}) as consumer:
        other.start()
        await asyncio.sleep(1)
        go_down_for_another(broker, store_id=broker.store_id + (not put_back))
        broker.create("t", 2)
        broker.come_up()
        await asyncio.sleep(2)
        assert len(consumer.assignment) == 1
        await other.stop()
        await asyncio.sleep(1)
        assert consumer.assignment == QUEUES
        broker.send("t", 0, b"a")
        broker.send("t", 1, b"b")
        await asyncio.sleep(1)

    assert sorted(recorder.bodies) == [b"a", b"b"]


async def test_a_topic_of_the_new_store_is_consumed_whatever_generations_the_old_one_had(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.delete("t")
    broker.create("t")
    recorder = Bodies()

    async with make(recorder, topics={"t": "*"}) as consumer:
        await asyncio.sleep(1)
        broker.delete("t")  # generation 2 is known to be dead
        broker.create("t")
        await asyncio.sleep(1)
        go_down_for_another(broker, store_id=77)
        broker.generations["t"] = 1
        broker.create("t", bodies=[b"a"])
        broker.come_up()
        await asyncio.sleep(2)
        assert consumer.assignment == QUEUES[:1]

    assert recorder.bodies == [b"a"]


async def test_a_group_that_begins_at_the_end_begins_at_the_end_of_the_new_store(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    recorder = Bodies()

    async with make(recorder, topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(1)
        go_down_for_another(broker, store_id=77)
        broker.create("t", bodies=[b"before"])
        broker.come_up()
        await asyncio.sleep(2)
        broker.send("t", 0, b"after")
        await asyncio.sleep(1)

    assert recorder.bodies == [b"after"]
    assert [request.payload.from_end for request in broker.sent(Op.JOIN)].count(["t"]) == 2


async def test_a_call_that_runs_while_the_store_changes_counts_for_nothing_in_the_new_one(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"old"])
    recorder = Bodies(takes_s=3.0)

    async with make(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)  # the listener has it
        go_down_for_another(broker, store_id=77)
        broker.create("t", bodies=[b"new"])
        broker.come_up()
        await asyncio.sleep(4)
        assert broker.offsets.get(("g", QUEUES[0]), 0) == 0
        await asyncio.sleep(4)

    assert recorder.bodies == [b"old", b"new"]
    assert broker.offsets["g", QUEUES[0]] == 1


async def test_the_change_is_told_once(broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(1)
        go_down_for_another(broker, store_id=77)
        broker.come_up()
        await asyncio.sleep(1)
        broker.go_down()
        broker.come_up()
        await asyncio.sleep(1)

    assert caplog.text.count("broker.other_store") == 1


@pytest.mark.parametrize("epochs", [(9, 5), (5, 9)])
async def test_after_several_stores_the_group_joins_with_the_lowest_epoch_that_it_had_in_common_with_one(
    broker: FakeBroker, make: Make, epochs: tuple[int, int]
) -> None:
    broker.create("t")
    async with make(topics={"t": "*"}) as consumer:
        await asyncio.sleep(1)
        assert consumer._runtime is not None
        rebalancer = consumer._runtime.rebalancer
        for log_epoch in epochs:
            rebalancer.another_store(log_epoch)
        rebalancer.connected()
        await asyncio.sleep(1)

    assert [join.payload.log_epoch for join in broker.sent(Op.JOIN) if join.payload.log_epoch] == [5]
