"""The pull consumer for code without asyncio: it is the other one, call by call, with threads for tasks."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from rmq import consumer
from rmq.client.sync import Producer
from rmq.consumer import MessageQueue, NotAssigned
from rmq.consumer.sync import PullConsumer
from rmq.wire.errors import ConfigError

from .sync_shapes import public, same_shape
from support.broker_thread import BrokerThread, eventually
from support.interrupts import interrupt_soon

DEADLINE_S = 30.0


pytestmark = pytest.mark.usefixtures("plain_signals")


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(min_free_bytes=0) as running:
        yield running


@pytest.fixture
def topic(broker: BrokerThread, request: pytest.FixtureRequest) -> str:
    """A topic, and a group, of this test's own, with six messages in queue 0."""
    name = re.sub(r"\W", "-", request.node.name)[-100:]
    send(broker, name, 6)
    return name


def send(broker: BrokerThread, topic: str, count: int) -> None:
    with Producer(broker.address) as producer:
        producer.send_bodies(topic, [b"%d" % i for i in range(count)], queue_id=0)


def pulling(broker: BrokerThread, topic: str, **settings: object) -> PullConsumer:
    given = {"group": topic, "topics": {topic: "*"}, "batch": 4, "auto_commit_every_s": 0, **settings}
    return PullConsumer(broker.address, **given)  # type: ignore[arg-type]


def test_names_and_arguments_are_those_of_the_other_consumer() -> None:
    assert public(PullConsumer) == public(consumer.PullConsumer) | {"config"}  # an attribute there
    for name in [*public(consumer.PullConsumer), "__init__"]:
        assert same_shape(getattr(PullConsumer, name), getattr(consumer.PullConsumer, name)), name


def test_batches_come_in_order_and_are_done_by_the_next_poll(broker: BrokerThread, topic: str) -> None:
    with pulling(broker, topic) as polling:
        first, second = polling.poll(), polling.poll()
        assert [message.body for message in (*first, *second)] == [b"%d" % i for i in range(6)]
        assert polling.position((topic, 0)) == 6
        polling.commit()
        assert polling.committed((topic, 0)) == 6
        assert polling.poll(0.01) == []
        assert polling.assignment[0] == MessageQueue(topic, 0)
        assert polling.running_info()["group"] == topic
        assert polling.stopped_queues == {}

    with pytest.raises(RuntimeError, match="this consumer was stopped: make another one"):
        polling.poll()
    assert list(polling) == []


def test_a_block_that_ends_well_makes_done_what_was_returned_last(broker: BrokerThread, topic: str) -> None:
    with pulling(broker, topic, auto_commit_every_s=60.0) as polling:
        assert len(polling.poll()) == 4
    with pytest.raises(ZeroDivisionError), pulling(broker, topic, auto_commit_every_s=60.0) as polling:
        assert [message.body for message in polling.poll()] == [b"4", b"5"]
        _ = 1 // 0

    with pulling(broker, topic) as polling:
        assert [message.body for message in polling.poll()] == [b"4", b"5"]


def test_an_iteration_ends_when_another_thread_stops_the_consumer(broker: BrokerThread, topic: str) -> None:
    bodies: list[bytes] = []
    stopper: list[threading.Thread] = []

    with pulling(broker, topic, auto_commit_every_s=60.0) as polling:
        for batch in polling:
            bodies += [message.body for message in batch]
            if len(bodies) == 6:
                stopper.append(threading.Thread(target=polling.stop))
                stopper[0].start()
                eventually(lambda: polling._consumer._stop is not None, "the stop")
                assert not batch.lost  # it is waited for
    stopper[0].join(DEADLINE_S)

    assert bodies == [b"%d" % i for i in range(6)]
    with pulling(broker, topic) as again:
        assert again.poll(0.05) == []
        assert again.committed((topic, 0)) == 6


def test_one_thread_polls(broker: BrokerThread, topic: str) -> None:
    refused: list[str] = []

    def poll() -> None:
        try:
            polling.poll(0)
        except RuntimeError as error:
            refused.append(str(error))

    with pulling(broker, topic) as polling:
        next(polling)  # in the hands of this thread
        other = threading.Thread(target=poll)
        other.start()
        other.join(DEADLINE_S)

    assert len(refused) == 1
    assert refused[0].startswith("another task polls this consumer")


