"""Two executors in processes of their own: rows as on one machine, and a clear line where they lack a package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq.wire.batch.batch import Rows

from .reading import loaded
from rigs.real_broker import RealBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

QUEUES, LENGTH = 8, 50
# Executors know their log's address from the process that starts them; the driver and its helpers have none.
SITECUSTOMIZE = """\
import os, pathlib, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == pathlib.Path(os.environ["MISSING"]).read_text():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
if "SPARK_LOG_URL_STDERR" in os.environ:
    sys.meta_path.insert(0, Missing())
"""


def home_of_spark(folder: Path) -> Path:
    """
    The installed Spark under another name: a cluster on one machine leaves its work in Spark's own folder.

    It does so whatever SPARK_WORKER_DIR says, which only workers heed that are started by themselves.
    """
    import pyspark

    folder.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture(scope="module")
def said(real_broker: RealBroker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the job on the cluster printed."""
    real_broker.create("spread", queues=QUEUES)
    for queue_id in range(QUEUES):
        bodies = [b"%d/%d" % (queue_id, i) for i in range(LENGTH)]
        real_broker.append("spread", queue_id, Rows(bodies, 1_750_000_000_123_456, ["a"] * LENGTH))
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (folder / "missing").write_text("")
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
        "MISSING": str(folder / "missing"),
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",  # a short life
        "SPARK_HOME": str(home_of_spark(folder / "spark")),
        "SPARK_WORKER_DIR": str(folder / "spark" / "work"),
    }
    job = Path(__file__).with_name("cluster_job.py")
    done = subprocess.run(
        [sys.executable, str(job), "local-cluster[2,1,1024]", real_broker.address, "spread"],
        env=environ, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (left,) = (folder / "spark" / "work").glob("app-*")
    assert sorted(path.name for path in left.iterdir()) == ["0", "1"]  # a folder of each executor
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def test_eight_queues_are_read_by_two_executor_processes(said: dict[str, Any]) -> None:
    places = {tuple(place[:3]) for part in said["parts"] for place in part}

    assert len(said["parts"]) == QUEUES
    assert {kind for _, _, kind in places} == {"executor"}
    assert len({executor for _, executor, _ in places}) == 2
    assert len({worker for worker, _, _ in places}) >= 2


def test_the_rows_of_a_cluster_are_those_of_one_machine(
    spark: SparkSession, real_broker: RealBroker, said: dict[str, Any]
) -> None:
    rows = loaded(spark, real_broker.address, "spread").collect()

    here = [[*row[:5], bytes(row.body).hex(), str(row.born_at), str(row.stored_at)] for row in rows]
    assert [row for part in said["parts"] for *_, row in part] == here
    assert len(here) == QUEUES * LENGTH


def test_executors_without_the_package_say_in_one_line_where_and_what_to_do(said: dict[str, Any]) -> None:
    line, whole = said["rmq"]

    assert line.startswith(f"rmq is not installed in {sys.executable}, which runs the Spark workers: install it")
    assert whole.count(line) == 1
    assert whole.strip().endswith(line)


def test_executors_without_pyarrow_are_told_of_in_one_line(said: dict[str, Any]) -> None:
    line, whole = said["pyarrow"]

    assert line.startswith("pyarrow is not installed in the Python that runs the Spark workers: install it there")
    assert whole.strip().endswith("ModuleNotFoundError: No module named 'pyarrow'")  # Spark's own words
