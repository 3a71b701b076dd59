"""A profile of real processes is taken, printed and written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_each_part_is_shown_and_written_for_broker_and_client(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rmq.bench.profiles", "--quick", "--dir", str(tmp_path), "send-single", "ordered"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    assert re.findall(r"^== ([\w-]+): .* flush async$", shown, re.MULTILINE) == ["send-single", "ordered"]
    assert re.findall(r"^-- (\w+): [\d.]+ us of processor time a message", shown, re.MULTILINE) == [
        "broker", "client", "broker", "client",
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ordered.broker.folded", "ordered.client.folded", "ordered.txt",
        "send-single.broker.folded", "send-single.client.folded", "send-single.txt",
    ]  # fmt: skip
    assert shown == "".join((tmp_path / f"{name}.txt").read_text() + "\n" for name in ("send-single", "ordered"))


def test_a_part_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rmq.bench.profiles", "--dir", str(tmp_path / "none"), "sned"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 2
    assert "there is no part sned: choose among send-bodies" in ended.stderr
    assert not (tmp_path / "none").exists()
