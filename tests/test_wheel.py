"""The wheel is complete, and scripts of users may have the names of our folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "scripts" / "packages").read_text().split()

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | more
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def pip(*arguments: str | Path, cwd: Path, **more: str) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd, **more)


def build(copy: Path, **more: str) -> Path:
    """Build from a copy, so that the checkout keeps no build folder, with installed tools and without a network."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("scripts", *PACKAGES):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    options = ("--quiet", "--no-build-isolation", "--no-deps", "--no-index")
    pip("wheel", *options, "-w", copy / "dist", ".", cwd=copy, **more)
    (built,) = (copy / "dist").glob("rmq-*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide an environment with the wheel and our dependencies, but without the rmq of the checkout."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home / "venv", with_pip=False)
    python = home / "venv" / "bin" / "python"
    pip("--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)

    (home / "dependencies").mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if not entry.name.startswith(("rmq", "pyspark_rmq", "__")):
                (home / "dependencies" / entry.name).symlink_to(entry)
    (site_packages(home) / "dependencies.pth").write_text(f"{home / 'dependencies'}\n")
    return home


def site_packages(home: Path) -> Path:
    (folder,) = (home / "venv" / "lib").glob("python*/site-packages")
    return folder


@pytest.fixture
def folder_of_a_user(tmp_path: Path) -> Path:
    for name in PACKAGES:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('the {name}.py of the user was imported')\n")
    return tmp_path


def test_scripts_named_like_our_folders_do_not_shadow_rmq(installed: Path, folder_of_a_user: Path) -> None:
    code = "import rmq.wire, rmq.broker, rmq.client, rmq.consumer, rmq.cli; print(rmq.broker.__file__)"

    said = run(installed / "venv" / "bin" / "python", "-c", code, cwd=folder_of_a_user)

    assert Path(said.strip()).is_relative_to(site_packages(installed))


@pytest.mark.parametrize("command", ["rmq-broker", "rmq-consume", "rmq-produce", "rmq-admin", "rmq-bench"])
def test_every_command_has_help(installed: Path, folder_of_a_user: Path, command: str) -> None:
    said = run(installed / "venv" / "bin" / command, "--help", cwd=folder_of_a_user)

    assert "Usage" in said


def test_spark_finds_its_module_as_a_file(installed: Path) -> None:
    assert (site_packages(installed) / "pyspark_rmq.py").is_file()


def test_every_source_is_in_the_wheel(installed: Path) -> None:
    sources = {path for name in PACKAGES for path in (ROOT / name).rglob("*.py")} | {ROOT / "api" / "py.typed"}
    sources = {path for path in sources if path.name != "pyspark_rmq.py"}  # installed next to rmq
    expected = {path.relative_to(ROOT / "api" if path.parent == ROOT / "api" else ROOT) for path in sources}

    assert [name for name in sorted(expected) if not (site_packages(installed) / "rmq" / name).is_file()] == []


def test_the_wheel_installs_nothing_else(installed: Path) -> None:
    names = {path.name for path in site_packages(installed).iterdir() if path.name != "__pycache__"}

    assert {name for name in names if not name.endswith((".dist-info", ".pth"))} == {"rmq", "pyspark_rmq.py"}


def test_without_a_compiler_python_replaces_the_c_module(tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    wheel = build(tmp_path / "checkout", CC="/nowhere/cc")
    code = (
        "from rmq.wire.batch import batch, layout, native\n"
        "from rmq.wire.stores import StoreIds\n"
        "rows = batch.Rows([b'1', b'22', b''], 5, index_keys=[('a',), ('b',), ('c',)])\n"
        "data = batch.encode('orders', 0, rows)\n"
        "columns = batch.check(data, stamped=False).columns\n"
        "found = batch.Batch(layout.parse_header(data), columns, b'122', StoreIds(1)).messages()\n"
        "print(native.MADE_BY, [(message.body, message.index_keys) for message in found])\n"
    )
    pip("install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path / "there", wheel, cwd=tmp_path)

    said = run(
        sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'there')!r})\n{code}", cwd=tmp_path
    )

    assert said.strip() == "Python [(b'1', ('a',)), (b'22', ('b',)), (b'', ('c',))]"
