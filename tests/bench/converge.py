"""Time of a deploy that changes nothing, above Ansible's start-up, against the same modules over one new SSH session.

Needs the sandbox with `tiny` deployed (`make bench-converge` deploys it). Prints ratios of alternating measurements. It
has no limits and cannot fail. The floor runs the project's own modules without Ansible, in one Python process over one
new connection.
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
import time
from collections.abc import Callable
from graphlib import TopologicalSorter
from typing import Any

import yaml

from vllm_spark.core import paths
from vllm_spark.deploy import launch, plan
from vllm_spark.inventory import spec
from vllm_spark.verify import runner

INVENTORY = paths.ROOT / "inventories" / "sandbox"
STATE = paths.ROOT / ".sandbox"
HOST = "spark1"
UTILS = r"ansible_collections\.vllm_spark\.toolkit\.plugins\.module_utils"
IMPORT = re.compile(rf"^from {UTILS}\.(spark_\w+) import", re.MULTILINE)

# Replaces Ansible on the host: passes the parameters to a module and collects its result.
STUB = """
import json, sys, types
results, current = [], {}
class Done(Exception): pass
class AnsibleModule:
    check_mode = False
    def __init__(self, argument_spec, **_):
        defaults = {name: option.get("default") for name, option in argument_spec.items()}
        self.params = defaults | current["params"]
    def exit_json(self, **result):
        results.append(result); raise Done
    def fail_json(self, **result):
        raise SystemExit(json.dumps(result))
def module(name, source, **names):
    loaded = types.ModuleType(name); loaded.__dict__.update(names)
    exec(compile(source, name, "exec"), loaded.__dict__); sys.modules[name] = loaded
    return loaded
UTILS_PACKAGE = "ansible_collections.vllm_spark.toolkit.plugins.module_utils"
packages = [".".join(UTILS_PACKAGE.split(".")[:depth]) for depth in range(1, 6)]
for name in ("ansible", "ansible.module_utils", *packages):
    sys.modules[name] = types.ModuleType(name)
basic = types.ModuleType("ansible.module_utils.basic"); basic.AnsibleModule = AnsibleModule
sys.modules["ansible.module_utils.basic"] = basic
sources = json.loads(SOURCES)
for name in json.loads(UTILS):
    module(f"{UTILS_PACKAGE}.{name}", sources[name])
for name, params in json.loads(CALLS):
    current["params"] = params
    try:
        module(name, sources[name]).main()
    except Done:
        pass
print(json.dumps(results))
"""


def source(folder: str, name: str) -> str:
    return (paths.ROOT / "plugins" / folder / f"{name}.py").read_text(encoding="utf-8")


def floor_script(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Return a Python script that runs the modules one after the other."""
    names = [file.stem for file in (paths.ROOT / "plugins" / "module_utils").glob("spark_*.py")]
    sources = {name: source("module_utils", name) for name in names}
    # A module may import another one.
    imported = {name: IMPORT.findall(text) for name, text in sources.items()}
    utils = list(TopologicalSorter(imported).static_order())
    sources |= {name: source("modules", name) for name, _ in calls}
    return f"SOURCES = {json.dumps(sources)!r}\nUTILS = {json.dumps(utils)!r}\nCALLS = {json.dumps(calls)!r}\n{STUB}"


def ssh(script: str) -> list[dict[str, Any]]:
    """Run a script on the host over a new connection and return the results of the modules."""
    hosts = yaml.safe_load((INVENTORY / "hosts.yml").read_text(encoding="utf-8"))
    address = hosts["sparks"]["hosts"][HOST]["ansible_host"]
    argv = ["ssh", "-F", "none", "-o", "ControlPath=none", "-i", str(STATE / "id_ed25519")]
    argv += ["-o", f"UserKnownHostsFile={STATE / 'known_hosts'}", f"spark@{address}", "sudo python3 -"]
    done = subprocess.run(argv, input=script, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def questions() -> tuple[list[tuple[str, dict[str, Any]]], spec.Spec]:
    """Return the module calls of a deploy that changes nothing, and the resolved spec."""
    placed = yaml.safe_load((INVENTORY / "group_vars" / "all" / "vllm.yml").read_text(encoding="utf-8"))
    # `active` is a template in this file, and `tiny` is the default.
    tiny = next(entry for entry in placed["vllm_deployments"] if entry["name"] == "tiny") | {"active": True}
    inventory = spec.Inventory(
        deployments=[tiny],
        sparks=("spark1", "spark2"),
        limit=(HOST,),
        recipe_folders=(paths.ROOT / "sandbox" / "recipes",),
        lock_file=INVENTORY / "lock.yml",
        secrets={"VLLM_API_KEY": True},
        edge={"open": True},
    )
    found = spec.resolve(inventory, HOST)
    if found is None:
        raise SystemExit(f"no deployment for {HOST}; see {INVENTORY}")
    asked = plan.questions(found)
    facts = ssh(floor_script([("spark_facts", asked)]))[0]["facts"]
    made = plan.build(found, facts, "bench")
    key = (STATE / "api_key").read_text(encoding="utf-8").strip()
    files = {
        "folders": list(made.folders),
        "files": [file for file in made.to_json()["files"] if not file["path"].endswith("deployed.json")],
        "env_path": made.env_path,
        "env_content": launch.env_file({"VLLM_API_KEY": key}),
    }
    gate_request = runner.gate_request(found, launch.fingerprint(found))
    probe = {name: getattr(gate_request, name) for name in ("unit", "container", "address", "port", "state_path")} | {
        "env_path": made.env_path,
        "requests": runner.rounds(gate_request)[0].requests,
    }
    return [("spark_facts", asked), ("vllm_files", files), ("vllm_probe", probe)], found


def ansible(*args: str) -> subprocess.CompletedProcess[str]:
    command = ["ansible-playbook", "-i", str(INVENTORY), "-l", HOST, *args]
    env = {**os.environ, "ANSIBLE_FORCE_COLOR": "0"}
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done


def timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def summary_line(name: str, seconds: list[float]) -> str:
    return f"{name:<44} {statistics.median(seconds):6.2f} s   ({min(seconds):.2f} to {max(seconds):.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    calls, _ = questions()
    script = floor_script(calls)
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as empty:
        empty.write("---\n- name: Nothing\n  hosts: sparks\n  gather_facts: false\n")
        empty.flush()
        output = ansible("deploy.yml", "-vvv").stdout
        if not re.search(rf"{HOST} +: ok=\d+ +changed=0 ", output):
            raise SystemExit("this deploy changed something; the bench needs a deploy that changes nothing\n" + output)
        executions = len(re.findall(r"SSH: EXEC", output))
        start, deploy, floor = [], [], []
        for _ in range(rounds):
            start.append(timed(lambda: ansible(empty.name)))
            deploy.append(timed(lambda: ansible("deploy.yml")))
            floor.append(timed(lambda: ssh(script)))
    above = [whole - begin for whole, begin in zip(deploy, start, strict=True)]
    ratio = statistics.median(above) / statistics.median(floor)
    print(summary_line("ansible-playbook with an empty play", start))
    print(summary_line("deploy.yml that changes nothing", deploy))
    print(summary_line("  above the empty play", above))
    print(summary_line("one new SSH connection, the same modules", floor))
    print(f"ratio {ratio:.2f} (aim: at most 3); remote executions {executions} (aim: at most 4); {rounds} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
