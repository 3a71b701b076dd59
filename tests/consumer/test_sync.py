"""
The consumer for code without asyncio: it is the other one, call by call, and everybody may stop it.

The pull consumer for code without asyncio: it is the other one, call by call, with threads for tasks.

Signals while a consumer runs for code without asyncio: what they end, in which order, and in which thread.
"""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq import consumer
from rmq.client.sync import Producer
from rmq.consumer import ConsumeContext, ConsumeStatus, MessageQueue, NotAssigned, StoredMessage
from rmq.consumer.sync import Consumer, PullConsumer
from rmq.runtime.loop_thread import LoopThread
from rmq.wire.errors import ConfigError, GroupMismatch

from .sync_shapes import public, same_shape
from rigs.interrupts import interrupt, interrupt_soon
from rigs.stalling_broker import BrokerThread, eventually

pytestmark = pytest.mark.usefixtures("plain_signals")

DEADLINE_S = 30.0
SUCCESS = ConsumeStatus.SUCCESS


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(min_free_bytes=0) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic, and a group, of this test's own."""
    return re.sub(r"\W", "-", request.node.name)[-100:]


class Heard:
    """
    A listener that notes what it got; ``then`` is done at the message with that number, before it returns.

    What ``then`` refers to must be there before the consumer is started.
    """

    def __init__(self, then: Callable[[], object] | None = None, at: int = 3) -> None:
        self.bodies: list[bytes] = []
        self.threads: set[str] = set()
        self.then = then
        self._at = at

    def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        self.threads.add(threading.current_thread().name)
        for message in messages:
            self.bodies.append(message.body)
            if len(self.bodies) == self._at and self.then is not None:
                self.then()
        return SUCCESS


def send(broker: BrokerThread, topic: str, count: int = 3) -> list[bytes]:
    bodies = [b"%d" % i for i in range(count)]
    with Producer(broker.address) as producer:
        producer.send_bodies(topic, bodies, queue_id=0)
    return bodies


@pytest.mark.parametrize(
    ("ours", "theirs"), [(Consumer, consumer.Consumer), (PullConsumer, consumer.PullConsumer)], ids=["listener", "pull"]
)
def test_names_and_arguments_are_those_of_the_other_consumer(ours: type, theirs: type) -> None:
    assert public(ours) == public(theirs) | {"config"}  # an attribute there
    for name in [*public(theirs), "__init__"]:
        assert same_shape(getattr(ours, name), getattr(theirs, name)), name


def test_a_listener_consumes_and_stops_the_consumer(broker: BrokerThread, topic: str) -> None:
    sent = send(broker, topic)
    heard = Heard(lambda: running.stop())

    running = Consumer(broker.address, group=topic, listener=heard)
    with running:
        running.subscribe(topic)
        running.run()

    assert heard.bodies == sent
    assert all(name.startswith("rmq-listener") for name in heard.threads)
    assert not running._thread._thread.is_alive()


def test_what_was_consumed_is_committed_by_the_stop(broker: BrokerThread, topic: str) -> None:
    sent = send(broker, topic, 3)
    for _ in range(2):
        heard = Heard()
        running = Consumer(broker.address, group=topic, listener=heard, topics={topic: "*"})
        heard.then = running.stop
        with running:
            running.run()
        assert heard.bodies == sent
        sent = send(broker, topic, 3)


def test_a_listener_may_stop_it_before_run_is_called(broker: BrokerThread, topic: str) -> None:
    sent, heard = send(broker, topic), Heard()
    running = Consumer(broker.address, group=topic, listener=heard, topics={topic: "*"})
    heard.then = running.stop

    with running:
        asyncio.run_coroutine_threadsafe(running._consumer._stopped.wait(), running._thread._loop).result(DEADLINE_S)
        running.run()

    assert heard.bodies == sent


def test_a_coroutine_listener_runs_on_the_loop_and_may_use_all_calls_that_do_not_wait(
    broker: BrokerThread, topic: str
) -> None:
    sent, heard, seen = send(broker, topic), Heard(), {}

    async def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        heard(messages, context)
        if len(heard.bodies) == 3:
            running.pause(topic)
            running.resume()
            seen.update(running.running_info())
            running.stop()
        return SUCCESS

    running = Consumer(broker.address, group=topic, listener=listener, topics={topic: "*"})
    with running:
        running.run()

    assert heard.bodies == sent
    assert heard.threads == {"rmq-consumer"}
    assert seen


