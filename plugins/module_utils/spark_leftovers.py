"""Traces of a pull that was interrupted while it redirected this host's Docker."""

from __future__ import annotations

import glob
import os

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_text

STATE = "var/lib/vllm-spark/pull"
# src/vllm_spark/node/pull/docker_leftovers.py removes what these name. A file that only resembles one of ours stays.
JOURNALS = (f"{STATE}/daemon.json.before", f"{STATE}/hosts.toml.before")
MARK, MIRROR_URL = "# vllm-spark", "http://127.0.0.1:25093"


def docker_leftovers(root: str = "/") -> list[str]:
    """Return the files that an interrupted pull may have left, or left changed."""
    files = [("etc/hosts", MARK), ("etc/docker/daemon.json", MIRROR_URL)]
    files += [(path, MARK) for path in sorted(glob.glob("etc/docker/certs.d/*/hosts.toml", root_dir=root))]
    changed = [path for path, text in files if text in (read_text(os.path.join(root, path)) or "")]
    journals = [path for path in JOURNALS if os.path.exists(os.path.join(root, path))]
    return [os.path.join(root, path) for path in (*journals, *changed)]
