"""Rules for the repository as a whole: versions agree, named files exist, no file has what it must not have."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOP_PACKAGES = set((ROOT / "scripts" / "packages").read_text().split())
MADE = {".git", ".venv", ".cache", ".typing", "build", "dist", "__pycache__"}


@cache
def project_files() -> list[Path]:
    """Return the files that are, or would be, under version control."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        files = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # an unpacked archive, or a checkout that belongs to another user
        files = []
        for folder, subfolders, names in os.walk(ROOT):
            subfolders[:] = [name for name in subfolders if name not in MADE and not name.endswith(("_cache", "-info"))]
            files += [Path(folder, name) for name in names]
    return sorted(path for path in files if path.is_file() and not path.is_symlink())


def python_files() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py"]


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert versions[0] == PROJECT["project"]["version"]


def test_every_entry_of_the_changelog_starts_with_upgrading() -> None:
    entries = re.split(r"^## .*$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]

    assert entries
    for entry in entries:
        assert re.findall(r"^### (.*)$", entry, re.MULTILINE)[0] == "Upgrading"


def test_every_module_that_the_changelog_names_as_a_new_place_exists() -> None:
    rows = re.findall(r"^\| `rmq\.[^|]*\|([^|]*)\|$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    places = [ROOT / name.replace(".", "/") for row in rows for name in re.findall(r"`rmq\.([\w.]+)`", row)]

    assert places
    assert [str(path) for path in places if not (path.is_dir() or path.with_suffix(".py").is_file())] == []


def test_every_file_that_the_makefile_names_exists() -> None:
    named = set(re.findall(r"(?<![\w/.-])(?:\w+/)+\w+\.(?:py|json|md)\b", (ROOT / "Makefile").read_text()))

    assert len(named) > 10
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


def test_every_folder_with_modules_is_a_package() -> None:
    ours = [path.relative_to(ROOT) for path in python_files()]
    folders = {ROOT / path.parent for path in ours if path.parts[0] in TOP_PACKAGES and path.name != "pyspark_rmq.py"}

    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_no_folder_hides_the_installed_package() -> None:
    # Python puts the current folder first: a folder `rmq` would be imported by everything started in the checkout.
    assert not (ROOT / "rmq").exists()
    assert not (ROOT / "rmq.py").exists()


def test_every_test_that_a_guarantee_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "guarantees.md").read_text()))
    tests = [path for path in python_files() if path.is_relative_to(ROOT / "tests")]
    defined = {name for path in tests for name in re.findall(r"def (test_\w+)", path.read_text())}

    assert len(named) > 40
    assert named - defined == set()


def test_no_module_imports_a_package_of_ours_by_its_bare_name() -> None:
    bare = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            bare += [f"{path.relative_to(ROOT)}: {name}" for name in names if name.split(".")[0] in TOP_PACKAGES]

    assert bare == []


def test_no_archive_is_committed() -> None:
    archives = (".whl", ".zip", ".jar", ".tar", ".tgz", ".gz")

    assert [str(path.relative_to(ROOT)) for path in project_files() if path.suffix in archives] == []


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("host of a package index", r"pypi\.org|pythonhosted" + r"\.org|(index-url|find-links)\s*[ =]\s*\S"),
        ("home folder of a user", r"(?<![\w.~$}])/(?:home|Users)/[a-z]\w*/|(?<![\w.~$}])/root" + r"/\S"),
    ],
)
def test_no_file_names_a(what: str, pattern: str) -> None:
    found = []
    for path in project_files():
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")

    assert found == [], f"names the {what}"


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]

    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!-]*", line)] == []


def test_constraints_cover_every_dependency() -> None:
    def canonical(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    pinned = {canonical(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *(name for extra in extras.values() for name in extra)]

    names = {canonical(re.split(r"[\[<>=!~ ;]", line)[0]) for line in wanted}
    assert names - pinned == set()
