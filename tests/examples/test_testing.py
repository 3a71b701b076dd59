"""``examples/testing``: tests of a user, run as a user runs them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .running import EXAMPLES

pytestmark = pytest.mark.slow


def test_the_tests_of_a_user_pass_in_strict_mode() -> None:
    """With the folder's own settings, not ours: pytest-asyncio is strict there, and conftest.py names the fixture."""
    without = [f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "xdist")]
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-W", "error", *without, "examples/testing"],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "asyncio: mode=Mode.STRICT" in done.stdout
    assert "5 passed" in done.stdout
