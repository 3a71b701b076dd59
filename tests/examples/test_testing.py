"""``examples/testing``: tests of a user, run as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .running import EXAMPLES

pytestmark = pytest.mark.slow


def test_the_tests_of_a_user_pass_in_strict_mode(tmp_path: Path) -> None:
    """In a folder without our settings: pytest-asyncio is strict there, and only conftest.py names the fixture."""
    copied = [(tmp_path / path.name).write_text(path.read_text()) for path in (EXAMPLES / "testing").glob("*.py")]
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    without = [f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "xdist")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *without, "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
    assert len(copied) == 3