def test_another_thread_stops_it_and_waits_for_the_end_of_calls(broker: BrokerThread, topic: str) -> None:
    send(broker, topic, 1)
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        begun.set()
        go_on.wait(DEADLINE_S)
        order.append("call ended")
        return SUCCESS

    def stop() -> None:
        begun.wait(DEADLINE_S)
        threading.Timer(0.05, go_on.set).start()
        running.stop()
        order.append("stopped")

    running = Consumer(broker.address, group=topic, listener=listener, topics={topic: "*"})
    stopper = threading.Thread(target=stop)
    stopper.start()
    running.run()
    stopper.join(DEADLINE_S)

    assert order == ["call ended", "stopped"]
    assert not running._thread._thread.is_alive()


def test_it_is_paused_looked_at_and_resumed_while_it_runs(broker: BrokerThread, topic: str) -> None:
    sent = send(broker, topic)
    done = threading.Event()
    heard = Heard(done.set)

    running = Consumer(broker.address, group=topic, listener=heard)
    with running:
        running.pause()
        running.subscribe(topic)
        eventually(lambda: MessageQueue(topic, 0) in running.assignment, "the assignment")
        assert heard.bodies == []
        running.resume()
        assert done.wait(DEADLINE_S)
        eventually(lambda: f"{topic}@{topic}" in running.statistics(), "the statistics")
        assert running.running_info()
        assert running.stopped_queues == {}
        running.unsubscribe(topic)
        eventually(lambda: running.assignment == [], "the hand-over")

    assert heard.bodies == sent
    assert running.config.group == topic


def test_hooks_are_called(broker: BrokerThread, topic: str) -> None:
    send(broker, topic, 1)
    heard = Heard(lambda: running.stop(), at=1)
    called: list[str] = []

    class Hook:
        def before(self, info: Any) -> None:
            called.append("before")

        def after(self, info: Any) -> None:
            called.append("after")

    running = Consumer(broker.address, group=topic, listener=heard, topics={topic: "*"})
    with running:
        running.add_hook(Hook())
        running.run()

    assert called == ["before", "after"]


def test_before_the_start_and_after_the_stop_it_still_answers(broker: BrokerThread, topic: str) -> None:
    running = Consumer(broker.address, group=topic, listener=Heard())
    assert (running.statistics(), running.running_info(), running.assignment) == ({}, {}, [])
    running.subscribe(topic)
    running.start()
    running.start()
    running.stop()
    running.stop()

    assert running.assignment == []
    assert running.statistics() == {}
    assert running.running_info()["group"] == topic
    running.pause()
    running.subscribe("another")
    running.unsubscribe(topic)


def test_it_runs_once(broker: BrokerThread, topic: str) -> None:
    running = Consumer(broker.address, group=topic, listener=Heard(), topics={topic: "*"})
    running.stop()

    for again in (running.run, running.start):
        with pytest.raises(RuntimeError, match="this consumer was stopped: make another one"):
            again()


def test_mistakes_are_told_at_once(broker: BrokerThread, topic: str) -> None:
    with pytest.raises(ConfigError, match="a consumer needs a group"):
        Consumer(broker.address, listener=Heard())
    running = Consumer(broker.address, group=topic, listener=Heard())
    with pytest.raises(ConfigError, match="call subscribe"):
        running.run()
    with pytest.raises(ConfigError):
        running.subscribe("not a name")  # it may still be mended
    running.stop()


def test_what_ends_the_consumer_is_raised_by_run_or_at_the_end_of_the_block(broker: BrokerThread, topic: str) -> None:
    settings = {"group": topic, "topics": {topic: "*"}}
    with Consumer(broker.address, listener=Heard(), **settings) as first:
        eventually(lambda: bool(first.assignment) or bool(first.running_info()), "the first member")
        eventually(lambda: _has_joined(broker, topic), "the first member")
        other = {**settings, "strategy": "circle"}
        with pytest.raises(GroupMismatch):
            Consumer(broker.address, listener=Heard(), **other).run()
        with pytest.raises(GroupMismatch), Consumer(broker.address, listener=Heard(), **other) as second:
            eventually(lambda: second._consumer._error is not None, "the refusal")
            second.stop()


