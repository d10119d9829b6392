"""pip as on another machine: `python -m vllm_spark.pinning.pip_elsewhere MARKERS WORD...`, MARKERS as JSON.

pip chooses files for another Python and platform, but it judges the markers of requirements (`python_version < "3.13"`)
for the Python that runs it (https://github.com/pypa/pip/issues/11664). pip's report has the markers that it judged by.
"""

from __future__ import annotations

import json
import runpy
import sys


def main() -> None:
    from pip._vendor.packaging import markers  # noqa: PLC0415  a Python without pip is told by the parent

    elsewhere, own = json.loads(sys.argv.pop(1)), markers.default_environment
    markers.default_environment = lambda: {**own(), **elsewhere}
    runpy.run_module("pip", run_name="__main__")


if __name__ == "__main__":
    main()
