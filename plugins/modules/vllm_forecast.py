"""The page of the action plugin vllm_forecast: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_forecast
short_description: Report what a deploy would do on all hosts of the run, with forecasts
description:
  - One task reports all hosts. Reads the specs and the facts that the role has registered on each. Fails if a
    deploy would refuse.
author: vllm-spark
options:
  context:
    description: The tokens of a context. 0 is that of the recipe.
    type: int
    required: true
  streams:
    description: The number of requests at a time. 0 is one.
    type: int
    required: true
  min_speed:
    description: The least tokens per second of one request.
    type: float
    required: true
  roofline:
    description: The constants of the site.
    type: raw
    required: true
  constants_file:
    description: The file of what the bench measured on these Sparks. It need not exist.
    type: str
    required: true
  recipe_folders:
    description: Folders that contain recipes.
    type: list
    elements: str
    required: true
  ask:
    description:
      - Whether a person must agree before the run goes on to a download. Nobody is asked in check mode, without a
        download, and without a terminal.
    type: bool
    required: true
  short:
    description: Whether the lines of each host are few, because a deploy follows, which tells what it changes.
    type: bool
    required: true
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Report the plans
  vllm_spark.toolkit.vllm_forecast:
    context: 0
    streams: 0
    min_speed: 0
    roofline: {}
    constants_file: inventories/site/constants.yml
    recipe_folders: [recipes]
    ask: false
    short: false
"""

RETURN = r"""
document:
  description: The document for programs, which docs/reference/json.md explains. A failure has it too.
  returned: always
  type: dict
"""
