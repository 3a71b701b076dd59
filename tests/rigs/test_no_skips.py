"""A run that leaves tests out fails in CI, and says which."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import pytest
from rigs.no_skips import NoSkips, wanted

def pytest_addoption(parser):
    parser.addoption("--fail-on-skip", action="store_true")

def pytest_configure(config):
    if wanted(config):
        config.pluginmanager.register(NoSkips())
"""

TESTS = {
    "skipped": "import pytest\n@pytest.mark.skip(reason='too hard')\ndef test_a(): pass\n",
    "module": "import pytest\npytest.skip('no Spark here', allow_module_level=True)\n",
    "xfail": "import pytest\n@pytest.mark.xfail(reason='known')\ndef test_a(): assert False\n",
    "fine": "def test_a(): pass\ndef test_b(): pass\n",
}


def run(folder: Path, kind: str, *arguments: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(TESTS[kind])
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "CI": ci}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("kind", "arguments", "named"),
    [
        ("skipped", [], "skipped: test_it.py::test_a (Skipped: too hard)"),
        ("module", [], "skipped: test_it.py (Skipped: no Spark here)"),
        ("xfail", [], "expected to fail: test_it.py::test_a (known)"),
        ("fine", ["-k", "test_a"], "deselected: test_it.py::test_b"),
    ],
)
def test_what_is_left_out_fails_and_is_named(tmp_path: Path, kind: str, arguments: list[str], named: str) -> None:
    done = run(tmp_path, kind, "--fail-on-skip", *arguments)

    # A run of which nothing is left has a code of its own (5), which is a failure too.
    assert done.returncode in (1, 5)
    assert named in done.stdout


def test_the_environment_of_ci_turns_it_on(tmp_path: Path) -> None:
    assert run(tmp_path, "skipped", ci="true").returncode == 1


def test_a_skip_is_fine_elsewhere_and_a_full_run_is_fine_in_ci(tmp_path: Path) -> None:
    assert run(tmp_path, "skipped").returncode == 0
    assert run(tmp_path, "fine", ci="true").returncode == 0
