"""Write a bundle, in a process of its own.

python -m vllm_spark.transfer.bundle_process    own_process: the request of the action plugin vllm_pull_bundle
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_spark.core import own_process
from vllm_spark.inventory.spec import Spec
from vllm_spark.transfer import bundle
from vllm_spark.transfer.bundle_check import Trust


def work(args: Mapping[str, Any], log: own_process.Log) -> None:
    """Write the bundle. `args`: folder, specs (as JSON), registries (host -> URL), environment (of the hub's library),
    signers, key and unsigned (bundle_check.Trust). Raises RefusedError."""
    request = bundle.BundleRequest.of([Spec.from_json(spec) for spec in args["specs"]])
    sources = bundle.RemoteSources(args["registries"], args["environment"])
    trust = Trust(Path(args["signers"]), args["key"], args["unsigned"])
    bundle.write(Path(args["folder"]), request, sources, trust, log)


if __name__ == "__main__":
    sys.exit(own_process.serve(work))
