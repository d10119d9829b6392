"""Folders and files of the toolkit on a Spark. They are constant, because units and programs name them literally."""

from __future__ import annotations

CONFIG_DIR = "/etc/vllm-spark"
RUN_DIR = "/run/vllm-spark"
UNIT_DIR = "/etc/systemd/system"
UNIT_FILE = f"{UNIT_DIR}/vllm@.service"

PROGRAM_DIR = "/usr/local/lib/vllm-spark"
SUPERVISOR = f"{PROGRAM_DIR}/supervise"
# The modules of the supervisor, and the key of a pair's link in the folder of its deployment.
SUPERVISOR_MODULES = f"{PROGRAM_DIR}/pair"
LINK_KEY = "link.key"
LIVENESS = f"{PROGRAM_DIR}/liveness"
# In the PATH, because operators type its name.
SWITCH_PROGRAM = "/usr/local/bin/vllm-switch"

# Of `bench`: programs, and the evidence of a run that has not been fetched yet.
BENCH_PROGRAM_DIR = f"{PROGRAM_DIR}/bench"
BENCH_DIR = "/var/lib/vllm-spark/bench"

# Of `pull`: programs, states of jobs, and cached image layers as the registry serves them.
PULL_PROGRAM_DIR = f"{PROGRAM_DIR}/pull"
JOBS_DIR = f"{RUN_DIR}/pull"
IMAGE_CACHE_DIR = "/var/lib/vllm-spark/images"
# On the head: build contexts of derived images and the build log.
BUILD_DIR = "/var/lib/vllm-spark/build"
