"""``python examples/pipeline``: makes the folder a package, whose modules then find each other, and runs it."""

from __future__ import annotations

import sys
from pathlib import Path

# A folder that is run has only itself on the path, not the folder it lies in.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from pipeline.commands import main  # noqa: E402

if __name__ == "__main__":
    main()
