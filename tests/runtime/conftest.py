"""Fixtures for tests of what every process needs."""

from __future__ import annotations

from ..broker.conftest import logs
from ..consumer.conftest import nothing_left_running

__all__ = ["logs", "nothing_left_running"]
