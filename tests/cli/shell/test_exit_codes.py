"""Every error has a code that scripts can rely on."""

from __future__ import annotations

import pytest

from rmq.cli.shell import exit_codes
from rmq.wire import errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), exit_codes.CONFIG),
        (errors.ConnectionLost("x"), exit_codes.UNAVAILABLE),
        (errors.TooManyConnections("x"), exit_codes.UNAVAILABLE),
        (errors.ProtocolUnsupported("x"), exit_codes.REFUSED),
        (errors.RequestTimeout("x"), exit_codes.TEMPORARY),
        (errors.OutcomeUnknown("x"), exit_codes.TEMPORARY),
        (errors.DiskFull("x"), exit_codes.TEMPORARY),
        (errors.TopicNotFound("x"), exit_codes.NO_INPUT),
        (errors.MessageNotFound("x"), exit_codes.NO_INPUT),
        (errors.GroupNotFound("x"), exit_codes.NO_INPUT),
        (errors.MemberNotFound("x"), exit_codes.NO_INPUT),
        (errors.MemberSilent("x"), exit_codes.TEMPORARY),
        (errors.Damaged("x"), exit_codes.DATA_ERROR),
        (errors.BadName("x"), exit_codes.USAGE),
        (errors.GroupMismatch("x"), exit_codes.REFUSED),
        (errors.Refused("x", code=999), exit_codes.REFUSED),
    ],
)
def test_the_code_of_an_error(error: errors.RmqError, code: int) -> None:
    assert exit_codes.of(error) == code


def test_codes_are_different_and_fit_a_byte() -> None:
    codes = [value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)]

    assert len(codes) == len(set(codes)) == 13
    assert all(0 <= code < 256 for code in codes)
