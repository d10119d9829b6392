#!/usr/bin/python
"""Unload the models that Ollama has in memory. Never kills it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_ollama
short_description: Unload the models of Ollama
description:
  - Requests that Ollama unloads every loaded model (C(keep_alive) 0) and waits until none is loaded. A host without
    Ollama has nothing to unload. No process is ended.
author: vllm-spark
options:
  url:
    description: The address of Ollama on the host.
    type: str
    default: http://127.0.0.1:11434
  deadline_s:
    description: Seconds after which the module fails if a model is still loaded.
    type: int
    default: 60
attributes:
  check_mode:
    support: full
    description: The module names the models that it would unload.
"""

EXAMPLES = r"""
- name: Free the memory that Ollama uses
  spark_ollama:
"""

RETURN = r"""
models:
  description: Names of the models that were, or in check mode would be, unloaded.
  returned: always
  type: list
  elements: str
msg:
  description: The result in one sentence.
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_ollama import (
    URL,
    StillLoadedError,
    loaded,
    unload_all,
)


def main() -> None:
    spec = {"url": {"type": "str", "default": URL}, "deadline_s": {"type": "int", "default": 60}}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    url, deadline_s = module.params["url"], module.params["deadline_s"]
    entries = loaded(url)
    models = [entry["name"] for entry in entries or []]
    if not models:
        reason = "no model is loaded" if entries == [] else "no Ollama"
        module.exit_json(changed=False, models=[], msg=f"{url}: {reason}")
    diff = {"header": "models that Ollama has loaded", "before": "".join(f"{name}\n" for name in models), "after": ""}
    if module.check_mode:
        module.exit_json(changed=True, models=models, diff=diff, msg=f"would ask Ollama to unload {', '.join(models)}")
    try:
        unloaded = unload_all(url, deadline_s)
    except StillLoadedError as error:
        responses = "".join(f"; the response for {name} was {text}" for name, text in error.errors.items() if text)
        module.fail_json(
            models=error.models,
            msg=f"Ollama still has {', '.join(error.models)} loaded after {deadline_s} s{responses} — expected: none, "
            "after requests with keep_alive 0. Fix: end the clients that use it (`ollama ps` and `journalctl -u "
            "ollama -n 50` on the host), or `sudo systemctl stop ollama`. See docs/runbooks/gpu-memory-held.md",
        )
    module.exit_json(changed=True, models=unloaded, diff=diff, msg=f"unloaded {', '.join(unloaded)}")


if __name__ == "__main__":
    main()
