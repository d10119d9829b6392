"""A profile of the cells that make the figures of the field reports (vllm_spark.bench.reported).

`python -m lab.bench.field_reports [RECIPE] >src/vllm_spark/bench/profiles/field-reports.yml` writes a profile that
measures the cells again: those of one recipe, or all. `-e vllm_bench_profile=field-reports` then runs it.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import yaml

from vllm_spark.bench import reported


def profile(recipe: str = "") -> dict[str, Any]:
    """Return the document of a profile with the cells whose figures were measured with a recipe; all without one.
    Raises ValueError if no figure was."""
    document = reported.document()
    rows = [
        {key: value for key, value in row.items() if key != "figures"}
        for row in document["cells"]
        if not recipe or any(figure["recipe"] == recipe for figure in row.get("figures", []))
    ]
    if not rows:
        raise ValueError(f"no field report has a figure of {recipe}")
    return {key: document[key] for key in ("name", "summary", "source", "rules")} | {"cells": rows}


def main() -> None:
    """Print the profile."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.field_reports", description=__doc__)
    parser.add_argument("recipe", nargs="?", default="", help="only the cells of this recipe")
    print("---")
    yaml.safe_dump(profile(parser.parse_args().recipe), sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
