"""The room of a broker or a member is part of its name."""

from __future__ import annotations

import pytest

from rmq.wire.errors import BadName
from rmq.wire.zones import check_room, client_in, room_of_broker, room_of_member


def test_a_member_carries_its_room() -> None:
    client = client_in("fra-1", "host@42")

    assert client == "fra-1/host@42"
    assert room_of_member(f"{client}#0123abcd") == "fra-1"


def test_a_client_without_a_room_is_in_none() -> None:
    assert client_in("", "host@42") == "host@42"
    assert room_of_member("host@42#0123abcd") == ""


@pytest.mark.parametrize(("broker", "room"), [("fra-1@b", "fra-1"), ("b", ""), ("", "")])
def test_a_broker_carries_its_room(broker: str, room: str) -> None:
    assert room_of_broker(broker) == room


@pytest.mark.parametrize("name", ["", "a/b", "a@b", "a,b", "a:b", "a b", "x" * 65, "a\n"])
def test_a_room_that_could_be_taken_for_something_else_is_refused(name: str) -> None:
    with pytest.raises(BadName, match=r"the room .* must be 1 to 64 letters"):
        check_room(name)


def test_legal_rooms_pass() -> None:
    check_room("eu-central_1.a")
