"""How long nothing answers while one model takes the other's place, by phase, with a warm and a cold compile cache.

Needs the sandbox with `tiny` deployed (`make bench-switch` sees to it). The other model is the sandbox's under another
name. A client asks for both by name all the while: `client` is the longest time between two good answers, whoever gave
them, and `wrong` the answers of another model than the one asked. Warm and cold by turns; judges nothing but `wrong`.
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
CLIENT = paths.ROOT / "molecule" / "switch" / "files" / "two_models.py"
RECIPES = paths.ROOT / "sandbox" / "recipes"
CACHE = "/var/lib/vllm-spark/cache/other"
GAP = re.compile(r"other holds its gates (\d+\.\d+) s after the stop")


def words(folder: Path) -> list[str]:
    """The inventory of the bench, as -e takes it."""
    recipe = yaml.safe_load((RECIPES / "tiny-gemma4.yml").read_text(encoding="utf-8"))
    recipe |= {"name": "tiny-other", "model": {**recipe["model"], "served_name": "tiny-other"}}
    (folder / "tiny-other.yml").write_text(json.dumps(recipe), encoding="utf-8")
    deployments = [
        {"name": "tiny", "recipe": "tiny-gemma4", "hosts": ["spark1"]},
        {"name": "other", "recipe": "tiny-other", "hosts": ["spark1"], "active": False},
    ]
    return ["-e", json.dumps({"vllm_deployments": deployments, "vllm_recipe_folders": [str(folder), str(RECIPES)]})]


def client(given: list[str], to: str) -> dict[str, Any]:
    """Switch, with a client that asks for both; what it saw, and the verb's own phases in seconds."""
    hosts = yaml.safe_load((INVENTORY / "hosts.yml").read_text(encoding="utf-8"))
    url = f"http://{hosts['sparks']['hosts']['spark1']['ansible_host']}:8000"
    verb = ["ansible-playbook", "-i", str(INVENTORY), "switch.yml", "-e", f"to={to}", *given]
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
    seen: dict[str, Any] = json.loads(done.stdout)
    if seen["rc"] or seen["wrong"]:
        raise SystemExit(f"the switch to {to} went wrong: {json.dumps(seen, indent=2)}")
    return seen


def phases(output: str) -> dict[str, float]:
    """The verb's own line, which Ansible may have broken anywhere."""
    said = " ".join(output.split())
    gap = GAP.search(said)
    rest = said[gap.end() :] if gap else ""
    found = {name: re.search(rf"\b{name} (\d+\.\d+)", rest) for name in PHASES.values()}
    if not gap or not all(found.values()):
        raise SystemExit(f"the switch has not said its times: {said[-2000:]}")
    return {"in all": float(gap[1])} | {name: float(match[1]) for name, match in found.items() if match}


def forget_cache() -> None:
    ask = ["ansible", "-i", str(INVENTORY), "spark1", "-b", "-m", "ansible.builtin.file"]
    subprocess.run([*ask, "-a", f"path={CACHE} state=absent"], cwd=paths.ROOT, check=True, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    rows: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder:
        given = words(Path(folder))
        for _ in range(rounds):
            for cache, taken in rows.items():
                if cache == "cold":
                    forget_cache()
                seen = client(given, "other")
                taken.append({"client": seen["gap_s"], **phases(seen["output"])})
                client(given, "tiny")
    names = ["client", "in all", *PHASES.values()]
    print("seconds, medians of", rounds, "rounds; 'in all' and its phases are the verb's own, gates held")
    print(f"{'cache':<6}" + "".join(f"{name:>14}" for name in names))
    for cache, taken in rows.items():
        print(f"{cache:<6}" + "".join(f"{statistics.median(row[name] for row in taken):>14.1f}" for name in names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
