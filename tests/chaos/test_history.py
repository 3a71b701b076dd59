"""What the logs of real processes are made into, and that the rules can be seen to be broken in them."""

from __future__ import annotations

from pathlib import Path

from chaos.call_log import END, FAILED, LOST, START, Record, read, read_all
from chaos.history import Done, history_of
from simulation.history import Committed, Continued, Killed, Lost, Sent, Started, Stopped, Wrote
from simulation.ordered import Verdict, judge

BELIEVED_S = 2.0
Q = "orders/0"


def record(
    at: float, process: str, kind: str, epoch: int, offset: int, *, attempt: int = 1, lost: bool = False
) -> Record:
    return Record(at, process, Q, kind, epoch, [offset], [attempt], lost, [f"k {offset}"])


def call(process: str, epoch: int, offset: int, begins: float, ends: float, **more: bool) -> list[Record]:
    return [record(begins, process, START, epoch, offset), record(ends, process, END, epoch, offset, **more)]


def sent(count: int) -> list[Done]:
    return [Sent(0.0, Q, offset, f"k {offset}".encode(), "k", offset) for offset in range(count)]


def verdict(records: list[Record], *done: Done, count: int) -> Verdict:
    return judge(history_of(records, [*sent(count), *done], believed_s=BELIEVED_S), grace_s=3.0, settle_s=60.0)


def test_an_owner_after_the_other_is_right() -> None:
    found = verdict([*call("a", 1, 0, 1, 2), *call("b", 2, 1, 3, 4)], Committed(2.5, Q, 1), count=2)

    assert (found.violations, found.calls, found.fenced_overlaps) == ([], 2, 0)


def test_a_gap_an_early_commit_and_a_message_that_nobody_got_are_seen() -> None:
    gap = verdict([*call("a", 1, 0, 1, 2), *call("b", 2, 2, 3, 4)], count=3)
    early = verdict(call("a", 1, 0, 1, 2), Committed(1.5, Q, 1), count=1)
    missing = verdict(call("a", 1, 0, 1, 2), count=2)

    assert "leaves a gap" in gap.violations[0]
    assert "is committed" in early.violations[0]
    assert "never processed" in missing.violations[0]


def test_a_failed_call_is_given_again_with_the_next_number() -> None:
    first = [record(1, "a", START, 1, 0), record(2, "a", FAILED, 1, 0)]

    again = [record(3, "a", START, 1, 0, attempt=2), record(4, "a", END, 1, 0, attempt=2)]
    same = call("a", 1, 0, 3, 4)

    assert verdict([*first, *again], count=1).violations == []
    assert "failed, and has the same number" in verdict([*first, *same], count=1).violations[0]


def test_an_overlap_that_its_owner_did_not_know_of_is_seen() -> None:
    found = verdict([*call("a", 1, 0, 1, 5), *call("b", 2, 0, 3, 4)], count=1)

    assert "did not know that it lost the queue" in found.violations[0]


def test_a_call_that_knows_of_its_loss_overlaps_fenced() -> None:
    known = [*call("a", 1, 0, 1, 5, lost=True), record(2, "a", LOST, 1, 0, lost=True)]
    found = verdict([*known, *call("b", 2, 0, 3, 4)], count=1)

    assert (found.violations, found.fenced_overlaps) == ([], 1)


def test_a_call_of_a_process_that_was_stopped_for_long_knows_by_the_clock() -> None:
    """The successor's second call begins after the stop, before the first process could write anything."""
    stop = Stopped(1.5, "a"), Continued(7.0, "a")
    successor = [*call("b", 2, 0, 5, 6), *call("b", 2, 1, 7.001, 7.1)]

    knows = verdict([*call("a", 1, 0, 1, 8, lost=True), *successor], *stop, count=2)
    does_not = verdict([*call("a", 1, 0, 1, 8, lost=False), *successor], *stop, count=2)

    assert (knows.violations, knows.fenced_overlaps) == ([], 1)
    assert "did not know" in does_not.violations[0]


def test_a_short_stop_excuses_nothing() -> None:
    stop = Stopped(1.5, "a"), Continued(1.5 + BELIEVED_S, "a")
    found = verdict([*call("a", 1, 0, 1, 8, lost=True), *call("b", 2, 0, 5, 6)], *stop, count=1)

    assert "did not know" in found.violations[0]


def test_a_call_begun_right_before_a_stop_counts_as_begun_then() -> None:
    stop = Stopped(1.5, "a"), Continued(7.0, "a")
    successor = call("b", 2, 0, 5, 6)

    late = [record(7.01, "a", START, 1, 0, lost=True), record(7.02, "a", END, 1, 0, lost=True)]
    later = [record(7.6, "a", START, 1, 0, lost=True), record(7.7, "a", END, 1, 0, lost=True)]

    history = history_of([*late, *successor], [*sent(1), *stop], believed_s=BELIEVED_S)
    assert [event.at for event in history if isinstance(event, Started)] == [1.5, 5]
    assert Lost(7.0, 1) in history
    assert verdict([*late, *successor], *stop, count=1).violations == []
    assert "which fences it" in verdict([*later, *successor], *stop, count=1).violations[0]


def test_a_killed_process_runs_nothing_any_more() -> None:
    half = [record(1, "a", START, 1, 0)]

    assert verdict([*half, *call("b", 2, 0, 5, 6)], Killed(2.0, "a"), count=1).violations == []


def test_the_sink_refuses_whoever_comes_with_an_older_token() -> None:
    stop = Stopped(1.5, "a"), Continued(7.0, "a")
    records = [*call("a", 1, 0, 1, 8, lost=True), *call("b", 2, 0, 5, 6)]

    history = history_of(records, [*sent(1), *stop], believed_s=BELIEVED_S)

    assert [event for event in history if isinstance(event, Wrote)] == [Wrote(6, Q, 2, 0)]


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.calls").write_text('[2.0, "a", "orders/0", "start", 1, [0], [1], false, []]\n[3.0, "a", "ord')
    (tmp_path / "b.calls").write_text('[1.0, "b", "orders/1", "start", 2, [0], [1], false, []]\n')

    assert len(read(tmp_path / "a.calls")) == 1
    assert [one.process for one in read_all(tmp_path)] == ["b", "a"]
