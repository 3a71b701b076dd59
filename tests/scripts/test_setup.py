"""scripts/setup keeps a .venv that works, and replaces one that does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow

# Stands in for pip: notes its arguments, so that nothing is fetched or built.
PIP = """
import sys
from pathlib import Path
if sys.argv[1:] == ["--version"]:
    print("pip 1 from", Path(__file__).parent)
else:
    with open("pip.calls", "a") as calls:
        calls.write(" ".join(sys.argv[1:]) + "\\n")
"""

# Stands in for the module venv: makes an environment that holds the pip above.
VENV = """
import os, shutil, subprocess, sys
from pathlib import Path
del os.environ["PYTHONPATH"]
subprocess.run([sys.executable, "-m", "venv", "--without-pip", sys.argv[1]], check=True)
(packages,) = Path(sys.argv[1]).glob("lib/python*/site-packages")
shutil.copytree(Path(__file__).parents[2] / "site", packages, dirs_exist_ok=True)
"""

# Reports another version than the Python that it starts.
PYTHON3 = """#!/bin/sh
PYTHONPATH=$PYTHONPATH:$(dirname -- "$0") exec "{real}" "$@"
"""


class Checkout:
    """A copy of the checkout, in a path with a space, with a .venv that holds a stand-in for pip."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin, self.modules = folder / "a checkout", folder / "another bin", folder / "modules"
        for name in ("scripts", "api"):
            shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "setup.py", "constraints.txt"):
            shutil.copy(ROOT / name, self.root)
        for path, text in (
            ("site/pip/__init__.py", ""),
            ("site/pip/__main__.py", PIP),
            ("site/rmq/spark/java.py", "def find_java_home() -> None: ..."),
            ("modules/venv/__init__.py", ""),
            ("modules/venv/__main__.py", VENV),
            ("another bin/sitecustomize.py", "import sys\nsys.version = '3.99 (another build)'\n"),
            ("another bin/python3", PYTHON3.format(real=sys._base_executable)),  # type: ignore[attr-defined]
        ):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        (self.bin / "python3").chmod(0o755)
        venv.create(self.root / ".venv", with_pip=False, symlinks=True)
        (packages,) = self.root.glob(".venv/lib/python*/site-packages")
        shutil.copytree(folder / "site", packages, dirs_exist_ok=True)
        self.pip = packages / "pip"
        self.marker = self.root / ".venv" / "marker"
        self.marker.touch()

    def setup(self, *, path: Path | None = None, **environment: str) -> str:
        """Run scripts/setup and return the last line it prints. ``path`` comes first on PATH."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        first = self.root / ".venv" / "bin" if path is None else path
        kept |= {"PATH": f"{first}:{os.environ['PATH']}", "PYTHONPATH": str(self.modules)} | environment
        done = subprocess.run(["scripts/setup"], cwd=self.root, env=kept, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr.splitlines()[-1].removeprefix("setup: ").partition(" (")[0]

    def setup_twice(self) -> list[str]:
        """Run scripts/setup in two processes at once and return the last line of each."""
        with ThreadPoolExecutor(2) as shells:
            return list(shells.map(lambda _: self.setup(), range(2)))

    def pip_calls(self) -> list[str]:
        """Return the calls of pip since the last question."""
        calls = self.root / "pip.calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path)
    assert made.setup() == "installed everything"
    assert made.marker.exists()
    made.pip_calls()
    return made


def test_another_python3_first_on_path_changes_nothing(checkout: Checkout) -> None:
    assert checkout.setup(path=checkout.bin) == "nothing changed"

    assert checkout.marker.exists()
    assert checkout.pip_calls() == []


def test_a_changed_source_reinstalls_the_project_into_the_same_environment(checkout: Checkout) -> None:
    (checkout.root / "api" / "added.py").touch()

    assert checkout.setup(path=checkout.bin) == "reinstalled the project"

    assert checkout.marker.exists()
    (call,) = checkout.pip_calls()
    assert "--no-deps" in call
    assert checkout.setup(path=checkout.bin) == "nothing changed"


def test_a_changed_constraint_installs_everything_into_the_same_environment(checkout: Checkout) -> None:
    with (checkout.root / "constraints.txt").open("a") as constraints:
        constraints.write("# changed\n")

    assert checkout.setup(path=checkout.bin) == "installed everything"

    assert checkout.marker.exists()
    assert checkout.pip_calls()[-1].endswith(".[spark,dev]")


def test_two_shells_take_turns(checkout: Checkout) -> None:
    assert shutil.which("flock"), "util-linux"
    (checkout.root / "api" / "added.py").touch()

    assert sorted(checkout.setup_twice()) == ["nothing changed", "reinstalled the project"]


def test_naming_a_python_replaces_an_environment_of_another_version(checkout: Checkout) -> None:
    assert checkout.setup(PYTHON=str(checkout.bin / "python3")) == "installed everything"

    assert not checkout.marker.exists()
    assert checkout.setup(path=checkout.bin) == "nothing changed"


@pytest.mark.parametrize("broken", ["bin/python", "pyvenv.cfg"])
@pytest.mark.parametrize("active", [True, False])
def test_an_environment_that_does_not_run_is_made_again(checkout: Checkout, broken: str, active: bool) -> None:
    (checkout.root / ".venv" / broken).unlink()

    assert checkout.setup(path=None if active else checkout.bin) == "installed everything"

    assert not checkout.marker.exists()


def test_an_active_environment_without_pip_is_made_again_once_it_has_to_change(checkout: Checkout) -> None:
    shutil.rmtree(checkout.pip)
    with (checkout.root / "constraints.txt").open("a") as constraints:
        constraints.write("# changed\n")

    assert checkout.setup() == "installed everything"

    assert not checkout.marker.exists()
    assert checkout.pip_calls()[-1].endswith(".[spark,dev]")
