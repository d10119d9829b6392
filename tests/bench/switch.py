"""Downtime of a switch between two models, by phase, with a warm and a cold compile cache.

Needs the sandbox with `tiny` deployed (`make bench-switch` deploys it). The other model is the sandbox's model under
another name. A client sends requests to both names during the switch. `client` is the longest time between two good
responses of either model, and `wrong` counts responses of the wrong model. Warm and cold runs alternate. Only `wrong`
fails the bench.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from vllm_spark.core import paths
from vllm_spark.lifecycle.switch_report import PHASES

INVENTORY = paths.ROOT / "inventories" / "sandbox"
STATE = paths.ROOT / ".sandbox"
CLIENT = paths.ROOT / "molecule" / "shared" / "files" / "two_models.py"
RECIPES = paths.ROOT / "sandbox" / "recipes"
CACHE = "/var/lib/vllm-spark/cache/other"
GAP = re.compile(r"other holds its gates (\d+\.\d+) s after the stop")


def inventory_options(folder: Path) -> list[str]:
    """Return the -e options with the inventory of the bench."""
    recipe = yaml.load((RECIPES / "tiny-gemma4.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    recipe |= {"name": "tiny-other", "model": {**recipe["model"], "served_name": "tiny-other"}}
    (folder / "tiny-other.yml").write_text(json.dumps(recipe), encoding="utf-8")
    deployments = [
        {"name": "tiny", "recipe": "tiny-gemma4", "hosts": ["spark1"]},
        {"name": "other", "recipe": "tiny-other", "hosts": ["spark1"], "active": False},
    ]
    return ["-e", json.dumps({"vllm_deployments": deployments, "vllm_recipe_folders": [str(folder), str(RECIPES)]})]


def switch_with_client(options: list[str], to: str) -> dict[str, Any]:
    """Switch while a client sends requests to both models. Returns the client's JSON result."""
    hosts = yaml.load((INVENTORY / "hosts.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    url = f"http://{hosts['sparks']['hosts']['spark1']['ansible_host']}:8000"
    verb = ["ansible-playbook", "-i", str(INVENTORY), "switch.yml", "-e", f"to={to}", *options]
    done = subprocess.run(
        [str(CLIENT), f"--url={url}", "--models=tiny-gemma4,tiny-other", "--", *verb],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "ANSIBLE_FORCE_COLOR": "0",
            "VLLM_API_KEY": (STATE / "api_key").read_text(encoding="utf-8").strip(),
        },
    )
    result: dict[str, Any] = json.loads(done.stdout)
    if result["rc"] or result["wrong"]:
        raise SystemExit(f"the switch to {to} failed: {json.dumps(result, indent=2)}")
    return result


def phases(output: str) -> dict[str, float]:
    """Return phase -> seconds from the output of the verb. Ansible may wrap its line anywhere."""
    text = " ".join(output.split())
    gap = GAP.search(text)
    rest = text[gap.end() :] if gap else ""
    matches = {name: re.search(rf"\b{name} (\d+\.\d+)", rest) for name in PHASES.values()}
    if not gap or not all(matches.values()):
        raise SystemExit(f"the output of the switch has no times: {text[-2000:]}")
    return {"in all": float(gap[1])} | {name: float(match[1]) for name, match in matches.items() if match}


def remove_cache() -> None:
    command = ["ansible", "-i", str(INVENTORY), "spark1", "-b", "-m", "ansible.builtin.file"]
    subprocess.run([*command, "-a", f"path={CACHE} state=absent"], cwd=paths.ROOT, check=True, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    rows: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder:
        options = inventory_options(Path(folder))
        for _ in range(rounds):
            for cache, measurements in rows.items():
                if cache == "cold":
                    remove_cache()
                result = switch_with_client(options, "other")
                measurements.append({"client": result["gap_s"], **phases(result["output"])})
                switch_with_client(options, "tiny")
    names = ["client", "in all", *PHASES.values()]
    print(
        "seconds, medians of", rounds, "rounds; 'in all' and its phases are the times of the verb until the gates pass"
    )
    print(f"{'cache':<6}" + "".join(f"{name:>14}" for name in names))
    for cache, measurements in rows.items():
        print(
            f"{cache:<6}" + "".join(f"{statistics.median(row[name] for row in measurements):>14.1f}" for name in names)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
