"""SIGTERM and SIGINT while a consumer runs, at every moment of its life; and whose handlers are there afterwards."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from rmq.wire.errors import Fenced, RequestTimeout
from rmq.wire.protocol.ops.core import Op

from .fake_broker import FakeBroker, Held
from .polling import MakePull, offsets
from .recorder import QUEUE, Make, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running", "handlers_as_before")]

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


@pytest.fixture
def handlers_as_before(plain_signals: None) -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.fixture(autouse=True)
def clock_of_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals go by the loop's clock."""
    monkeypatch.setattr("rmq.runtime.stop_signals.boottime", now)


async def send_signal(after_s: float, number: signal.Signals = signal.SIGTERM) -> None:
    await asyncio.sleep(after_s)
    signal.raise_signal(number)


async def run(consumer: Any, *signals: float, number: signal.Signals = signal.SIGTERM) -> None:
    """``consumer.run()`` with a signal after each of these seconds; as it returns, not as it is left."""
    signalling = [asyncio.create_task(send_signal(after_s, number)) for after_s in signals]
    async with consumer:
        await consumer.run()
    for task in signalling:
        task.cancel()


# At every moment


@BOTH
async def test_a_signal_lets_the_running_call_end_and_commits_and_unlocks_and_run_returns(
    broker: FakeBroker, make: Make, number: signal.Signals
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    listener = Recorder(takes_s=5.0)

    await run(make(listener, topics={"t": "*"}), 1.0, number=number)

    assert now() == pytest.approx(5.0)
    assert listener.offsets == [0]
    assert broker.offsets["g", QUEUE] == 1
    assert broker.leases == {}
    assert [request.at for request in broker.sent(Op.RENEW) if request.payload.leaving] == [1.0]


async def test_a_call_that_outlasts_the_drain_is_cancelled_and_its_queue_unlocked(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a"])

    await run(make(Recorder(takes_s=100.0), topics={"t": "*"}, drain_s=7.0), 1.0)

    assert now() == pytest.approx(8.0)
    assert broker.offsets.get(("g", QUEUE), 0) == 0
    assert broker.leases == {}


async def test_a_signal_before_the_first_assignment_ends_it_when_the_request_is_answered(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a"])
    hold, listener = broker.hold_request(Op.ACQUIRE), Recorder()
    running = asyncio.create_task(run(make(listener, topics={"t": "*"}), 0.5))

    await asyncio.sleep(0.7)
    assert not running.done()
    hold.let_go.set()
    await running

    assert now() == pytest.approx(0.7)
    assert listener.calls == []
    assert broker.leases == {}


async def test_a_signal_before_anything_is_subscribed_to_exists_ends_it_at_once(broker: FakeBroker, make: Make) -> None:
    await run(make(topics={"t": "*"}), 0.5)

    assert now() == pytest.approx(0.5)
    assert not broker.members["g"]


async def test_a_signal_while_connecting_to_a_broker_that_is_away_ends_it_at_once(
    broker: FakeBroker, make: Make
) -> None:
    broker.go_down()

    await run(make(topics={"t": "*"}), 0.5)

    assert now() == pytest.approx(0.5)


async def test_a_signal_during_a_commit_waits_for_its_answer_and_loses_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b", b"c"])
    hold = broker.hold_reply(Op.COMMIT)
    running = asyncio.create_task(run(make(Recorder(takes_s=1.0), topics={"t": "*"}, commit_every_s=0.5), 1.7))

    await asyncio.sleep(2.5)
    hold.let_go.set()
    await running

    assert broker.offsets["g", QUEUE] == 2
    assert broker.leases == {}


async def test_a_signal_while_the_broker_is_away_ends_the_call_and_then_waits_for_one_answer_only(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a"])
    listener = Recorder(takes_s=3.0)
    running = asyncio.create_task(run(make(listener, topics={"t": "*"}), 1.0))
    await asyncio.sleep(0.5)
    broker.go_down()

    await running

    assert listener.ended == [3.0]
    assert now() == pytest.approx(6.0)


async def test_a_broker_that_comes_back_while_the_call_ends_is_told_everything(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    running = asyncio.create_task(run(make(Recorder(takes_s=5.0), topics={"t": "*"}), 1.0))
    await asyncio.sleep(0.5)
    broker.go_down()
    await asyncio.sleep(2)
    broker.come_up()

    await running

    assert broker.sent(Op.RENEW)[-1].payload.leaving
    assert broker.offsets["g", QUEUE] == 1
    assert broker.leases == {}


# The second and the third


@pytest.mark.parametrize("settings", [{}, {"orderly": False}], ids=["orderly", "concurrent"])
async def test_a_second_signal_cancels_the_running_call_and_unlocks(
    broker: FakeBroker, make: Make, settings: dict[str, Any]
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    listener = Recorder(takes_s=20.0)

    await run(make(listener, topics={"t": "*"}, **settings), 1.0, 3.0)

    assert now() == pytest.approx(3.0)
    assert broker.offsets.get(("g", QUEUE), 0) <= 0
    assert broker.leases == {}


async def test_signals_that_come_together_are_one(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])

    await run(make(Recorder(takes_s=5.0), topics={"t": "*"}), 1.0, 1.01, 1.09)

    assert now() == pytest.approx(5.0)
    assert broker.offsets["g", QUEUE] == 1


async def test_after_the_second_signal_the_next_does_what_it_did_before(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])

    async def stubborn(messages: Any, context: Any) -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                found.append(signal.getsignal(signal.SIGTERM))

    found: list[Any] = []
    await run(make(stubborn, topics={"t": "*"}), 1.0, 3.0)

    assert found[0] is signal.SIG_DFL


# Whose handlers


async def test_a_signal_with_a_handler_of_the_programs_own_is_left_to_it(broker: FakeBroker, make: Make) -> None:
    told: list[int] = []
    consumer = make(topics={"t": "*"})
    asyncio.get_running_loop().call_later(2.0, lambda: asyncio.ensure_future(consumer.stop()))
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        await run(consumer, 1.0)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert told == [signal.SIGTERM]
    assert now() == pytest.approx(2.0)


async def test_an_ignored_signal_stays_ignored(broker: FakeBroker, make: Make) -> None:
    consumer = make(topics={"t": "*"})
    asyncio.get_running_loop().call_later(2.0, lambda: asyncio.ensure_future(consumer.stop()))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        await run(consumer, 1.0, number=signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)

    assert now() == pytest.approx(2.0)


async def test_a_handler_that_the_program_installs_meanwhile_stays(broker: FakeBroker, make: Make) -> None:
    def mine(*_: Any) -> None: ...

    before = signal.getsignal(signal.SIGTERM)
    consumer = make(topics={"t": "*"})
    asyncio.get_running_loop().call_later(0.5, lambda: signal.signal(signal.SIGTERM, mine))
    try:
        await run(consumer, 1.0, number=signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_consumer_that_was_told_to_leave_signals_alone_does(broker: FakeBroker, make: Make) -> None:
    seen: list[Any] = []
    consumer = make(topics={"t": "*"}, handle_signals=False)
    before = signal.getsignal(signal.SIGTERM)

    async def look() -> None:
        await asyncio.sleep(1.0)
        seen.append(signal.getsignal(signal.SIGTERM))
        await consumer.stop()

    await asyncio.gather(run(consumer), look())

    assert seen == [before]


async def test_a_signal_stops_every_consumer_of_the_program(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    busy, idle = make(Recorder(takes_s=5.0), topics={"t": "*"}), make(group="h", topics={"t": "*"})

    await asyncio.gather(run(busy, 1.0), run(idle))

    assert now() == pytest.approx(5.0)
    assert broker.leases == {}


# Polls


@BOTH
async def test_a_signal_ends_the_iteration_after_the_batch_in_hand_which_is_done(
    broker: FakeBroker, pull: MakePull, number: signal.Signals
) -> None:
    broker.create("t", bodies=[b"x"] * 6)
    found = []

    async with pull(batch=2) as consumer:
        async for batch in consumer:
            found.append(offsets(batch))
            await asyncio.sleep(1.0)
            signal.raise_signal(number)
            await asyncio.sleep(1.0)
            assert consumer.stopping

    assert now() == pytest.approx(2.0)
    assert found == [[0, 1]]
    assert broker.offsets["g", QUEUE] == 2
    assert broker.leases == {}
    assert [request.at for request in broker.sent(Op.RENEW) if request.payload.leaving] == [1.0]


async def test_a_signal_ends_a_poll_that_waits_and_the_loop_of_polls_with_it(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t")
    signalling = asyncio.create_task(send_signal(1.0))

    async with pull() as consumer:
        while not consumer.stopping:
            assert await consumer.poll(None) == []

    await signalling
    assert now() == pytest.approx(1.0)
    assert broker.leases == {}


async def test_a_signal_while_a_poll_waits_for_a_broker_that_is_away_ends_it_at_once(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.go_down()
    signalling = asyncio.create_task(send_signal(1.0))

    async with pull() as consumer:
        assert [batch async for batch in consumer] == []

    await signalling
    assert now() == pytest.approx(1.0)


@pytest.mark.parametrize("after_s", [0.1, 0.4, 0.6, 2.1])
@pytest.mark.parametrize("work_s", [0.0, 0.3])
async def test_a_loop_of_polls_and_commits_ends_cleanly_by_a_signal_at_any_moment(
    broker: FakeBroker, pull: MakePull, after_s: float, work_s: float
) -> None:
    broker.create("t", bodies=[b"a", b"b", b"c"])
    signalling = asyncio.create_task(send_signal(after_s))
    done = 0

    async with pull(batch=1, auto_commit_every_s=0) as consumer:
        while not consumer.stopping:
            batch = await consumer.poll(0.5)
            await asyncio.sleep(work_s)
            await consumer.commit()
            done += len(batch)

    await signalling
    assert broker.offsets["g", QUEUE] == done
    assert broker.leases == {}


async def test_an_iteration_that_a_stop_of_another_task_ends_makes_the_batch_in_hand_done(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    consumer = pull(batch=1)
    consumer.start()

    async for _ in consumer:
        stopping = asyncio.create_task(consumer.stop())
        await asyncio.sleep(1.0)
    await stopping

    assert now() == pytest.approx(1.0)
    assert broker.offsets["g", QUEUE] == 1


async def test_a_commit_after_a_stop_reports_once_what_was_not_committed(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    async with pull(batch=1, auto_commit_every_s=0) as consumer:
        assert await consumer.poll()
        await consumer.commit()
        assert await consumer.poll()
        await consumer.stop()
        with pytest.raises(Fenced, match="t/0 went to another owner before all of it was committed"):
            await consumer.commit()
        await consumer.commit()

    assert broker.offsets["g", QUEUE] == 1


async def test_a_commit_after_a_stop_that_the_broker_did_not_answer_does_not_count(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"a"])
    consumer = pull(batch=1, auto_commit_every_s=0)
    consumer.start()
    assert await consumer.poll()
    broker.go_down()
    with pytest.raises(RequestTimeout):
        await consumer.commit()
    await consumer.stop()

    with pytest.raises(Fenced):
        await consumer.commit()


async def test_a_commit_after_a_stop_that_was_fenced_reports_that(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", bodies=[b"a"])
    consumer = pull(batch=1, auto_commit_every_s=0)
    consumer.start()
    assert await consumer.poll()
    hold = broker.hold_request(Op.COMMIT)
    committing = asyncio.create_task(consumer.commit())
    await hold.reached.wait()
    committing.cancel()  # the progress is marked, and no answer came

    stopping = asyncio.create_task(consumer.stop())
    broker.leases["g", QUEUE] = Held(b"thief", "thief", 77, now())  # and nobody is told
    hold.let_go.set()
    await stopping

    with pytest.raises(Fenced):
        await consumer.commit()


async def test_a_signal_while_a_hook_runs_is_announced_too(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t")

    async def on_revoked(_: object) -> None:
        await asyncio.sleep(5)

    signalling = asyncio.create_task(send_signal(1.0))
    async with pull(on_revoked=on_revoked) as consumer:
        assert [batch async for batch in consumer] == []

    await signalling
    assert now() == pytest.approx(6.0)
    assert [request.at for request in broker.sent(Op.RENEW) if request.payload.leaving] == [1.0]


async def test_a_second_signal_cancels_the_task_that_polls_and_its_batch_is_not_done(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", bodies=[b"x"] * 6)
    signalling = [asyncio.create_task(send_signal(after_s)) for after_s in (1.0, 3.0)]

    async def poll() -> None:
        async with pull(batch=2) as consumer:
            async for _ in consumer:
                await asyncio.sleep(20)

    polling = asyncio.create_task(poll())
    with pytest.raises(asyncio.CancelledError):
        await polling

    await asyncio.gather(*signalling)
    assert now() == pytest.approx(3.0)
    assert broker.offsets.get(("g", QUEUE), 0) <= 0
    assert broker.leases == {}


async def test_polls_of_a_consumer_that_was_told_to_leave_signals_alone_do(broker: FakeBroker, pull: MakePull) -> None:
    before = signal.getsignal(signal.SIGTERM)

    async with pull(handle_signals=False):
        assert signal.getsignal(signal.SIGTERM) is before
