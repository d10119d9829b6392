#!/usr/bin/python3
"""Starts the supervisor of a rank: vllm_spark.node.supervise, which deploy copies to the folder `pair` beside this."""

import sys
from pathlib import Path

# The folder belongs to deploy: Python adds nothing to it.
sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent / "pair"))

from vllm_spark.node.supervise import supervisor  # noqa: E402  the path above leads to it

sys.exit(supervisor.main())
