"""The zone of a broker or a member is part of its name."""

from __future__ import annotations

import pytest

from rmq.wire.errors import BadName
from rmq.wire.zones import check_zone, client_in_zone, zone_of_broker, zone_of_member


def test_a_member_carries_its_zone() -> None:
    client = client_in_zone("fra-1", "host@42")

    assert client == "fra-1/host@42"
    assert zone_of_member(f"{client}#0123abcd") == "fra-1"


def test_a_client_without_a_zone_is_in_none() -> None:
    assert client_in_zone("", "host@42") == "host@42"
    assert zone_of_member("host@42#0123abcd") == ""


@pytest.mark.parametrize(("broker", "zone"), [("fra-1@b", "fra-1"), ("b", ""), ("", "")])
def test_a_broker_carries_its_zone(broker: str, zone: str) -> None:
    assert zone_of_broker(broker) == zone


@pytest.mark.parametrize("name", ["", "a/b", "a@b", "a,b", "a:b", "a b", "x" * 65, "a\n"])
def test_a_zone_that_could_be_taken_for_something_else_is_refused(name: str) -> None:
    with pytest.raises(BadName, match=r"the zone .* must be 1 to 64 letters"):
        check_zone(name)


def test_legal_zones_pass() -> None:
    check_zone("eu-central_1.a")
