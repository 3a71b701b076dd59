"""Errors say where they happened."""

from __future__ import annotations

import pytest

from rmq.client.scan.reader import naming
from rmq.wire.errors import Refused, RequestTimeout, RmqError, TopicNotFound


@pytest.mark.parametrize("error", [TopicNotFound("gone"), Refused("gone", code=9999), RequestTimeout("gone")])
def test_the_place_comes_first_and_the_kind_stays(error: RmqError) -> None:
    with pytest.raises(type(error), match=r"^queue 7: gone$") as caught, naming("queue 7"):
        raise error

    assert getattr(caught.value, "code", None) == getattr(error, "code", None)
    assert caught.value.__cause__ is error


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(ZeroDivisionError, match=r"^x$"), naming("queue 7"):
        raise ZeroDivisionError("x")
