"""Which listeners are awaited and which run in a thread, and that a cancelled wait outlasts its thread."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import threading
from functools import partial
from typing import Any

import pytest

from rmq.consumer.listener import Threads, adapt, outlast
from rmq.wire.errors import ConfigError
from rmq.wire.model import ConsumeStatus

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


async def coroutine(messages: Any, context: Any) -> Any:
    return messages


def plain(messages: Any, context: Any) -> Any:
    return threading.current_thread().name


class Object:
    async def __call__(self, messages: Any, context: Any) -> Any:
        return messages

    async def method(self, messages: Any, context: Any) -> Any:
        return messages


@pytest.mark.parametrize(
    "listener", [coroutine, partial(coroutine), Object(), Object().method, partial(partial(Object()))]
)
async def test_what_is_a_coroutine_function_is_awaited_as_it_is(listener: Any) -> None:
    adapted, threads = adapt(listener, 2)

    assert adapted is listener
    assert threads is None


async def test_anything_else_runs_in_a_thread_of_ours() -> None:
    adapted, threads = adapt(plain, 2)
    assert isinstance(threads, Threads)

    name: Any = await adapted([], None)  # type: ignore[arg-type]

    assert name.startswith("rmq-listener")
    threads.close()


async def test_a_function_that_makes_a_coroutine_has_it_awaited_on_the_loop() -> None:
    adapted, threads = adapt(lambda messages, context: coroutine(messages, context), 1)  # type: ignore[arg-type,return-value]

    assert await adapted(["x"], None) == ["x"]  # type: ignore[arg-type,comparison-overlap,list-item]
    assert threads is not None
    threads.close()


@pytest.mark.parametrize(
    "listener",
    [
        "listener",
        None,
        lambda: None,
        lambda messages: None,
        lambda messages, context, more: None,
        lambda messages, *, context: None,
        partial(plain, None),
        Object,
        Object.method,
    ],
)
async def test_what_cannot_be_called_with_messages_and_context_is_refused(listener: Any) -> None:
    with pytest.raises(ConfigError, match="must be a function of"):
        adapt(listener, 1)


@pytest.mark.parametrize(
    "listener",
    [lambda *both: None, lambda messages, context, more=1: None, partial(lambda x, m, c: None, 1), max, dict.get],
)
async def test_what_can_be_called_with_two_arguments_is_taken(listener: Any) -> None:
    _, threads = adapt(listener, 1)
    assert threads is not None
    threads.close()


async def yields(messages: Any, context: Any) -> Any:
    yield None


class Yields:
    async def __call__(self, messages: Any, context: Any) -> Any:
        yield None


@pytest.mark.parametrize("listener", [yields, partial(yields), Yields()])
async def test_a_listener_that_yields_is_refused(listener: Any) -> None:
    with pytest.raises(ConfigError, match="yields: use return"):
        adapt(listener, 1)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_waits_for_the_end(fails: bool) -> None:
    running: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(outlast(running))
    await asyncio.sleep(1)

    waiting.cancel()
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.sleep(1)
    assert not waiting.done()
    if fails:
        running.set_exception(ValueError("too late to matter"))
    else:
        running.set_result(1)
    await asyncio.wait([waiting])

    assert waiting.cancelled()


async def test_stop_iteration_of_a_thread_arrives_as_a_runtime_error() -> None:
    def empty(messages: Any, context: Any) -> Any:
        return next(iter(()))

    adapted, threads = adapt(empty, 1)

    with pytest.raises(RuntimeError, match="StopIteration"):
        await adapted([], None)  # type: ignore[arg-type]
    assert threads is not None
    threads.close()


@pytest.mark.parametrize("is_idle", [False, True], ids=["no thread yet", "a thread that waits"])
async def test_while_the_interpreter_exits_no_call_begins_and_none_fails(
    monkeypatch: pytest.MonkeyPatch, is_idle: bool
) -> None:
    """The loop of a consumer without asyncio runs in a thread, and so a little longer than the program."""
    listener, threads = adapt(lambda messages, context: ConsumeStatus.SUCCESS, 1)
    if is_idle:
        await listener([], None)  # type: ignore[arg-type]
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)  # as the interpreter does
    for idle in [thread for thread in threading.enumerate() if thread.name.startswith("rmq-listener")]:
        concurrent.futures.thread._threads_queues[idle].put(None)
        idle.join()

    call = asyncio.ensure_future(listener([], None))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)

    assert not call.done()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert threads is not None
    threads.close()
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="after shutdown"):
        await listener([], None)  # type: ignore[arg-type]
