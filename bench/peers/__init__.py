"""Other brokers beside ours: servers from Debian's packages, each driven by the quickest of its Python clients."""

from .compare import measure
from .peer import Peer, peers

__all__ = ["Peer", "measure", "peers"]
