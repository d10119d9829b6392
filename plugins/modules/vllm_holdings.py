#!/usr/bin/python
"""What the toolkit has on a box, in one round trip. Reads only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_holdings
short_description: Read what the toolkit has on a box
description:
  - Reads the launches that are kept and what they need, images, containers, files, units and rules of the firewall.
    What is to be done about them is decided by C(lifecycle.rollback), C(lifecycle.prune) and C(lifecycle.remove).
author: vllm-spark
options:
  count:
    description: Measure sizes too, which takes a look at every file.
    type: bool
    default: true
attributes:
  check_mode:
    support: full
    description: It only reads.
"""

EXAMPLES = r"""
- name: Look
  vllm_holdings:
    count: false
"""

RETURN = r"""
holdings:
  description: What is there. Sizes in bytes.
  returned: always
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_holdings import holdings, size


def main():
    module = AnsibleModule(
        argument_spec={"count": {"type": "bool", "default": True}},
        supports_check_mode=True,
    )
    count = module.params["count"]
    found = holdings(count=count)
    # Models and caches lie where the inventory of their time said.
    models = {
        path
        for deployment in found["deployments"].values()
        for launch in deployment["launches"].values()
        for path in [*launch["needs"]["models"], *filter(None, [launch["needs"]["cache"]])]
    }
    found["paths"] = {path: size(path) if count else 0 for path in sorted(models) if os.path.lexists(path)}
    module.exit_json(changed=False, holdings=found)


if __name__ == "__main__":
    main()
