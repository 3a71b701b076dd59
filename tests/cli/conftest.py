"""One real broker for all tests of this folder that only need some broker; every test uses topics of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from rigs.logged_errors import logging_restored
from rigs.processes import BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process.address


@pytest.fixture(scope="module", autouse=True)
def _logging_as_before_the_module() -> Iterator[None]:
    """Fixtures of a module run commands, too, before a test begins."""
    with logging_restored():
        yield


@pytest.fixture(autouse=True)
def _logging_as_before(logging_as_before: None) -> None:
    """All tests here run commands in their own process."""


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address at which nothing listens, and nothing will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test's own."""
    name: str = request.node.name
    return "".join(c if c.isalnum() else "-" for c in name)[-100:]
