"""Standard input as a terminal, for commands that ask only where somebody can answer."""

from __future__ import annotations

import io


class Terminal(io.BytesIO):
    """What somebody types, as far as anybody asks."""

    def isatty(self) -> bool:
        return True
