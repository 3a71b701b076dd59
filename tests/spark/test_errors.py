"""One line of all that Spark says."""

from __future__ import annotations

import pytest

from rmq.spark import one_line
from rmq.spark.java import JavaNotFound
from rmq.wire.errors import ConfigError

AT_PLANNING = """\
[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions: Traceback (most recent call last):
  File "naming.py", line 17, in naming
    yield
rmq.wire.errors.ConnectionLost: no broker at h:1

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "reader.py", line 47, in partitions
    raise type(error)(f"{place}: {error}") from error
rmq.wire.errors.ConnectionLost: topic orders, broker h:1: no broker at h:1 (refused): start one with `rmq-broker start`
 SQLSTATE: 38000"""
IN_A_WORKER = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "shipping.py", line 30, in unpack
ModuleNotFoundError: rmq is not installed in /usr/bin/python3, which runs the Spark workers: install it

	at org.apache.spark.api.python.BasePythonRunner"""
NO_PYARROW = "An exception was thrown from the Python worker:\nModuleNotFoundError: No module named 'pyarrow'"
NOT_OURS = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'pandas'\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            RuntimeError(AT_PLANNING),
            "topic orders, broker h:1: no broker at h:1 (refused): start one with `rmq-broker start`",
        ),
        (
            RuntimeError(IN_A_WORKER),
            "rmq is not installed in /usr/bin/python3, which runs the Spark workers: install it",
        ),
        (
            RuntimeError(NO_PYARROW),
            "pyarrow is not installed in the Python that runs the Spark workers: install it there, on every machine",
        ),
        (ConfigError("the option"), "the option"),
        (RuntimeError(NOT_OURS), "Traceback (most recent call last):"),
        (ValueError("first\nsecond"), "first"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_sentence_of_rmq_is_found_in_whatever_wraps_it(error: BaseException, line: str) -> None:
    assert one_line(error) == line


def test_a_missing_java_is_one_line_as_it_is() -> None:
    line = one_line(JavaNotFound(["JAVA_HOME is not set", "no java on PATH"]))

    assert line.startswith("Spark needs Java 17 or newer (JAVA_HOME is not set; no java on PATH): install a JDK")
