"""A Spark that is the machine itself: an interpreter for Ansible's modules that sees a GB10, 128 GB and a Docker engine
in a folder. The machine's own Docker is not asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from fakes import fake_docker
from fakes.fake_docker import Engine
from vllm_spark.core import paths

SMI = """#!/bin/sh
case "$*" in *compute-apps*) ;; *) echo "NVIDIA GB10, 580.95.05, 12.0, 0, 2400, 0x0, Enabled";; esac
"""
INTERPRETER = """#!/bin/sh
PATH={folder}/bin:$PATH PYTHONPATH={folder}/bin exec {python} "$@"
"""
# Python imports it at its start.
CUSTOM = """
import builtins, io, os, platform, socket
opened, path_opened = builtins.open, os.open
def to_fake(path, *arguments, **options):
    return path_opened("{folder}/docker.sock" if str(path).endswith("run/docker.sock") else path, *arguments, **options)
def memory(file, *args, **options):
    if file == "/proc/meminfo":
        return io.StringIO("MemTotal: 127601276 kB\\nMemAvailable: 117440512 kB\\nSwapTotal: 0 kB\\nSwapFree: 0 kB\\n")
    return opened(file, *args, **options)
os.open, builtins.open = to_fake, memory
platform.machine = lambda: "aarch64"
"""


@contextmanager
def running(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the variables of the host in an inventory, while its Docker answers."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "sitecustomize.py").write_text(CUSTOM.format(folder=folder))
    for name, text in {
        "bin/nvidia-smi": SMI,
        "python": INTERPRETER.format(folder=folder, python=sys.executable),
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    with fake_docker.running(Engine(), folder / "docker.sock"):
        yield {
            "ansible_connection": "local",
            "ansible_host": "spark-1a2b.local",
            "ansible_become": False,
            "ansible_python_interpreter": str(folder / "python"),
        }


def write_inventory(folder: Path, host: Mapping[str, Any], recipe: str, **variables: Any) -> Path:
    """Write an inventory with this Spark alone, whose hub cache is in the folder. Returns its file."""
    file = folder / "hosts.yml"
    deployments = [{"name": "mine", "recipe": recipe, "hosts": ["spark1"]}]
    own = {"vllm_deployments": deployments, "vllm_hub_dir": str(folder / "hub"), **variables}
    own |= {"vllm_recipe_folders": [str(folder / "recipes"), str(paths.RECIPES)]}
    file.write_text(yaml.safe_dump({"sparks": {"hosts": {"spark1": dict(host)}, "vars": own}}))
    return file
