"""
What went wrong, in one line.

Spark wraps what a data source raises into an error of its own, between tracebacks of two languages. The sentence that
tells what to do is in there: this finds it.
"""

from __future__ import annotations

import re
from typing import Final

# The last line of a traceback in Python: the class with its module, and the sentence. The second one is of shipping.py,
# which cannot use a class of ours where rmq is missing.
_OURS: Final = re.compile(r"^(?:rmq(?:\.\w+)+: |ModuleNotFoundError: (?=rmq is not installed ))(.+)$", re.M)

_NO_PYARROW: Final = "ModuleNotFoundError: No module named 'pyarrow'"  # Spark's own, before anything of ours is run


def one_line(error: BaseException) -> str:
    """
    The reason of an error in one line: the sentence of rmq, wherever Spark put it, or else the first line of the error.

    ::

        try:
            print(orders.count())
        except Exception as error:
            sys.exit(one_line(error))
    """
    text = str(error).strip()
    if _NO_PYARROW in text:
        return "pyarrow is not installed in the Python that runs the Spark workers: install it there, on every machine"
    if found := _OURS.findall(text):
        return str(found[-1]).strip()
    return text.splitlines()[0] if text else type(error).__name__
