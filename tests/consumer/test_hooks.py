"""Hooks: before and after each call, in order, with what came of it; what they raise changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import CallInfo, ConfigError, ConsumeContext, ConsumeStatus, ResultType
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import Assignment, LeaseBelief
from rmq.consumer.listener import Hooks

from .fake_broker import FakeBroker
from .recorder import COMMIT, QUEUE, ROLLBACK, SUCCESS, SUSPEND, Make, Messages, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


class Noting:
    """A hook that notes what it is told."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes
        self.infos: list[CallInfo] = []

    def before(self, info: CallInfo) -> None:
        assert info.result is None
        self.notes.append(f"{self.name} before")
        info.data[self.name] = now()

    def after(self, info: CallInfo) -> None:
        assert info.data[self.name] <= now()
        self.notes.append(f"{self.name} after")
        self.infos.append(info)


async def test_hooks_run_in_the_order_they_were_added_around_the_call(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    notes: list[str] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        notes.append("call")
        return SUCCESS

    consumer = make(listener, topics={"t": "*"})
    for name in ("one", "two"):
        consumer.add_hook(Noting(name, notes))
    async with consumer:
        await asyncio.sleep(1)

    assert notes == ["one before", "two before", "call", "one after", "two after"]


def manual(status: ConsumeStatus) -> Any:
    def answer(context: ConsumeContext) -> ConsumeStatus:
        context.auto_commit = False
        return status

    return answer


@pytest.mark.parametrize(
    ("answer", "takes_s", "expected"),
    [
        (SUCCESS, 2.0 - 1e-6, (SUCCESS, ResultType.SUCCESS, True)),
        (SUCCESS, 2.0 + 1e-6, (SUCCESS, ResultType.TIME_OUT, True)),
        (COMMIT, 0.0, (COMMIT, ResultType.SUCCESS, True)),
        (manual(COMMIT), 0.0, (COMMIT, ResultType.SUCCESS, True)),
        (SUSPEND, 0.0, (SUSPEND, ResultType.FAILED, False)),
        (manual(ROLLBACK), 0.0, (ROLLBACK, ResultType.FAILED, False)),
        (None, 0.0, (None, ResultType.RETURNED_NULL, False)),
        ("what", 0.0, (None, ResultType.FAILED, False)),
        (ValueError("no"), 0.0, (None, ResultType.EXCEPTION, False)),
    ],
)
async def test_a_hook_is_told_what_came_of_the_call(
    broker: FakeBroker, make: Make, answer: Any, takes_s: float, expected: tuple[ConsumeStatus | None, ResultType, bool]
) -> None:
    _, result, success = expected
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    hook = Noting("hook", [])
    consumer = make(Recorder(answer, takes_s=takes_s), topics={"t": "*"}, batch=2, consume_timeout_s=2.0)
    consumer.add_hook(hook)

    async with consumer:
        await asyncio.sleep(takes_s + 0.5)
        first = hook.infos[0]
        assert (first.group, first.queue, first.epoch) == ("g", QUEUE, 1)
        assert [message.queue_offset for message in first.messages] == [0, 1]
        assert (first.status, first.result, first.success) == expected
        assert first.elapsed_s == pytest.approx(takes_s)
        assert first.exception is (answer if isinstance(answer, Exception) else None)
        # What took too long and succeeded is committed all the same.
        assert broker.offsets.get(("g", QUEUE), 0) == (2 if success else 0)
        assert {kind: n for kind, n in consumer.statistics()["t@g"].results.items() if n} == {result: 1}


@pytest.mark.parametrize(
    ("ended", "result"),
    [(2.0 - 1e-9, ResultType.SUCCESS), (2.0, ResultType.TIME_OUT), (2.0 + 1e-9, ResultType.TIME_OUT)],
)
async def test_a_call_of_exactly_the_limit_is_too_long(ended: float, result: ResultType) -> None:
    clock = iter([0.0, ended])
    hooks, hook = Hooks("g", consume_timeout_s=2.0), Noting("hook", [])
    hooks.add(hook)
    assignment = Assignment(LeaseBelief(QUEUE, 1, 0.0), ProcessQueue(0), on_lost=lambda _, reason: None)

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        return SUCCESS

    assert await hooks.around(listener, lambda: next(clock))([], ConsumeContext(assignment)) is SUCCESS
    assert hook.infos[0].result is result


async def test_what_a_hook_raises_is_logged_and_changes_nothing(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def before(self, info: CallInfo) -> None:
            raise RuntimeError("before")

        after = before

    broker.create("t")
    broker.send("t", 0, *[b"x"] * 8)
    hook, listener = Noting("hook", []), Recorder()
    consumer = make(listener, topics={"t": "*"})
    consumer.add_hook(Broken())
    consumer.add_hook(hook)

    async with consumer:
        await asyncio.sleep(1)

    assert listener.offsets == list(range(8))
    assert len(hook.infos) == 8
    assert broker.offsets["g", QUEUE] == 8
    assert caplog.text.count("hook.raised") == 5  # the 1st, 2nd, 4th, 8th and 16th failure


async def test_a_hook_may_have_one_of_the_two_and_may_come_while_the_consumer_runs(
    broker: FakeBroker, make: Make
) -> None:
    class After:
        seen: list[int] = []  # noqa: RUF012

        def after(self, info: CallInfo) -> None:
            self.seen.append(info.messages[0].queue_offset)

    broker.create("t")
    broker.send("t", 0, b"a")
    consumer = make(Recorder(takes_s=1.0), topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(1.5)
        consumer.add_hook(After())
        broker.send("t", 0, b"b")
        await asyncio.sleep(1.5)

    assert After.seen == [1]


async def test_what_is_no_hook_is_refused(make: Make) -> None:
    class Awaited:
        async def before(self, info: CallInfo) -> None: ...

    class AwaitedObject:
        class Before:
            async def __call__(self, info: CallInfo) -> None: ...

        before = Before()

    class Number:
        after = 7

    consumer = make()
    with pytest.raises(ConfigError, match="has neither"):
        consumer.add_hook(object())
    for hook in (Awaited(), AwaitedObject(), Number()):
        with pytest.raises(ConfigError, match="must be plain functions"):
            consumer.add_hook(hook)
