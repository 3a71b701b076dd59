"""``with_peers`` is ``rmq-bench`` with one command more, and every benchmark learns of the other brokers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from rmq.bench.figures import Report
from rmq.bench.options import Load, Options, Steps
from rmq.bench.rivals import Rival
from rmq.bench.suite import Benchmark
from rmq.cli import rmq_bench
from with_peers import command

from rigs.bench import FixedPeer

pytestmark = pytest.mark.usefixtures("logging_as_before")


def test_it_has_every_command_of_rmq_bench_and_peers() -> None:
    assert set(command.commands) == {*rmq_bench.command.commands, "peers"}
    assert "peers" not in rmq_bench.command.commands


def test_help_has_examples() -> None:
    for path in ([], ["peers"]):
        result = CliRunner().invoke(command, [*path, "--help"])

        assert result.exit_code == 0
        assert "Examples:\n  python tools/bench/with_peers.py " in result.stdout


def test_a_benchmark_learns_of_the_rivals_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Sequence[Rival]]] = []

    def measure(load: Load, options: Options, steps: Steps) -> Report:
        asked.append((options.flush, options.rivals(options.flush)))
        return Report("made-up")

    monkeypatch.setitem(sys.modules, "made_up", SimpleNamespace(measure=measure))
    made = rmq_bench.benchmark_command(Benchmark("made-up", place="made_up"), "")(lambda: None)
    peer = FixedPeer()

    for obj in (None, lambda flush: [peer]):
        assert CliRunner().invoke(made, ["--flush", "sync"], obj=obj).exit_code == 0

    assert asked == [("sync", ()), ("sync", [peer])]
