"""Fixtures and hooks for all tests: the event loop of a test, the installed copy, options, the order of files."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from xdist.scheduler import LoadScopeScheduling

from rigs.logged_errors import logging_restored
from rigs.no_skips import NoSkips, wanted
from rigs.recorded_numbers import RecordedNumbers
from rigs.virtual_time import VirtualTimeLoop

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "scripts" / "packages").read_text().split()


@pytest.fixture
def plain_signals() -> Iterator[None]:
    """SIGINT and SIGTERM as in a program that handles none: tests before, of Spark for one, may have left handlers."""
    plain = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in plain.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fail-on-skip", action="store_true", help="fail if a test was skipped, deselected or xfailed")
    parser.addoption("--chaos-seeds", type=int, default=0, help="run tests that take a seed with this many of them")
    parser.addoption("--seed", type=int, help="run tests that take a seed with this one only")
    parser.addoption("--replay", type=Path, help="judge this recording of a workload instead of making one")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell that started pytest in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if wanted(config):
        config.pluginmanager.register(NoSkips(), "no-skips")
    config.pluginmanager.register(RecordedNumbers(), "recorded-numbers")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a ``seeds`` marker runs with those, or with as many as were asked for."""
    if "seed" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("seeds")
    if marker is None:
        return  # it chooses its own
    seeds: list[int] = list(marker.args)
    if metafunc.config.getoption("--seed") is not None:
        seeds = [metafunc.config.getoption("--seed")]
    elif metafunc.config.getoption("--chaos-seeds"):
        seeds = list(range(1, metafunc.config.getoption("--chaos-seeds") + 1))
    metafunc.parametrize("seed", seeds, ids=[f"seed{seed}" for seed in seeds])


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse to test an outdated copy: rmq is installed as one, so edits to the checkout do not reach it."""
    stale = _first_difference()
    if stale is not None:
        raise pytest.UsageError(f"the installed rmq is not this checkout's ({stale}): run scripts/setup, then again")


def _first_difference() -> str | None:
    spec = importlib.util.find_spec("rmq")
    if spec is None or not spec.submodule_search_locations:
        return "rmq is not installed"
    installed = Path(spec.submodule_search_locations[0])
    theirs = {path.relative_to(installed): path for path in installed.rglob("*.py")}
    sources = (path for top in PACKAGES for path in (ROOT / top).rglob("*.py"))
    packaged = [path for path in sources if (path.parent / "__init__.py").exists()]
    ours = {path.relative_to(ROOT / "api" if path.parts[-2] == "api" else ROOT): path for path in packaged}
    for name in sorted(theirs.keys() | ours.keys()):
        if name not in theirs or name not in ours or theirs[name].read_bytes() != ours[name].read_bytes():
            return f"{name} differs"
    return None


# What takes longest begins first, so that no core waits for another at the end.
LONGEST = ("tests/scenarios/test_every_prefix.py", "tests/spark/", "tests/scenarios/", "tests/broker/store/")


class FilesTogether(LoadScopeScheduling):
    """Spreads files over the cores, each as a whole, so that what its tests share is made once. Spark tests are one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "tests/spark" if file.startswith("tests/spark/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    # Not --dist loadgroup: it names the groups in a field that pytest 9.2 does not look at any more.
    if config.getvalue("dist") != "loadfile":
        return None  # many seeds of one test are to be spread
    config.option.loadscopereorder = False  # the order below is better than "most tests first"
    return FilesTogether(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests are spread over cores, the long ones begin."""
    if config.pluginmanager.has_plugin("dsession") or hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: next((i for i, path in enumerate(LONGEST) if item.nodeid.startswith(path)), len(LONGEST))
        )


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """A command configures logging for its whole process, which in a test is that of all tests."""
    with logging_restored():
        yield


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualTimeLoop}
    if item.get_closest_marker("both_loops"):
        return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}
