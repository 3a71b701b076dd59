"""Public names are imported on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rmq
import rmq.client


@pytest.mark.parametrize("package", [rmq, rmq.client])
def test_every_public_name_can_be_imported(package: object) -> None:
    assert all(hasattr(package, name) for name in package.__all__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", [rmq, rmq.client])
def test_any_other_name_is_an_attribute_error(package: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        package.Nothing  # type: ignore[attr-defined]  # noqa: B018


def test_importing_rmq_loads_no_event_loop_and_no_client() -> None:
    heavy = ("asyncio", "msgpack", "rmq.client", "rmq.wire")
    code = f"import sys, rmq; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
