"""Run the function of one job. A separate module, so that the classes of job.py exist once in the process.

python3 -m vllm_spark.node.pull.run JOB MODULE FUNCTION
"""

from __future__ import annotations

import importlib
import os
import sys

from vllm_spark.node.pull import job


def main() -> int:
    """Run a function of a module of this package as a job. Returns the exit status."""
    job_id, module, function = sys.argv[1:]
    os.umask(0o022)
    return job.run(job_id, getattr(importlib.import_module(f"vllm_spark.node.pull.{module}"), function))


if __name__ == "__main__":
    sys.exit(main())