def _has_joined(broker: BrokerThread, group: str) -> bool:
    from rmq.client import Admin, RmqError

    async def members() -> int:
        async with Admin(broker.address) as admin:
            try:
                return len((await admin.describe_group(group)).members)
            except RmqError:
                return 0

    return broker.do(members) > 0


async def test_in_a_running_loop_it_is_refused(broker: BrokerThread, topic: str) -> None:
    running = Consumer(broker.address, group=topic, listener=Heard(), topics={topic: "*"})

    for use in (running.start, running.run, running.stop, running.__enter__):
        with pytest.raises(RuntimeError, match=r"use rmq\.consumer\.Consumer with it"):
            use()


def test_one_that_nobody_refers_to_stops(broker: BrokerThread, topic: str) -> None:
    running = Consumer(broker.address, group=topic, listener=Heard(), topics={topic: "*"})
    running.start()
    thread = running._thread._thread

    del running
    gc.collect()
    thread.join(DEADLINE_S)

    assert not thread.is_alive()


PROGRAM = """
import sys, threading
from rmq.consumer import ConsumeStatus
from rmq.consumer.sync import Consumer
heard = threading.Event()
def listener(messages, context):
    heard.set()
    return ConsumeStatus.SUCCESS
consumer = Consumer(sys.argv[1], group=sys.argv[2], listener=listener, topics={sys.argv[2]: "*"})
consumer.start()
print(heard.wait(20), flush=True)
"""


@pytest.mark.slow
def test_a_program_that_does_not_stop_it_ends_and_loses_nothing(broker: BrokerThread, topic: str) -> None:
    send(broker, topic, 1)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, broker.address, topic],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert (done.stdout, done.stderr) == ("True\n", "")
    again = Heard(lambda: running.stop(), at=1)
    sent = send(broker, topic, 1)
    running = Consumer(broker.address, group=topic, listener=again, topics={topic: "*"})
    with running:
        running.run()
    assert again.bodies == sent


ENDING = """
import sys, time, threading
from rmq.client import Message
from rmq.client.sync import Producer
from rmq.consumer import ConsumeStatus
from rmq.consumer.sync import Consumer
address, topic, directory = sys.argv[1:]
heard, began = threading.Event(), threading.Event()
def listener(messages, context):
    print(messages[0].body.decode(), flush=True)
    heard.set()
    if messages[0].body == b"slow":
        began.set()
        time.sleep(0.3)  # meanwhile the program comes to its end, and idle threads go
        producer.send(Message(topic, b"late"), queue_id=1)
        time.sleep(0.3)
    return ConsumeStatus.SUCCESS
consumer = Consumer(
    address, group=topic, listener=listener, topics={topic: "*"}, orderly=False, model="broadcasting",
    offsets_dir=directory,
)
producer = Producer(address)
producer.open()
consumer.start()
producer.send(Message(topic, b"first"), queue_id=1)
heard.wait(20)
producer.send(Message(topic, b"slow"), queue_id=0)
began.wait(20)
"""


@pytest.mark.slow
def test_a_message_that_comes_while_the_program_ends_has_not_failed_and_comes_again(
    broker: BrokerThread, topic: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING, broker.address, topic, str(tmp_path)],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip

    assert sorted(done.stdout.split()) == ["first", "slow"]
    assert "passed" not in done.stderr
    again = Heard(lambda: running.stop(), at=1)
    settings: dict[str, Any] = {"model": "broadcasting", "offsets_dir": str(tmp_path), "orderly": False}
    running = Consumer(broker.address, group=topic, listener=again, topics={topic: "*"}, **settings)
    with running:
        running.run()
    assert again.bodies == [b"late"]


@pytest.fixture
def filled(broker: BrokerThread, topic: str) -> str:
    """A topic, and a group, of this test's own, with six messages in queue 0."""
    send(broker, topic, 6)
    return topic


def pulling(broker: BrokerThread, filled: str, **settings: object) -> PullConsumer:
    given = {"group": filled, "topics": {filled: "*"}, "batch": 4, "auto_commit_every_s": 0, **settings}
    return PullConsumer(broker.address, **given)  # type: ignore[arg-type]


