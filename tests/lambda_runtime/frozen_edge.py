"""``python -m edge`` whose workers are `layer/frozen.py`."""

from __future__ import annotations

import sys
from functools import partial
from unittest.mock import patch

from edge import __main__ as local_edge
from edge.pool import WorkerPool

WORKER = (sys.executable, "-m", "tests.lambda_runtime.layer.frozen")

if __name__ == "__main__":
    with patch.object(local_edge, "WorkerPool", partial(WorkerPool, command=WORKER)):
        sys.exit(local_edge.main())
