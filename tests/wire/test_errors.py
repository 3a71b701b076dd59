"""Codes never change: whoever edits this table breaks every client that is out there."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path

import pytest

from rmq.wire import errors
from rmq.wire.errors import Fatal, Refused, WireError, code_name, from_wire

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"
FATAL = {
    1: ("BadFrame", "BAD_FRAME"),
    2: ("FrameTooLarge", "FRAME_TOO_LARGE"),
    3: ("FrameStalled", "FRAME_STALLED"),
    4: ("HelloRequired", "HELLO_REQUIRED"),
    5: ("HelloTimeout", "HELLO_TIMEOUT"),
    6: ("ProtocolUnsupported", "PROTOCOL_UNSUPPORTED"),
    7: ("SlowReader", "SLOW_READER"),
    8: ("TooManyConnections", "TOO_MANY_CONNECTIONS"),
    9: ("ShuttingDown", "SHUTTING_DOWN"),
    10: ("SessionReplaced", "SESSION_REPLACED"),
}
REFUSED = {
    100: ("BadRequest", "BAD_REQUEST"),
    101: ("UnknownOp", "UNKNOWN_OP"),
    102: ("Internal", "INTERNAL"),
    103: ("TooManyInFlight", "TOO_MANY_IN_FLIGHT"),
    110: ("BadBatch", "BAD_BATCH"),
    111: ("BatchTooLarge", "BATCH_TOO_LARGE"),
    112: ("MessageTooLarge", "MESSAGE_TOO_LARGE"),
    113: ("UnsupportedFormat", "UNSUPPORTED_FORMAT"),
    120: ("BadName", "BAD_NAME"),
    121: ("TopicNotFound", "TOPIC_NOT_FOUND"),
    122: ("TopicExists", "TOPIC_EXISTS"),
    123: ("QueueNotFound", "QUEUE_NOT_FOUND"),
    124: ("OffsetOutOfRange", "OFFSET_OUT_OF_RANGE"),
    130: ("OutOfSequence", "OUT_OF_SEQUENCE"),
    131: ("SequenceConflict", "SEQUENCE_CONFLICT"),
    132: ("ProducerFenced", "PRODUCER_FENCED"),
    140: ("StoreFailed", "STORE_FAILED"),
    141: ("DiskFull", "DISK_FULL"),
    142: ("Damaged", "DAMAGED"),
    143: ("LogTruncated", "LOG_TRUNCATED"),
    144: ("MessagesLost", "MESSAGES_LOST"),
    145: ("MessageNotFound", "MESSAGE_NOT_FOUND"),
    146: ("OtherHistory", "OTHER_HISTORY"),
    150: ("Fenced", "FENCED"),
    151: ("LockHeld", "LOCK_HELD"),
    152: ("NotAMember", "NOT_A_MEMBER"),
    153: ("GroupMismatch", "GROUP_MISMATCH"),
    154: ("GroupNotFound", "GROUP_NOT_FOUND"),
    155: ("MemberNotFound", "MEMBER_NOT_FOUND"),
    156: ("MemberSilent", "MEMBER_SILENT"),
    157: ("BadDelay", "BAD_DELAY"),
}


def test_every_code_keeps_its_class_its_name_and_its_kind() -> None:
    found = {code: (kind.__name__, code_name(code)) for code, kind in WireError.by_code.items()}

    assert found == FATAL | REFUSED
    assert {code for code, kind in WireError.by_code.items() if issubclass(kind, Fatal)} == set(FATAL)
    assert {code for code, kind in WireError.by_code.items() if issubclass(kind, Refused)} == set(REFUSED)


@pytest.mark.parametrize(("codes", "kind"), [(FATAL, "fatal"), (REFUSED, "refused")])
def test_every_code_is_documented_with_its_kind(codes: dict[int, tuple[str, str]], kind: str) -> None:
    text = DOCUMENT.read_text()

    for code, (_, name) in codes.items():
        assert f"| {code} | {name} | {kind} |" in text


def test_every_wire_error_of_the_module_has_a_code() -> None:
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, WireError)]

    without = set(classes) - set(WireError.by_code.values())

    assert without == {WireError, Refused, Fatal}


def test_a_code_that_is_taken_cannot_be_taken_again() -> None:
    with pytest.raises(TypeError, match="code 121 of Thief is taken by TopicNotFound"):
        type("Thief", (Refused,), {"code": 121})

    assert WireError.by_code[121] is errors.TopicNotFound


def test_a_class_without_a_code_of_its_own_takes_none() -> None:
    class Narrower(errors.TopicNotFound):
        pass

    assert Narrower("x").code == 121
    assert WireError.by_code[121] is errors.TopicNotFound


@pytest.mark.parametrize("code", sorted(FATAL | REFUSED))
def test_an_error_survives_the_wire(code: int) -> None:
    error = from_wire(code, "why")

    assert (type(error).__name__, error.name) == (FATAL | REFUSED)[code]
    assert (error.code, error.text, str(error)) == (code, "why", "why")


@pytest.mark.parametrize("code", [11, 99, 104, 999, -5])
def test_an_unknown_code_is_a_plain_refusal_that_keeps_code_and_sentence(code: int) -> None:
    error = from_wire(code, "from the future")

    assert type(error) is Refused
    assert (error.code, error.name, error.text) == (code, f"CODE_{code}", "from the future")
    assert Refused.code == -1


def test_ok_has_a_name() -> None:
    assert code_name(errors.OK) == "OK"


def test_errors_survive_pickling_as_spark_does_it() -> None:
    for error in (from_wire(121, "why"), from_wire(999, "why")):
        again = pickle.loads(pickle.dumps(error))

        assert (type(again), again.code, again.text) == (type(error), error.code, "why")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [(errors.ConfigError, ValueError), (errors.ConnectionLost, ConnectionError), (errors.RequestTimeout, TimeoutError)],
)
def test_local_errors_are_also_the_builtin_ones(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)
    assert issubclass(kind, errors.RmqError)
