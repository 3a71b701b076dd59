"""Finds the packages: ``api`` is installed as ``rmq``, any other folder of scripts/packages as a subpackage of it."""

from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
TOPS = (ROOT / "scripts" / "packages").read_text().split()

folders = sorted(path.parent.relative_to(ROOT) for top in TOPS for path in (ROOT / top).rglob("__init__.py"))
packages = {"rmq" if folder == Path("api") else f"rmq.{'.'.join(folder.parts)}": str(folder) for folder in folders}
# Spark only finds a data source whose module is a file on sys.path: pyspark_rmq.py is installed as a top-level module.
setup(packages=list(packages), package_dir={"": "spark/plugin", **packages}, py_modules=["pyspark_rmq"])
