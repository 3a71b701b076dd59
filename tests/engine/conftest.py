"""Fixtures for tests of the engine: the client's fake brokers."""

from __future__ import annotations

from ..client.conftest import broker, fake_broker

__all__ = ["broker", "fake_broker"]
