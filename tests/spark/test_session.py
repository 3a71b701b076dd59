"""What Spark is told before Java starts, and a job that runs in a bare environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rmq.spark.session import prepare, settings_of
from rmq.wire.batch.batch import Rows

from rigs.real_broker import RealBroker

ROOT = Path(__file__).parent.parent.parent


def test_importing_the_package_imports_no_spark() -> None:
    code = "import sys, rmq.spark; print(callable(rmq.spark.session), 'pyspark' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["True", "False"]


def test_workers_need_no_event_loop_and_no_logging() -> None:
    code = "import sys, rmq.client.scan.reader; print({'asyncio', 'uvloop', 'structlog', 'click'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


def test_spark_runs_here_and_quietly_unless_told_otherwise() -> None:
    settings = settings_of({}, {})

    assert settings["spark.master"] == "local[*]"
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"


def test_settings_are_taken_as_given() -> None:
    settings = settings_of({"master": "spark://far:7077", "spark.ui.enabled": True, "spark.driver.cores": 2}, {})

    assert settings["spark.master"] == "spark://far:7077"
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.driver.cores"] == "2"
    assert "spark.driver.host" not in settings


@pytest.mark.parametrize(
    "environ", [{"PYSPARK_GATEWAY_PORT": "1"}, {"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"}]
)
def test_the_master_that_spark_submit_was_given_stays(environ: dict[str, str]) -> None:
    assert "spark.master" not in settings_of({}, environ)


def test_workers_get_this_python_and_a_java() -> None:
    environ: dict[str, str] = {}

    prepare(environ, {"spark.master": "local[2]"})

    assert environ["PYSPARK_PYTHON"] == sys.executable
    assert Path(environ["JAVA_HOME"], "bin", "java").exists()
    assert environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_what_the_user_named_stays() -> None:
    environ = {"PYSPARK_PYTHON": "/opt/python", "PYSPARK_GATEWAY_PORT": "1", "SPARK_LOCAL_IP": "10.0.0.1"}

    prepare(environ, {"spark.master": "local[2]"})

    assert environ == {"PYSPARK_PYTHON": "/opt/python", "PYSPARK_GATEWAY_PORT": "1", "SPARK_LOCAL_IP": "10.0.0.1"}


@pytest.mark.spark
@pytest.mark.slow
def test_the_example_runs_from_an_empty_folder_without_any_environment(real_broker: RealBroker, tmp_path: Path) -> None:
    real_broker.create("counted", queues=2)
    real_broker.append("counted", 0, Rows([b"x"] * 700, 0, tags=["a"] * 700))
    real_broker.append("counted", 1, Rows([b"x"] * 300, 0))
    job, home = tmp_path / "job", tmp_path / "home"
    job.mkdir()
    home.mkdir()
    shutil.copy(ROOT / "examples" / "spark_count.py", job / "count.py")

    # An environment that has nothing in it but where to find the system's own programs.
    done = subprocess.run(
        [sys.executable, "count.py", real_broker.address, "counted"],
        cwd=job,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("counted has 1000 messages\n")
    assert "|NULL|  300|" in done.stdout and "|   a|  700|" in done.stdout
    assert "Exception" not in done.stderr
    assert [path.name for path in job.iterdir()] == ["count.py"]
