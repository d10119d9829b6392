#!/usr/bin/python
"""Read the toolkit's objects on a host, in one round trip. Reads only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_holdings
short_description: Read the toolkit's objects on a host
description:
  - Reads the stored launches and what they need, images, containers, files and units.
    C(lifecycle.rollback), C(lifecycle.prune) and C(lifecycle.remove) decide about them.
author: vllm-spark
options:
  count:
    description: Measure sizes too, which needs the metadata of every file.
    type: bool
    default: true
attributes:
  check_mode:
    support: full
    description: The module only reads.
"""

EXAMPLES = r"""
- name: Read the toolkit's objects
  vllm_holdings:
    count: false
"""

RETURN = r"""
holdings:
  description: The objects by kind. Sizes in bytes.
  returned: always
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_holdings import holdings, size


def main() -> None:
    module = AnsibleModule(
        argument_spec={"count": {"type": "bool", "default": True}},
        supports_check_mode=True,
    )
    count = module.params["count"]
    result = holdings(count=count)
    # Models and caches are in the folders of the inventory at the time of their deploy.
    models = {
        path
        for deployment in result["deployments"].values()
        for launch in deployment["launches"].values()
        for path in [*launch["needs"]["models"], *filter(None, [launch["needs"]["cache"]])]
    }
    result["paths"] = {path: size(path) if count else 0 for path in sorted(models) if os.path.lexists(path)}
    module.exit_json(changed=False, holdings=result)


if __name__ == "__main__":
    main()
