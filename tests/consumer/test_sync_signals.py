"""Signals while a consumer runs for code without asyncio: what they end, in which order, and in which thread."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rmq.consumer import ConsumeContext, ConsumeStatus, StoredMessage
from rmq.consumer.sync import Consumer
from rmq.runtime.loop_thread import LoopThread

from .test_sync import DEADLINE_S, SUCCESS, Heard, send
from support.broker_thread import BrokerThread, eventually
from support.interrupts import interrupt

BOTH_SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])


pytestmark = pytest.mark.usefixtures("plain_signals")


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(min_free_bytes=0) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic, and a group, of this test's own."""
    return re.sub(r"\W", "-", request.node.name)[-100:]


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
