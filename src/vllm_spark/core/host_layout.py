"""Folders and files of the toolkit on a Spark. They are constant, because the units name them."""

from __future__ import annotations

CONFIG_DIR = "/etc/vllm-spark"
RUN_DIR = "/run/vllm-spark"
UNIT_DIR = "/etc/systemd/system"
UNIT_FILE = f"{UNIT_DIR}/vllm@.service"

PROGRAM_DIR = "/usr/local/lib/vllm-spark"
SUPERVISOR = f"{PROGRAM_DIR}/supervise"
LIVENESS = f"{PROGRAM_DIR}/liveness"
# An operator types its name, so it is in the PATH.
SWITCH_PROGRAM = "/usr/local/bin/vllm-switch"

# `pull`: its programs, the state of its jobs, and the layers of images as the registry has them.
PULL_PROGRAM_DIR = f"{PROGRAM_DIR}/pull"
JOBS_DIR = f"{RUN_DIR}/pull"
IMAGE_CACHE_DIR = "/var/lib/vllm-spark/images"
# On the head: the context of a derived image, and the builder's log.
BUILD_DIR = "/var/lib/vllm-spark/build"
