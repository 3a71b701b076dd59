"""
A SparkSession that works as it is: from an environment that is not activated, without ``JAVA_HOME``, in any folder.

Three things have to be right before Java starts, and cannot be mended afterwards: which Python the workers run (not
the one of the driver, unless told), which Java, and how much is logged.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_LOCAL: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

# Spark raises the level of the root to that of its gateway, and says so on standard error unless they are equal.
_ERRORS_ONLY: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


def session(app_name: str = "rmq", conf: Mapping[str, object] | None = None, **more: object) -> SparkSession:
    """
    A session of this process, in which ``spark.read.format("rmq")`` works.

    Settings of Spark come as a mapping or as keywords, ``session(conf={"spark.driver.memory": "4g"})``; ``master``
    stands for ``spark.master``. Without it Spark runs on all cores of this machine. A session that exists is returned,
    with those settings applied that can still be changed.

    Raises:
        JavaNotFound: there is no Java 17 or newer.
        ModuleNotFoundError: pyspark or pyarrow is not installed.
    """
    _need("pyspark")
    if os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable:
        # Workers without it die with no more than "exited unexpectedly".
        _need("pyarrow")
    from pyspark.sql import SparkSession

    settings = settings_of({**(conf or {}), **more}, os.environ)
    prepare(os.environ, settings)
    builder: Any = SparkSession.builder
    # Java reads the file while it starts and never again.
    with tempfile.TemporaryDirectory(prefix="rmq-spark-") as folder:
        logging = Path(folder, "log4j2.properties")
        logging.write_text(_ERRORS_ONLY)
        settings.setdefault("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging.as_uri()}")
        started: SparkSession = builder.appName(app_name).config(map=settings).getOrCreate()
    return started


def settings_of(asked: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """What Spark is told: quiet and local, unless asked otherwise."""
    given = {("spark.master" if name == "master" else name): _text(value) for name, value in asked.items()}
    # Started by spark-submit or with arguments for it, the master was chosen there.
    if not _submitted(environ) and "--master" not in environ.get("PYSPARK_SUBMIT_ARGS", ""):
        given.setdefault("spark.master", "local[*]")
    return {**_QUIET, **(_LOCAL if _is_local(given) else {}), **given}


def prepare(environ: MutableMapping[str, str], settings: Mapping[str, str]) -> None:
    """Name the Python of the workers, the Java and the address to use; what the user named stays."""
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _is_local(settings):
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not _submitted(environ):
        from .java import find_java_home

        environ["JAVA_HOME"] = find_java_home()


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(
            f"{package} is not installed in {sys.executable}, and Spark needs it: "
            f"{sys.executable} -m pip install pyspark pyarrow",
            name=package,
        )


def _submitted(environ: Mapping[str, str]) -> bool:
    """Whether spark-submit started this process, so that Java runs already."""
    return "PYSPARK_GATEWAY_PORT" in environ


def _is_local(settings: Mapping[str, str]) -> bool:
    return settings.get("spark.master", "").startswith("local")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
