"""A folder that is added to scripts/packages is installed, fingerprinted and checked without another list."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from refdocs.log_calls import events_of
from refdocs.pages import COMPONENTS

ROOT = Path(__file__).parent.parent
TOPS = (ROOT / "scripts" / "packages").read_text().split()
WRONG = "def answer() -> int:\n    return 'not a number'\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A small checkout with the folder ``extra``, which nothing but scripts/packages names."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("scripts", "api", "spark"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "extra" / "inner").mkdir(parents=True)
    for folder in (tmp_path / "extra", tmp_path / "extra" / "inner"):
        (folder / "__init__.py").touch()
    (tmp_path / "extra" / "inner" / "answer.py").write_text(WRONG)
    (tmp_path / "scripts" / "packages").write_text("api\nspark\nextra\n")
    pyproject = (tmp_path / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text("".join(x for x in pyproject.splitlines(True) if "ext-modules" not in x))
    return tmp_path


def run(cwd: Path, *command: str) -> str:
    """Return what a command prints, whether or not it succeeds."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_an_added_folder_is_in_the_wheel(copy: Path) -> None:
    run(copy, sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "--no-index", ".")

    (wheel,) = copy.glob("rmq-*.whl")
    assert {"rmq/__init__.py", "rmq/extra/inner/answer.py"} <= set(zipfile.ZipFile(wheel).namelist())


def test_a_change_in_an_added_folder_changes_the_fingerprint_of_the_sources(copy: Path) -> None:
    before = run(copy, sys.executable, "scripts/fingerprint").split()
    (copy / "extra" / "inner" / "answer.py").write_text(WRONG + "\n")
    after = run(copy, sys.executable, "scripts/fingerprint").split()

    assert before[0] == after[0]
    assert before[1] != after[1]


@pytest.mark.slow
def test_mypy_checks_an_added_folder(copy: Path) -> None:
    run(copy, "scripts/typing-links")

    assert "extra/inner/answer.py:2: error: Incompatible return value" in run(
        copy, sys.executable, "-m", "mypy", ".typing/rmq/extra"
    )


def test_import_linter_sees_an_added_folder(copy: Path) -> None:
    run(copy, "scripts/typing-links")
    code = "import grimp; print(sorted(grimp.build_graph('rmq', cache_dir=None).modules))"

    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy / ".typing")},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "'rmq.extra.inner.answer'" in found.stdout


def contract(name: str) -> dict[str, list[str]]:
    """Return the contract of import-linter with this id."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (each for each in contracts if each["id"] == name)
    return dict(found)


def imported(module: ast.Module) -> set[str]:
    """Return the packages that a module imports, without ours."""
    nodes = [node for node in ast.walk(module) if isinstance(node, ast.Import | ast.ImportFrom)]
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {name.split(".")[0] for name in plain} | {
        (node.module or "").split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and not node.level
    }


def test_the_layers_name_every_folder() -> None:
    layers = contract("layers")["layers"]

    # api is the root package itself.
    assert {name.strip() for layer in layers for name in layer.split("|")} | {"api"} == set(TOPS)


def test_every_folder_that_logs_is_in_the_reference() -> None:
    listed = {folder for folders in COMPONENTS.values() for folder in folders}

    assert listed <= set(TOPS)
    assert events_of(ROOT, {name: (name,) for name in TOPS if name not in listed}) == []


def test_every_module_that_calls_itself_pure_is_in_the_contract_that_keeps_it_so() -> None:
    pure = contract("pure")
    covered = (*contract("pure-wire")["source_modules"], *pure["source_modules"])
    missing = []
    for path in sorted(path for top in TOPS for path in (ROOT / top).rglob("*.py")):
        module = ast.parse(path.read_text())
        name = ".".join(("rmq", *path.relative_to(ROOT).with_suffix("").parts))
        claims = re.search(r"\bPure\b|: pure\b", ast.get_docstring(module) or "")
        # Where only a part of a module is pure, the others need what the contract forbids.
        if claims and not imported(module) & set(pure["forbidden_modules"]):
            missing += [name] if not f"{name}.".startswith(tuple(f"{each}." for each in covered)) else []

    assert missing == [], "add them to the contract `pure` in pyproject.toml"
