"""The module by which Spark finds the source."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark


def test_it_is_a_file_that_spark_can_discover() -> None:
    code = "import pkgutil; print([m.name for m in pkgutil.iter_modules() if m.name.startswith('pyspark_rmq')])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")

    assert done.stdout.strip() == "['pyspark_rmq']"
    assert "pyspark_rmq" in {module.name for module in pkgutil.iter_modules()}


def test_it_needs_no_pyarrow_to_be_imported() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; import pyspark_rmq; print(pyspark_rmq.DefaultSource.name())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "rmq"


def test_a_missing_pyarrow_is_one_clear_sentence() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; import pyspark_rmq\n"
        "try: pyspark_rmq.DefaultSource({'broker': 'h:1', 'topic': 't'})\n"
        "except ValueError as error: print(error)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.startswith(f"pyarrow is not installed in {sys.executable}, which Spark runs: ")
