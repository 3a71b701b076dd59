"""Answers leave together, and nobody's defect keeps those of others."""

from __future__ import annotations

from typing import Any

from rmq.broker.net.connection import Outgoing

from ..fakes import Turns


class Speaker:
    def __init__(self, said: list[str], name: str, *, broken: bool = False) -> None:
        self.said, self.name, self.broken = said, name, broken
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def flush(self) -> None:
        if self.broken:
            raise ZeroDivisionError("a defect")
        self.said.append(self.name)


def test_all_speak_at_the_end_of_the_turn_and_each_once() -> None:
    loop, said = Turns(), list[str]()
    outgoing = Outgoing(loop.call_soon)
    speakers: list[Any] = [Speaker(said, name) for name in "abc"]

    for speaker in speakers:
        outgoing.add(speaker)
    assert (said, len(loop.soon)) == ([], 1)
    loop.turn()
    loop.turn()

    assert said == ["a", "b", "c"]


def test_whoever_is_flushed_at_once_does_not_speak_again_at_the_end_of_the_turn() -> None:
    loop, said = Turns(), list[str]()
    outgoing = Outgoing(loop.call_soon)
    speaker: Any = Speaker(said, "a")

    outgoing.add(speaker)
    outgoing.flush()
    loop.turn()
    assert said == ["a"]
    outgoing.add(speaker)
    loop.turn()

    assert said == ["a", "a"]


def test_the_defect_of_one_ends_it_and_does_not_keep_the_others_back() -> None:
    loop, said = Turns(), list[str]()
    outgoing = Outgoing(loop.call_soon)
    speakers: list[Any] = [Speaker(said, "a", broken=True), Speaker(said, "b")]

    for speaker in speakers:
        outgoing.add(speaker)
    loop.turn()

    assert said == ["b"]
    assert [speaker.aborted for speaker in speakers] == [True, False]
