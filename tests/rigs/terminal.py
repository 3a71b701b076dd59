"""Standard input as a terminal, for commands that ask only a person."""

from __future__ import annotations

import io


class Terminal(io.BytesIO):
    """What a person types, as far as a command asks."""

    def isatty(self) -> bool:
        return True
