"""The demo tells its story to the end; it checks its promises itself, and says so when one does not hold."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import demo
import demo_stage

EXAMPLES = Path(__file__).parents[2] / "examples"
BARE = {"DEMO_SPARK": "0", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
ENDS_WELL = "Every promise held"


def worker(name: str, *lines: tuple[int, int, int, str, int]) -> demo_stage.Worker:
    """One that consumed (epoch, queue, offset, order, step)."""
    process = subprocess.Popen([sys.executable, "-c", ""], text=True)
    process.wait()
    told = [
        {"epoch": epoch, "queue": queue, "offset": offset, "body": f'{{"order": "{order}", "step": {step}}}'}
        for epoch, queue, offset, order, step in lines
    ]
    return demo_stage.Worker(name, process, told)


@pytest.mark.slow
def test_without_spark_it_keeps_its_promises_fits_80_columns_and_imports_no_spark(tmp_path: Path) -> None:
    """As a stranger runs it: from elsewhere, with nothing set but where Python finds rmq; pyspark may not be loaded."""
    trap = tmp_path / "pyspark"
    trap.mkdir()
    (trap / "__init__.py").write_text("raise SystemExit('the demo imported pyspark')")
    told = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py")],
        cwd=tmp_path,
        env={**BARE, "PYTHONPATH": f"{tmp_path}:{BARE['PYTHONPATH']}", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert told.returncode == 0, told.stderr
    assert told.stderr == ""
    for chapter in ("1  Send", "2  Consume", "3  Crash", "4  Fail", "5  Spark", "What to try next"):
        assert f"\n{chapter}" in told.stdout
    assert "Not shown: it was to be left out." in told.stdout
    assert ENDS_WELL in told.stdout
    assert "\x1b" not in told.stdout
    assert [line for line in told.stdout.splitlines() if len(line) > 80] == []
    assert list(tmp_path.iterdir()) == [trap]


def test_what_is_missing_for_spark_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert demo_stage.why_no_spark() == "pyspark is not installed (in the checkout: pip install '.[spark]')"


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        (((1, 0, 0, "a", 1), (1, 0, 1, "a", 2), (1, 1, 0, "b", 1)), 0),
        (((1, 0, 0, "a", 1), (2, 0, 0, "a", 1), (2, 0, 1, "a", 2)), 0),  # came again, after a change of owner
        (((2, 0, 1, "a", 2), (1, 0, 0, "a", 1)), 0),  # said later, done earlier
        (((1, 0, 0, "a", 1), (1, 0, 2, "b", 1)), 1),  # a hole in the queue
        (((1, 0, 0, "a", 2), (1, 0, 1, "a", 1)), 2),  # steps of an order the wrong way round
    ],
)
def test_the_demo_would_notice(lines: tuple[tuple[int, int, int, str, int], ...], wrong: int) -> None:
    assert len(demo.gaps(worker("first", *lines))) == wrong


class CountingStage(demo_stage.Stage):
    """Where Spark counts what the address says."""

    def spark(self, script: str, *arguments: str) -> str:
        assert (EXAMPLES / script).exists()
        return f"orders has {self.address} messages\n"


def test_a_count_of_spark_that_is_not_what_was_sent_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    demo.read_with_spark(CountingStage(Path(), str(demo.EVENTS)))
    assert "ok  Spark counts as many messages as were sent" in capsys.readouterr().out

    with pytest.raises(demo_stage.Broken, match="Spark counts as many"):
        demo.read_with_spark(CountingStage(Path(), "999"))


def test_a_broken_promise_ends_the_demo_with_code_1_and_its_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(spark_wanted: bool) -> None:
        demo_stage.promise(spark_wanted, "Spark is wanted")

    monkeypatch.setattr(demo, "tell", tell)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--no-spark"])

    assert demo.main() == 1
    assert capsys.readouterr().err == "demo: this did not hold: Spark is wanted\n"


def test_colours_and_the_bar_are_for_terminals_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = iter([3, 7, 10])
    demo_stage.follow("consumed", 10, lambda: next(counts))
    assert demo_stage.ticking("a while", lambda: 17) == 17
    assert capsys.readouterr().out == ""

    counts = iter([5, 10])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    demo_stage.follow("consumed", 10, lambda: next(counts))
    demo_stage.promise(True, "it holds")
    bar, end = capsys.readouterr().out.split("\n", 1)
    assert bar.endswith(f"\r   consumed [{'#' * 30}] 10/10 ")
    assert end == "   \x1b[32mok\x1b[0m  it holds\n"


@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_in_one_line(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py")],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env={**BARE, "TMPDIR": str(tmp_path)},
        check=False,
    )
    os.close(write)

    assert (done.returncode, done.stderr) == (1, "demo: the output cannot be written: Broken pipe\n")
    assert list(tmp_path.iterdir()) == []
