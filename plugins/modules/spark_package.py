#!/usr/bin/python
"""Install a package of the distribution without starting its service, and record what came with it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_package
short_description: Install a package of the distribution without starting its service
description:
  - Installs with apt-get, without recommended packages. Ansible's own module would install python3-apt first.
  - Appends every package that was not on the host before to C(/var/lib/vllm-spark/packages), where remove.yml finds it.
author: vllm-spark
options:
  name:
    description: The package.
    type: str
    required: true
attributes:
  check_mode:
    support: full
    description: The module predicts the change.
"""

EXAMPLES = r"""
- name: Ensure HAProxy is installed
  spark_package:
    name: haproxy
"""

RETURN = r"""
packages:
  description: The packages that are new on the host.
  returned: success
  type: list
  elements: str
"""

import contextlib
import os
from collections.abc import Iterator

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_holdings import PACKAGES, STATE, packages
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import CommandError, run, write_file

# A package asks it whether it may start its service (invoke-rc.d(8)): 101 is no.
POLICY = "usr/sbin/policy-rc.d"
REFUSE = "#!/bin/sh\nexit 101\n"
APT = ("apt-get", "--quiet=2", "--option=DPkg::Lock::Timeout=120")
# The configuration of an owner stays as it is.
KEEP = ("--option=Dpkg::Options::=--force-confdef", "--option=Dpkg::Options::=--force-confold")


def installed() -> set[str]:
    """Return the packages that are installed."""
    result = run("dpkg-query", "--show", "--showformat=${db:Status-Abbrev} ${Package}\n")
    if result.status:
        raise CommandError(f"dpkg-query: {result.error}")
    rows = (line.split() for line in result.stdout.splitlines())
    return {row[1] for row in rows if row and row[0] == "ii"}


@contextlib.contextmanager
def no_start(root: str) -> Iterator[None]:
    """Keep services from starting meanwhile. A policy of the owner comes back."""
    path = os.path.join(root, POLICY)
    kept = f"{path}.vllm-spark"
    if os.path.lexists(path):
        os.rename(path, kept)
    write_file(path, REFUSE, "0755")
    try:
        yield
    finally:
        if os.path.lexists(kept):
            os.rename(kept, path)
        else:
            os.unlink(path)


def apt(*words: str) -> str:
    """Run apt-get and return its error; empty if it succeeded."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    result = run(*APT, *words, timeout_s=None, env=env)
    return result.error if result.status else ""


def fetch(name: str) -> str:
    """Install a package and return the error. The lists of the package sources are fetched if it fails: a new host has
    none, and old ones name a version that the mirror no longer has."""
    words = ("install", "--yes", "--no-install-recommends", *KEEP, name)
    if not apt(*words):
        return ""
    stale = apt("update")
    return "; ".join(filter(None, [error, stale])) if (error := apt(*words)) else ""


def record(root: str, new: set[str]) -> None:
    """Add packages to the record."""
    os.makedirs(os.path.join(root, STATE), mode=0o755, exist_ok=True)
    write_file(os.path.join(root, PACKAGES), "".join(f"{name}\n" for name in sorted({*packages(root), *new})), "0644")


def install(name: str, root: str = "/") -> list[str]:
    """Install a package and return what is new. Raises CommandError."""
    before = installed()
    if name in before:
        return []
    try:
        with no_start(root):
            error = fetch(name)
    finally:
        # Also what a failed installation has left.
        new = installed() - before
        if new:
            record(root, new)
    if error:
        raise CommandError(error)
    return sorted(new)


def main() -> None:
    module = AnsibleModule(argument_spec={"name": {"type": "str", "required": True}}, supports_check_mode=True)
    name = module.params["name"]
    if module.check_mode:
        module.exit_json(changed=name not in installed(), packages=[])
    try:
        new = install(name)
    except (CommandError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(new), packages=new)


if __name__ == "__main__":
    main()
