"""A profile of real processes is taken, printed and written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rmq.bench.profiles", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_a_part_is_shown_and_written_for_broker_and_client(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "ordered.json").write_text(
        '{"broker": {}, "client": {"consumer/dispatch/orderly.py _run": 99.0}}'
    )

    ended = run("--quick", "--dir", str(tmp_path / "after"), "--against", str(tmp_path / "before"), "ordered")

    assert ended.returncode == 0, ended.stderr
    shown = ended.stdout
    assert re.findall(r"^== ([\w-]+): .* flush async$", shown, re.MULTILINE) == ["ordered"]
    assert re.findall(r"^-- (\w+): [\d.]+ us of processor time a message", shown, re.MULTILINE) == ["broker", "client"]
    assert re.search(r"^ 99\.000 .* -\d+\.\d+  consumer/dispatch/orderly.py _run$", shown, re.MULTILINE)
    assert sorted(path.name for path in (tmp_path / "after").iterdir()) == [
        "ordered.broker.folded", "ordered.client.folded", "ordered.json", "ordered.txt",
    ]  # fmt: skip
    assert shown == (tmp_path / "after" / "ordered.txt").read_text() + "\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["sned"], "there is no part sned: choose among send-bodies"),
        (["--against", "nowhere", "pull"], "there is no profile of pull in nowhere"),
    ],
)
def test_what_does_not_exist_is_refused(tmp_path: Path, arguments: list[str], why: str) -> None:
    ended = run("--dir", str(tmp_path / "none"), *arguments)

    assert ended.returncode == 2
    assert why in ended.stderr
    assert not (tmp_path / "none").exists()
