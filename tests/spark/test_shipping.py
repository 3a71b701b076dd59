"""A reader that arrives where its package is missing says so."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys

from pyspark import cloudpickle

from rmq.spark.shipping import shipped


class Cargo:
    """What is sent."""

    def __init__(self, *state: object) -> None:
        self.state = state


class Ship:
    """Arrives as a cargo."""

    def __reduce__(self) -> tuple[object, ...]:
        return shipped(Cargo, (1, "two"))


def test_it_arrives_as_it_was_made() -> None:
    made = pickle.loads(cloudpickle.dumps(Ship()))

    assert isinstance(made, Cargo)
    assert made.state == (1, "two")


def test_a_process_without_the_package_names_its_python_and_what_to_do() -> None:
    packed = base64.b64encode(cloudpickle.dumps(Ship())).decode()
    code = f"import base64, pickle, sys; sys.modules['rmq.spark'] = None; pickle.loads(base64.b64decode({packed!r}))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: rmq is not installed in {sys.executable}, which runs the Spark workers: install it "
        "there, on every machine, or name another Python with PYSPARK_PYTHON before Spark starts"
    )
    assert done.stderr.count("ModuleNotFoundError: ") == 1
