"""Where an error happened: of a Spark job that failed, its message is all that users see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rmq.wire.errors import RmqError, WireError, from_wire


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Put the place in front of every error of rmq that is raised inside."""
    try:
        yield
    except WireError as error:
        raise from_wire(error.code, f"{place}: {error}") from error
    except RmqError as error:
        raise type(error)(f"{place}: {error}") from error