def test_a_batch_of_a_thread_that_has_ended_is_not_waited_for(broker: BrokerThread, topic: str) -> None:
    with pulling(broker, topic, drain_s=DEADLINE_S) as polling:
        other = threading.Thread(target=polling.poll)
        other.start()
        other.join(DEADLINE_S)
        polling.stop()

    with pulling(broker, topic) as again:
        assert [message.body for message in again.poll()] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_iteration_and_the_batch_in_hand_is_done(
    broker: BrokerThread, topic: str, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with pulling(broker, topic, auto_commit_every_s=5.0) as polling:
        for batch in polling:
            assert len(batch) == 4
            signal.raise_signal(number)
        assert polling.stopping
    assert signal.getsignal(number) is before

    with pulling(broker, topic) as again:
        assert [message.body for message in again.poll()] == [b"4", b"5"]


def test_a_signal_ends_a_poll_that_waits(broker: BrokerThread, topic: str) -> None:
    with pulling(broker, topic) as polling:
        while polling.poll(0.05):
            pass
        interrupting = interrupt_soon(signal.SIGTERM)
        while not polling.stopping:
            assert polling.poll(None) == []
        interrupting.join()


def test_a_commit_after_a_signal_has_nothing_left_to_do(broker: BrokerThread, topic: str) -> None:
    with pulling(broker, topic, auto_commit_every_s=0) as polling:
        while polling.poll(0.05):
            polling.commit()
        signal.raise_signal(signal.SIGTERM)
        eventually(polling._consumer._stopped.is_set, "the end of the consumer")
        polling.commit()
        polling.stop()
        polling.commit()

    with pulling(broker, topic) as again:
        assert again.poll(0.2) == [], "everything was committed"


def test_a_second_signal_interrupts_the_work_on_a_batch_which_is_not_done(
    broker: BrokerThread, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.runtime.stop_signals.TOGETHER_S", 0.0)

    with pytest.raises(KeyboardInterrupt), pulling(broker, topic, drain_s=DEADLINE_S) as polling:
        for _ in polling:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("this is not reached")

    with pulling(broker, topic) as again:
        assert [message.body for message in again.poll()] == [b"0", b"1", b"2", b"3"]


def test_ctrl_c_that_was_not_to_be_handled_ends_a_poll_that_waits(broker: BrokerThread, topic: str) -> None:
    with pulling(broker, topic, handle_signals=False) as polling:
        while polling.poll(0.05):
            pass
        interrupting = interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            polling.poll(None)
        interrupting.join()

        send(broker, topic, 1)
        assert [message.body for message in polling.poll()] == [b"0"]


def test_a_handler_of_a_signal_stops_it_in_the_middle_of_a_poll(broker: BrokerThread, topic: str) -> None:
    polling = pulling(broker, topic)
    polling.start()
    before = signal.signal(signal.SIGTERM, lambda *_: polling.stop())
    try:
        while polling.poll(0.05):
            pass
        interrupt_soon(signal.SIGTERM)
        assert polling.poll(None) == []
    finally:
        signal.signal(signal.SIGTERM, before)

    assert not polling._thread._thread.is_alive()


def test_seeking(broker: BrokerThread, topic: str) -> None:
    queue = MessageQueue(topic, 0)

    with pulling(broker, topic, topics=None) as polling:
        polling.assign([(topic, 0)])
        assert polling.seek(queue, 4) == 4
        assert [message.body for message in polling.poll()] == [b"4", b"5"]
        assert polling.seek(queue, "first") == 0
        assert polling.seek_to_time(topic, datetime.now(UTC) - timedelta(hours=1)) == {queue: 0}
        polling.pause(queue)
        assert polling.poll(0.01) == []
        polling.resume()
        assert len(polling.poll()) == 4
        with pytest.raises(NotAssigned):
            polling.position((topic, 3))


def test_hooks_that_are_plain_functions_may_use_the_consumer(broker: BrokerThread, topic: str) -> None:
    told: list[tuple[str, MessageQueue]] = []

    def on_assigned(queues: list[MessageQueue]) -> None:
        told.append(("assigned", queues[0]))
        if queues == [MessageQueue(topic, 0)]:
            polling.seek(queues[0], 5)

    async def on_revoked(queues: list[MessageQueue]) -> None:
        told.append(("revoked", queues[0]))

    polling = pulling(broker, topic, on_assigned=on_assigned, on_revoked=on_revoked)
    with polling:
        assert [message.body for message in polling.poll()] == [b"5"]

    assert ("assigned", MessageQueue(topic, 0)) in told
    assert ("revoked", MessageQueue(topic, 0)) in told


def test_while_the_interpreter_exits_a_hook_is_left_out_and_that_is_told(
    broker: BrokerThread, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[MessageQueue] = []
    ended = ThreadPoolExecutor(1)
    ended.shutdown()  # as the interpreter does with all of them

    with pulling(broker, topic, on_revoked=told.extend) as polling:
        assert polling.poll()
        polling._thread.run(lambda: asyncio.get_running_loop().set_default_executor(ended))

    assert told == []
    assert "hook.left_out" in caplog.text
    assert "hook.raised" not in caplog.text


def test_mistakes_are_told(broker: BrokerThread, topic: str) -> None:
    with pytest.raises(ConfigError, match="a consumer needs a group"):
        PullConsumer(broker.address)
    with pytest.raises(ConfigError, match="on_assigned must be a function"):
        pulling(broker, topic, on_assigned=3)
    polling = pulling(broker, topic)
    for use in (polling.poll, polling.commit, lambda: next(polling)):
        with pytest.raises(RuntimeError, match="this consumer does not run"):
            use()
    with pytest.raises(ConfigError, match="subscribe"):
        polling.assign([(topic, 0)])


def test_one_that_nobody_refers_to_stops_though_it_has_a_batch(broker: BrokerThread, topic: str) -> None:
    polling = pulling(broker, topic, drain_s=DEADLINE_S)
    polling.start()
    assert polling.poll()
    thread = polling._thread._thread

    del polling
    gc.collect()
    thread.join(10)

    assert not thread.is_alive()


async def test_in_a_running_loop_it_is_refused(broker: BrokerThread) -> None:
    polling = pulling(broker, "nothing")

    for use in (polling.start, polling.stop):
        with pytest.raises(RuntimeError, match=r"use rmq\.consumer\.PullConsumer with it"):
            use()


def test_a_poll_right_after_a_signal_returns_nothing(broker: BrokerThread, topic: str) -> None:
    with pulling(broker, topic) as polling:
        assert len(polling.poll()) == 4
        assert not polling.stopping
        signal.raise_signal(signal.SIGTERM)
        eventually(lambda: polling.stopping, "the stop")
        assert polling.poll() == []

    with pytest.raises(RuntimeError):
        polling.poll()
