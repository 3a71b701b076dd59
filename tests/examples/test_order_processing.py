"""``examples/order_processing.py``: a payment that fails holds up its own order, and nobody else's."""

from __future__ import annotations

import pytest
import structlog

import order_processing
from order_processing import ORDERS, STEPS
from rmq.testing.broker import InMemoryBroker

from .running import run


def check(printed: str) -> None:
    *lines, summary = printed.splitlines()
    happened = [line.split()[3:] for line in lines]

    assert summary == "each of 4 orders: created, paid, packed, shipped"
    for order in ORDERS:
        tries = [words for of, *words in happened if of == order]
        assert [step for step, *more in tries if "failed:" not in more] == list(STEPS)
        assert [more[1] for step, *more in tries if more] == (["1", "2", "3"] if order == "o-2" else [])


@pytest.mark.slow
def test_every_order_goes_through_its_steps_in_order_and_a_failure_is_tried_again_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RMQ_BROKER", raising=False)

    check(run("order_processing"))


async def test_with_a_broker_that_runs_it_can_be_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.reset_defaults()  # else the broker may print as an earlier test of this process told it to
    async with InMemoryBroker() as broker:
        for _ in range(2):
            await order_processing.process(broker.address)
            check(capsys.readouterr().out)
