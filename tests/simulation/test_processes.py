"""Processes of one loop: what runs while one of them is stopped, blocked or dead, and in which order it catches up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from simulation.network import DOWN, UP
from simulation.processes import IN_TIME, SOCKETS_FIRST, TIMERS_FIRST, Process, SimulatedLoop, owner


def simulate(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(work)


def process(name: str) -> Process:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return Process(name, loop)


class Diary:
    """Who did what, and when."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []

    def note(self, what: str) -> None:
        name = owner()
        self.lines.append((asyncio.get_running_loop().time(), f"{name.name if name else 'none'}: {what}"))

    async def tick(self, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(1.0)
            self.note("tick")


def test_a_stopped_process_misses_its_timers_and_makes_up_for_them_while_others_go_on() -> None:
    async def story() -> None:
        a, b, diary = process("a"), process("b"), Diary()
        tasks = [a.task(diary.tick(2)), b.task(diary.tick(3))]
        await asyncio.sleep(0)
        a.stop()
        await asyncio.sleep(2.5)
        a.go_on()
        await asyncio.wait(tasks)

        assert diary.lines == [(1.0, "b: tick"), (2.0, "b: tick"), (2.5, "a: tick"), (3.0, "b: tick"), (3.5, "a: tick")]

    simulate(story())


def test_a_process_that_was_not_started_before_its_stop_does_nothing_until_it_goes_on() -> None:
    async def story() -> None:
        a, diary = process("a"), Diary()
        a.stop()
        task = a.task(diary.tick(1))
        await asyncio.sleep(10)

        assert not task.done()
        a.go_on()
        await task
        assert diary.lines == [(11.0, "a: tick")]

    simulate(story())


def test_a_listener_that_blocks_goes_on_before_anything_else_of_its_process() -> None:
    async def story() -> None:
        a, diary = process("a"), Diary()

        async def listener() -> None:
            await a.block(3.0)
            diary.note("listener")

        tasks = [a.task(diary.tick(1)), a.task(listener())]
        await asyncio.wait(tasks)

        assert diary.lines == [(3.0, "a: listener"), (3.0, "a: tick")]

    simulate(story())


@pytest.mark.parametrize("resumed_at", [1.0, 5.0])
def test_a_process_that_is_blocked_and_stopped_waits_for_the_end_of_both(resumed_at: float) -> None:
    async def story() -> None:
        a, diary = process("a"), Diary()

        async def listener() -> None:
            await a.block(3.0)
            diary.note("listener")

        task = a.task(listener())
        await asyncio.sleep(0.5)
        a.stop()
        await asyncio.sleep(resumed_at - 0.5)
        a.go_on()
        await task

        assert diary.lines == [(max(3.0, resumed_at), "a: listener")]

    simulate(story())


def test_a_dead_process_never_runs_again_and_its_peers_hear_of_it() -> None:
    async def story() -> None:
        server, a, diary = process("server"), process("a"), Diary()
        await server.task(serve(diary))
        await a.task(dial(diary))
        task = a.task(diary.tick(3))
        await asyncio.sleep(1.5)
        a.kill()
        await asyncio.sleep(10)

        assert diary.lines == [(1.0, "a: tick"), (1.5, "server: lost")]
        a.bury()
        task.cancel()

    simulate(story())


class Peer(asyncio.Protocol):
    """Notes what it hears."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._diary.note(data.decode())

    def connection_lost(self, exc: Exception | None) -> None:
        self._diary.note("lost")


async def serve(diary: Diary) -> list[Peer]:
    peers: list[Peer] = []

    def make() -> Peer:
        peers.append(Peer(diary))
        return peers[-1]

    await asyncio.get_running_loop().create_server(make, "127.0.0.1", 1)
    return peers


async def dial(diary: Diary) -> Peer:
    _, peer = await asyncio.get_running_loop().create_connection(lambda: Peer(diary), "127.0.0.1", 1)
    return peer


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (IN_TIME, ["word", "tick"]),  # the timer wakes a task, which runs after all that was due
        (TIMERS_FIRST, ["tick", "word"]),
        (SOCKETS_FIRST, ["word", "tick"]),
    ],
)
def test_a_process_that_goes_on_may_look_at_its_timers_or_at_its_sockets_first(order: str, expected: list[str]) -> None:
    async def story() -> None:
        server, a, diary = process("server"), process("a"), Diary()
        peers = await server.task(serve(diary))
        await a.task(dial(diary))
        ticking = a.task(diary.tick(1))
        await asyncio.sleep(0.5)
        a.stop()
        await asyncio.sleep(1.0)
        server.run(lambda: peers[0].transport.write(b"word"))  # type: ignore[attr-defined]
        await asyncio.sleep(1.0)
        a.go_on(order)
        await ticking

        assert [line for _, line in diary.lines] == [f"a: {what}" for what in expected]

    simulate(story())


def test_a_stopped_process_runs_a_timer_that_came_after_a_word_before_it_hears_the_word() -> None:
    async def story() -> None:
        server, a, diary = process("server"), process("a"), Diary()
        peers = await server.task(serve(diary))
        await a.task(dial(diary))
        ticking = a.task(diary.tick(1))
        await asyncio.sleep(0)
        a.stop()
        await asyncio.sleep(0.5)
        server.run(lambda: peers[0].transport.write(b"word"))  # type: ignore[attr-defined]
        await asyncio.sleep(1.0)
        a.go_on(TIMERS_FIRST)
        await ticking

        assert [line for _, line in diary.lines] == ["a: tick", "a: word"]

    simulate(story())


def test_a_held_link_hides_words_and_the_end_of_a_connection_until_it_heals() -> None:
    async def story() -> None:
        server, a, diary = process("server"), process("a"), Diary()
        peers = await server.task(serve(diary))
        near = await a.task(dial(diary))
        network = a._loop.network
        network.hold("a", DOWN)
        near.transport.write(b"up")  # type: ignore[attr-defined]
        await asyncio.sleep(1.0)
        server.run(lambda: peers[0].transport.write(b"down"))  # type: ignore[attr-defined]
        network.end_far("a")
        await asyncio.sleep(1.0)
        network.heal("a")
        await asyncio.sleep(1.0)

        assert diary.lines == [(0.0, "server: up"), (1.0, "server: lost"), (2.0, "a: down"), (2.0, "a: lost")]

    simulate(story())


def test_a_dial_over_a_held_link_waits_and_one_to_nobody_is_refused() -> None:
    async def story() -> None:
        server, a, diary = process("server"), process("a"), Diary()
        with pytest.raises(ConnectionRefusedError):
            await a.task(dial(diary))
        await server.task(serve(diary))
        a._loop.network.hold("a", UP)
        dialling = a.task(dial(diary))
        await asyncio.sleep(3.0)

        assert not dialling.done()
        a._loop.network.heal("a")
        await dialling

    simulate(story())


def test_what_travels_over_a_slow_link_arrives_late_and_in_order() -> None:
    async def story() -> None:
        server, a, diary = process("server"), process("a"), Diary()
        await server.task(serve(diary))
        near = await a.task(dial(diary))
        link = a._loop.network.link("a")
        link.delay_s = 2.0
        near.transport.write(b"first")  # type: ignore[attr-defined]
        link.delay_s = 0.5
        near.transport.write(b"second")  # type: ignore[attr-defined]
        await asyncio.sleep(5.0)

        assert diary.lines == [(2.0, "server: first"), (2.0, "server: second")]

    simulate(story())
