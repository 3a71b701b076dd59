"""Where a broker listens: ``host:port``, an IPv6 host in brackets."""

from __future__ import annotations

from typing import NamedTuple

from .errors import ConfigError


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, any_port: bool = False) -> Address:
    """
    The address in ``text``; with ``any_port`` the port may be 0, which asks the system for a free one.

    Raises:
        ConfigError: it is no ``host:port``; the sentence says how one is written.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif "//" in text:
        raise ConfigError(f"the address {text!r} is not host:port: write it without {text.partition('//')[0]}//")
    elif ":" in host:
        raise ConfigError(f"the address {text!r} is not host:port: write an IPv6 host in brackets, as in [::1]:10911")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise ConfigError(f"the address {text!r} is not host:port: write for example 127.0.0.1:10911")
    if len(port) > 5 or not (0 if any_port else 1) <= int(port) < 65536:
        raise ConfigError(f"the port of {text!r} is not 1 to 65535: write for example {host}:10911")
    return Address(host, int(port))
