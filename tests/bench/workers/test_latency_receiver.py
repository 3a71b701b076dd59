"""The listener of a measured consumer counts warm-up apart and hands out whole rounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rmq.bench.workers.latency_receiver import Listener
from rmq.bench.workers.schedule import WARM_UP, Bodies
from rmq.consumer import ConsumeStatus

BODIES = Bodies(16)


def messages(*stamps: int) -> list[Any]:
    return [SimpleNamespace(body=BODIES.stamped(stamp)) for stamp in stamps]


async def test_what_warms_up_is_not_measured() -> None:
    listener, context = Listener(count=1, warm=2), SimpleNamespace()

    assert await listener(messages(WARM_UP), context) is ConsumeStatus.SUCCESS  # type: ignore[arg-type]
    assert not listener.warmed.is_set()
    await listener(messages(WARM_UP), context)  # type: ignore[arg-type]

    assert listener.warmed.is_set()
    assert not listener.came.is_set()


async def test_a_round_has_as_many_as_were_asked_for_and_the_next_goes_on_behind_it() -> None:
    listener, context = Listener(count=2, warm=0, now=lambda: 9000), SimpleNamespace()

    await listener(messages(1000, 4000, 6000), context)  # type: ignore[arg-type]

    assert listener.warmed.is_set()
    assert listener.came.is_set()
    assert listener.take() == [8.0, 5.0]
    assert not listener.came.is_set()
    await listener(messages(8000), context)  # type: ignore[arg-type]
    assert listener.came.is_set()
    assert listener.take() == [3.0, 1.0]
