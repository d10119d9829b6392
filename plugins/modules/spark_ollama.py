#!/usr/bin/python
"""Has Ollama unload the models that it holds in memory. Never kills it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_ollama
short_description: Have Ollama unload its models
description:
  - Asks Ollama's API to unload every loaded model (C(keep_alive) 0) and waits until none is loaded. A box without
    Ollama has nothing to unload. No process is ended.
author: vllm-spark
options:
  url:
    description: Where Ollama listens on the box.
    type: str
    default: http://127.0.0.1:11434
  deadline_s:
    description: After how many seconds with a model still loaded to give up.
    type: int
    default: 60
attributes:
  check_mode:
    support: full
    description: It says what it would ask.
"""

EXAMPLES = r"""
- name: Free the memory that Ollama holds
  spark_ollama:
"""

RETURN = r"""
models:
  description: Names of the models that Ollama was asked to unload.
  returned: always
  type: list
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_ollama import URL, StillLoadedError, loaded, unload_all


def main():
    spec = {"url": {"type": "str", "default": URL}, "deadline_s": {"type": "int", "default": 60}}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    url, deadline_s = module.params["url"], module.params["deadline_s"]
    there = loaded(url)
    models = [entry["name"] for entry in there or []]
    if not models:
        module.exit_json(changed=False, models=[], msg=f"{url}: {'no model is loaded' if there == [] else 'no Ollama'}")
    diff = {"header": "models that Ollama has loaded", "before": "".join(f"{name}\n" for name in models), "after": ""}
    if module.check_mode:
        module.exit_json(changed=True, models=models, diff=diff, msg=f"would ask Ollama to unload {', '.join(models)}")
    try:
        asked = unload_all(url, deadline_s)
    except StillLoadedError as error:
        answers = "".join(f"; to {name} it said {said}" for name, said in error.said.items() if said)
        module.fail_json(
            models=error.models,
            msg=f"Ollama still has {', '.join(error.models)} loaded after {deadline_s} s{answers} — expected: none, as "
            "it was asked with keep_alive 0. Fix: end what keeps asking it (ollama ps and journalctl -u ollama -n 50 "
            "on the box), or sudo systemctl stop ollama. See docs/runbooks/gpu-memory-held.md",
        )
    module.exit_json(changed=True, models=asked, diff=diff, msg=f"unloaded {', '.join(asked)}")


if __name__ == "__main__":
    main()