def test_batches_come_in_order_and_are_done_by_the_next_poll(broker: BrokerThread, filled: str) -> None:
    with pulling(broker, filled) as polling:
        first, second = polling.poll(), polling.poll()
        assert [message.body for message in (*first, *second)] == [b"%d" % i for i in range(6)]
        assert polling.position((filled, 0)) == 6
        polling.commit()
        assert polling.committed((filled, 0)) == 6
        assert polling.poll(0.01) == []
        assert polling.assignment[0] == MessageQueue(filled, 0)
        assert polling.running_info()["group"] == filled
        assert polling.stopped_queues == {}

    with pytest.raises(RuntimeError, match="this consumer was stopped: make another one"):
        polling.poll()
    assert list(polling) == []


def test_a_block_that_ends_well_makes_done_what_was_returned_last(broker: BrokerThread, filled: str) -> None:
    with pulling(broker, filled, auto_commit_every_s=60.0) as polling:
        assert len(polling.poll()) == 4
    with pytest.raises(ZeroDivisionError), pulling(broker, filled, auto_commit_every_s=60.0) as polling:
        assert [message.body for message in polling.poll()] == [b"4", b"5"]
        _ = 1 // 0

    with pulling(broker, filled) as polling:
        assert [message.body for message in polling.poll()] == [b"4", b"5"]


def test_an_iteration_ends_when_another_thread_stops_the_consumer(broker: BrokerThread, filled: str) -> None:
    bodies: list[bytes] = []
    stopper: list[threading.Thread] = []

    with pulling(broker, filled, auto_commit_every_s=60.0) as polling:
        for batch in polling:
            bodies += [message.body for message in batch]
            if len(bodies) == 6:
                stopper.append(threading.Thread(target=polling.stop))
                stopper[0].start()
                eventually(lambda: polling._consumer._stop is not None, "the stop")
                assert not batch.lost  # it is waited for
    stopper[0].join(DEADLINE_S)

    assert bodies == [b"%d" % i for i in range(6)]
    with pulling(broker, filled) as again:
        assert again.poll(0.05) == []
        assert again.committed((filled, 0)) == 6


def test_one_thread_polls(broker: BrokerThread, filled: str) -> None:
    refused: list[str] = []

    def poll() -> None:
        try:
            polling.poll(0)
        except RuntimeError as error:
            refused.append(str(error))

    with pulling(broker, filled) as polling:
        next(polling)  # in the hands of this thread
        other = threading.Thread(target=poll)
        other.start()
        other.join(DEADLINE_S)

    assert len(refused) == 1
    assert refused[0].startswith("another task polls this consumer")


