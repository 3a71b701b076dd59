"""Take-overs: measured with real processes, judged by the worst; what reports of consumers mean."""

from __future__ import annotations

import pytest

from rmq.bench.figures import Figure
from rmq.bench.loads.failover import QUIET_S, FirstCall, FirstCalls, measure, verdicts
from rmq.bench.options import Load, Options
from rmq.bench.processes import BenchError

from rigs.bench import Steps


@pytest.mark.parametrize(("samples", "met"), [([0.1, 0.1, 1.0], True), ([0.1, 0.1, 1.001], False)])
def test_the_worst_sample_decides(samples: list[float], met: bool) -> None:
    (verdict,) = verdicts([Figure("failover.stop", "words", "s", "sync", samples)])

    assert (verdict.met, verdict.at_most, verdict.flush) == (met, 1.0, "sync")


def test_loading_python_has_no_limit() -> None:
    assert list(verdicts([Figure("failover.join_process", "words", "s", "sync", [9.0])])) == []


@pytest.mark.parametrize("load", [Load(queues=2, consumers=3), Load(queues=8, consumers=1)])
def test_a_failover_needs_two_consumers_and_a_queue_for_each(load: Load) -> None:
    with pytest.raises(BenchError, match="two consumers or more, and a queue for each"):
        measure(load, Options(), Steps())


@pytest.mark.slow
def test_kills_stops_and_joins_are_measured() -> None:
    steps = Steps()

    report = measure(Load(queues=4, consumers=2), Options("sync", rounds=1, quick=True), steps, rate=200)

    figures = {figure.key: figure for figure in report.figures}
    assert {key: len(figure.samples) for key, figure in figures.items()} == {
        "failover.kill": 1, "failover.stop": 1, "failover.join": 2, "failover.join_process": 2,
    }  # fmt: skip
    assert steps.taken == [
        "failover.begin", "failover.join", "failover.stop", "failover.join", "failover.kill",
    ]  # fmt: skip
    assert steps.expected == len(steps.taken)
    assert figures["failover.kill"].middle > 4.0, "the lock of a killed consumer was given away within its grace"
    assert {figure.flush for figure in report.figures} == {"sync"}


def calls(queues: int, *reports: tuple[int, int, int, float]) -> FirstCalls:
    """Of (queue, member, epoch, time)."""
    made = FirstCalls(queues)
    for queue_id, *rest in reports:
        made.add(queue_id, FirstCall(*rest))  # type: ignore[arg-type]
    return made


def test_a_queue_belongs_to_the_member_with_the_highest_epoch() -> None:
    made = calls(1, (0, 2, 7, 1.5), (0, 1, 3, 1.0))

    assert made.of(2) == {0: FirstCall(2, 7, 1.5)}
    assert made.of(1) == {}


def test_queues_are_taken_over_when_the_last_one_was_called_elsewhere() -> None:
    made = calls(3, (0, 1, 1, 0.0), (1, 1, 2, 0.0), (2, 2, 3, 0.0))
    lost = made.of(1)

    made.add(0, FirstCall(2, 4, 5.5))
    assert made.taken_over(lost) is None

    made.add(1, FirstCall(2, 5, 5.25))
    assert made.taken_over(lost) == 5.5


@pytest.mark.parametrize(
    ("reports", "members", "later_s", "at_rest"),
    [
        ([(0, 1, 1, 1.0), (1, 2, 2, 1.0)], 2, QUIET_S, True),
        ([(0, 1, 1, 1.0), (1, 2, 2, 1.0)], 2, QUIET_S - 0.001, False),  # it may move again
        ([(0, 1, 1, 1.0)], 1, QUIET_S, False),  # a queue without an owner
        ([(0, 1, 1, 1.0), (1, 1, 2, 1.0)], 2, QUIET_S, False),  # a member without a share
    ],
)
def test_a_group_is_at_rest_when_all_have_their_share_and_nothing_has_moved(
    reports: list[tuple[int, int, int, float]], members: int, later_s: float, at_rest: bool
) -> None:
    assert calls(2, *reports).at_rest(members, 1.0 + later_s) is at_rest


def test_uneven_shares_are_not_at_rest() -> None:
    made = calls(4, *[(queue_id, 1, queue_id, 0.0) for queue_id in range(3)], (3, 2, 9, 0.0))

    assert not made.at_rest(2, 10.0)