def test_a_batch_of_a_thread_that_has_ended_is_not_waited_for(broker: BrokerThread, filled: str) -> None:
    with pulling(broker, filled, drain_s=DEADLINE_S) as polling:
        other = threading.Thread(target=polling.poll)
        other.start()
        other.join(DEADLINE_S)
        polling.stop()

    with pulling(broker, filled) as again:
        assert [message.body for message in again.poll()] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_iteration_and_the_batch_in_hand_is_done(
    broker: BrokerThread, filled: str, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with pulling(broker, filled, auto_commit_every_s=5.0) as polling:
        for batch in polling:
            assert len(batch) == 4
            signal.raise_signal(number)
        assert polling.stopping
    assert signal.getsignal(number) is before

    with pulling(broker, filled) as again:
        assert [message.body for message in again.poll()] == [b"4", b"5"]


def test_a_signal_ends_a_poll_that_waits(broker: BrokerThread, filled: str) -> None:
    with pulling(broker, filled) as polling:
        while polling.poll(0.05):
            pass
        interrupting = interrupt_soon(signal.SIGTERM)
        while not polling.stopping:
            assert polling.poll(None) == []
        interrupting.join()


def test_a_commit_after_a_signal_has_nothing_left_to_do(broker: BrokerThread, filled: str) -> None:
    with pulling(broker, filled, auto_commit_every_s=0) as polling:
        while polling.poll(0.05):
            polling.commit()
        signal.raise_signal(signal.SIGTERM)
        eventually(polling._consumer._stopped.is_set, "the end of the consumer")
        polling.commit()
        polling.stop()
        polling.commit()

    with pulling(broker, filled) as again:
        assert again.poll(0.2) == [], "everything was committed"


def test_a_second_signal_interrupts_the_work_on_a_batch_which_is_not_done(
    broker: BrokerThread, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.runtime.stop_signals.TOGETHER_S", 0.0)

    with pytest.raises(KeyboardInterrupt), pulling(broker, filled, drain_s=DEADLINE_S) as polling:
        for _ in polling:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("this is not reached")

    with pulling(broker, filled) as again:
        assert [message.body for message in again.poll()] == [b"0", b"1", b"2", b"3"]


def test_ctrl_c_that_was_not_to_be_handled_ends_a_poll_that_waits(broker: BrokerThread, filled: str) -> None:
    with pulling(broker, filled, handle_signals=False) as polling:
        while polling.poll(0.05):
            pass
        interrupting = interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            polling.poll(None)
        interrupting.join()

        send(broker, filled, 1)
        assert [message.body for message in polling.poll()] == [b"0"]


def test_a_handler_of_a_signal_stops_it_in_the_middle_of_a_poll(broker: BrokerThread, filled: str) -> None:
    polling = pulling(broker, filled)
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


def test_seeking(broker: BrokerThread, filled: str) -> None:
    queue = MessageQueue(filled, 0)

    with pulling(broker, filled, topics=None) as polling:
        polling.assign([(filled, 0)])
        assert polling.seek(queue, 4) == 4
        assert [message.body for message in polling.poll()] == [b"4", b"5"]
        assert polling.seek(queue, "first") == 0
        assert polling.seek_to_time(filled, datetime.now(UTC) - timedelta(hours=1)) == {queue: 0}
        polling.pause(queue)
        assert polling.poll(0.01) == []
        polling.resume()
        assert len(polling.poll()) == 4
        with pytest.raises(NotAssigned):
            polling.position((filled, 3))


def test_hooks_that_are_plain_functions_may_use_the_consumer(broker: BrokerThread, filled: str) -> None:
    told: list[tuple[str, MessageQueue]] = []

    def on_assigned(queues: list[MessageQueue]) -> None:
        told.append(("assigned", queues[0]))
        if queues == [MessageQueue(filled, 0)]:
            polling.seek(queues[0], 5)

    async def on_revoked(queues: list[MessageQueue]) -> None:
        told.append(("revoked", queues[0]))

    polling = pulling(broker, filled, on_assigned=on_assigned, on_revoked=on_revoked)
    with polling:
        assert [message.body for message in polling.poll()] == [b"5"]

    assert ("assigned", MessageQueue(filled, 0)) in told
    assert ("revoked", MessageQueue(filled, 0)) in told


def test_while_the_interpreter_exits_a_hook_is_left_out_and_that_is_told(
    broker: BrokerThread, filled: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[MessageQueue] = []
    ended = ThreadPoolExecutor(1)
    ended.shutdown()  # as the interpreter does with all of them

    with pulling(broker, filled, on_revoked=told.extend) as polling:
        assert polling.poll()
        polling._thread.run(lambda: asyncio.get_running_loop().set_default_executor(ended))

    assert told == []
    assert "hook.skipped" in caplog.text
    assert "hook.raised" not in caplog.text


def test_mistakes_are_told(broker: BrokerThread, filled: str) -> None:
    with pytest.raises(ConfigError, match="a consumer needs a group"):
        PullConsumer(broker.address)
    with pytest.raises(ConfigError, match="on_assigned must be a function"):
        pulling(broker, filled, on_assigned=3)
    polling = pulling(broker, filled)
    for use in (polling.poll, polling.commit, lambda: next(polling)):
        with pytest.raises(RuntimeError, match="this consumer does not run"):
            use()
    with pytest.raises(ConfigError, match="subscribe"):
        polling.assign([(filled, 0)])


def test_one_that_nobody_refers_to_stops_though_it_has_a_batch(broker: BrokerThread, filled: str) -> None:
    polling = pulling(broker, filled, drain_s=DEADLINE_S)
    polling.start()
    assert polling.poll()
    thread = polling._thread._thread

    del polling
    gc.collect()
    thread.join(10)

    assert not thread.is_alive()


async def test_in_a_running_loop_it_is_refused_pull(broker: BrokerThread) -> None:
    polling = pulling(broker, "nothing")

    for use in (polling.start, polling.stop):
        with pytest.raises(RuntimeError, match=r"use rmq\.consumer\.PullConsumer with it"):
            use()


def test_a_poll_right_after_a_signal_returns_nothing(broker: BrokerThread, filled: str) -> None:
    with pulling(broker, filled) as polling:
        assert len(polling.poll()) == 4
        assert not polling.stopping
        signal.raise_signal(signal.SIGTERM)
        eventually(lambda: polling.stopping, "the stop")
        assert polling.poll() == []

    with pytest.raises(RuntimeError):
        polling.poll()


BOTH_SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])


@BOTH_SIGNALS
def test_a_signal_stops_it_cleanly_and_run_returns(broker: BrokerThread, topic: str, number: signal.Signals) -> None:
    sent = send(broker, topic, 3)
    heard = Heard(lambda: interrupt(number))
    before = signal.getsignal(number)

    with Consumer(broker.address, group=topic, listener=heard, topics={topic: "*"}) as running:
        running.run()
        assert running.stopping
    assert not running._thread._thread.is_alive()
    assert signal.getsignal(number) is before

    sent_later = send(broker, topic, 1)
    again = Heard(lambda: running.stop(), at=1)
    running = Consumer(broker.address, group=topic, listener=again, topics={topic: "*"})
    with running:
        running.run()
    assert (heard.bodies, again.bodies) == (sent, sent_later)


def test_a_second_signal_cancels_a_call_of_a_coroutine_function(
    broker: BrokerThread, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.runtime.stop_signals.TOGETHER_S", 0.0)
    send(broker, topic, 1)
    cancelled: list[str] = []

    async def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("call")
            raise
        return SUCCESS

    def signals() -> None:
        begun.wait(DEADLINE_S)
        interrupt()
        eventually(lambda: running._consumer._stop is not None, "the stop")
        interrupt()

    begun = threading.Event()
    signalling = threading.Thread(target=signals)
    signalling.start()
    with Consumer(broker.address, group=topic, listener=listener, topics={topic: "*"}) as running:
        running.run()
    signalling.join(DEADLINE_S)

    assert cancelled == ["call"]
    assert not running._thread._thread.is_alive()


def test_the_third_ctrl_c_does_not_wait_for_a_listener_in_a_thread(
    broker: BrokerThread, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.runtime.stop_signals.TOGETHER_S", 0.0)
    send(broker, topic, 1)
    let_go = threading.Event()

    def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        interrupt()
        eventually(lambda: running._consumer._stop is not None, "the stop")
        interrupt()
        eventually(lambda: running._thread._is_second_next, "the second signal")
        interrupt()
        let_go.wait(DEADLINE_S)
        return SUCCESS

    with (
        pytest.raises(KeyboardInterrupt),
        Consumer(broker.address, group=topic, listener=listener, topics={topic: "*"}) as running,
    ):
        running.run()

    assert running._thread._thread.is_alive()
    let_go.set()
    running._thread._thread.join(DEADLINE_S)
    assert not running._thread._thread.is_alive()


def test_ctrl_c_that_was_not_to_be_handled_stops_it_cleanly_and_is_raised_then(
    broker: BrokerThread, topic: str
) -> None:
    sent, heard = send(broker, topic, 3), Heard(interrupt)

    with (
        pytest.raises(KeyboardInterrupt),
        Consumer(broker.address, group=topic, listener=heard, topics={topic: "*"}, handle_signals=False) as running,
    ):
        running.run()

    assert heard.bodies == sent
    assert not running._thread._thread.is_alive()


def test_a_signal_that_comes_before_anything_runs_ends_it_all_the_same(
    broker: BrokerThread, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    def call(thread: LoopThread, *args: Any) -> Any:
        if not sent:
            sent.append(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        return before(thread, *args)

    before = LoopThread.call
    monkeypatch.setattr(LoopThread, "call", call)

    Consumer(broker.address, group=topic, listener=Heard(), topics={topic: "*"}).run()

    assert sent


def test_run_in_another_thread_leaves_signals_alone(broker: BrokerThread, topic: str) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    send(broker, topic, 1)
    seen: list[Any] = []

    def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        seen.extend(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))
        running.stop()
        return SUCCESS

    running = Consumer(broker.address, group=topic, listener=listener, topics={topic: "*"})
    thread = threading.Thread(target=running.run)
    thread.start()
    thread.join(DEADLINE_S)

    assert seen == before


def test_a_handler_of_a_signal_stops_it(broker: BrokerThread, topic: str) -> None:
    sent = send(broker, topic)
    heard = Heard(lambda: interrupt(signal.SIGTERM))
    running = Consumer(broker.address, group=topic, listener=heard, topics={topic: "*"})
    before = signal.signal(signal.SIGTERM, lambda *_: running.stop())
    try:
        running.run()
    finally:
        signal.signal(signal.SIGTERM, before)

    assert heard.bodies == sent
