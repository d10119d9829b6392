#!/usr/bin/python
"""Install or remove the edge of a host in one round trip: account, files judged by HAProxy, unit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_edge_files
short_description: Install or remove the edge of a host in one round trip
description:
  - Creates the account, replaces the files that differ atomically, and starts or reloads the unit. HAProxy judges a new
    configuration before it replaces the old one, which otherwise stays.
author: vllm-spark
options:
  state:
    description: C(stopped) stops and disables the unit and leaves the files.
    type: str
    choices: [present, stopped]
    default: present
  config:
    description: The content of haproxy.cfg, the first stage.
    type: str
    default: ""
  route:
    description: The content of route.cfg, the second stage.
    type: str
    default: ""
  tokens:
    description: The content of the program by which HAProxy reads the tokens of an answer.
    type: str
    default: ""
  unit:
    description: The content of the unit.
    type: str
    default: ""
  route_unit:
    description: The content of the unit of the second stage.
    type: str
    default: ""
  end_unit:
    description: The content of the unit that warns before the certificate ends.
    type: str
    default: ""
  end_timer:
    description: The content of the timer that starts O(end_unit).
    type: str
    default: ""
  quota_unit:
    description: The content of the unit that counts the tokens of the day.
    type: str
    default: ""
  quota_timer:
    description: The content of the timer that starts O(quota_unit).
    type: str
    default: ""
  quota_program:
    description: The program of O(quota_unit).
    type: str
    default: ""
  certificate:
    description: A new certificate with its chain. Empty leaves the present one.
    type: str
    default: ""
  names_certificate:
    description: A new certificate with the names of O(certificate) alone, and its key. Empty leaves the present one.
    type: str
    default: ""
  certificate_list:
    description: Which of the two a client gets. Empty removes it, and O(names_certificate).
    type: str
    default: ""
  private_key:
    description: The key of O(certificate) and O(names_certificate). Never shown, not even in a diff.
    type: str
    default: ""
  authority:
    description: The certificate of the site's authority, by which its edges know each other. Empty leaves the file.
    type: str
    default: ""
  first_keys:
    description: The keys of a host without keys, SHA-256 of a key to its person.
    type: dict
    default: {}
  switch_program:
    description: The program that starts a model for which a person asks. Empty removes it, its list and its unit.
    type: str
    default: ""
  switch_list:
    description: The list of models for O(switch_program).
    type: str
    default: ""
  switch_root_socket:
    description: The socket on which O(switch_program) lets root start a model.
    type: str
    default: ""
  switch_root_unit:
    description: The unit that systemd starts for each connection to O(switch_root_socket).
    type: str
    default: ""
  switch_unit:
    description: The unit of O(switch_program).
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: The module predicts every change; HAProxy does not judge then.
  diff_mode:
    support: full
    description: The diff has the configuration. Of the other files and the keys it says that they change.
"""

EXAMPLES = r"""
- name: Install the edge
  vllm_edge_files:
    config: "{{ config }}"
    route: "{{ route }}"
    tokens: "{{ tokens }}"
    unit: "{{ unit }}"
    route_unit: "{{ route_unit }}"
"""

RETURN = r"""
steps:
  description: The changes that were, or in check mode would be, made.
  returned: always
  type: list
  elements: str
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_admin import SOCKET
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_key import persons
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import (
    CommandError,
    mode_of,
    must,
    read_text,
    same_everywhere,
    text_diff,
    write_file,
)

CONFIGS = (spark_edge.ROUTE, spark_edge.CONFIG)
UNIT_FILES = {spark_edge.UNIT_FILE, spark_edge.ROUTE_UNIT_FILE}
# The arguments with the contents of spark_edge.TIMED_FILES.
NAMES = ("end_unit", "end_timer", "quota_unit", "quota_timer")
TIMED = dict(zip(NAMES, spark_edge.TIMED_FILES, strict=True))
# What needs no reload of the edge.
BESIDE = {*spark_edge.TIMED_FILES, spark_edge.QUOTA}
# Those with the contents of spark_edge.SWITCH_ROOT.
ROOT = dict(zip(("switch_root_socket", "switch_root_unit"), spark_edge.SWITCH_ROOT, strict=True))
# Those with certificates that the edge shows.
CERTIFICATES = {spark_edge.CERTIFICATE: "certificate", spark_edge.NAMES_CERTIFICATE: "names_certificate"}
CANDIDATE = f"{spark_edge.FOLDER}/.vllm-spark-haproxy.cfg"


def stale(path: str, content: str, mode: str) -> bool:
    """Return True if a file is to be replaced. No content: it stays as it is."""
    return bool(content) and (not os.path.isfile(path) or read_text(path) != content or mode_of(path) != mode)


def planned(params: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the files to write: path -> (content, mode). The configurations come after what they read."""
    files = {
        **{path: (with_key(params, name), spark_edge.FILE_MODE) for path, name in CERTIFICATES.items()},
        spark_edge.CERTIFICATE_LIST: (params["certificate_list"], spark_edge.FILE_MODE),
        spark_edge.AUTHORITY: (params["authority"], spark_edge.FILE_MODE),
        spark_edge.TOKENS: (params["tokens"], spark_edge.FILE_MODE),
        spark_edge.ROUTE: (params["route"], spark_edge.FILE_MODE),
        spark_edge.CONFIG: (params["config"], spark_edge.FILE_MODE),
        spark_edge.ROUTE_UNIT_FILE: (params["route_unit"], spark_edge.UNIT_MODE),
        spark_edge.UNIT_FILE: (params["unit"], spark_edge.UNIT_MODE),
        **{path: (params[name], spark_edge.UNIT_MODE) for name, path in TIMED.items()},
        spark_edge.QUOTA: (params["quota_program"], spark_edge.PROGRAM_MODE),
        spark_edge.SWITCH: (params["switch_program"], spark_edge.PROGRAM_MODE),
        spark_edge.SWITCH_LIST: (params["switch_list"], spark_edge.FILE_MODE),
        **{path: (params[name], spark_edge.UNIT_MODE) for name, path in ROOT.items()},
        spark_edge.SWITCH_UNIT_FILE: (params["switch_unit"], spark_edge.UNIT_MODE),
    }
    return {path: file for path, file in files.items() if stale(path, *file)}


def with_key(params: dict[str, Any], name: str) -> str:
    """Return a certificate with its key, empty without one."""
    certificate: str = params[name]
    return certificate and certificate + str(params["private_key"])


def unwanted(params: dict[str, Any]) -> list[str]:
    """Return the files of the program that starts models, if it is there and requests may not start any."""
    return [] if params["switch_unit"] else [path for path in spark_edge.switch_files() if os.path.isfile(path)]


def superseded(params: dict[str, Any]) -> list[str]:
    """Return the certificate of names alone and the list, if they are there and the edge has one certificate."""
    files = (spark_edge.CERTIFICATE_LIST, spark_edge.NAMES_CERTIFICATE)
    return [] if params["certificate_list"] else [path for path in files if os.path.isfile(path)]


def diffs(files: dict[str, tuple[str, str]]) -> list[dict[str, str]]:
    """Return the diff of each file; of a certificate, and of the toolkit's own texts, only that they change."""
    result: list[dict[str, str]] = []
    same = {*UNIT_FILES, *BESIDE, spark_edge.TOKENS, *spark_edge.switch_files()} - {spark_edge.SWITCH_LIST}
    for path, (content, _) in files.items():
        if path in CERTIFICATES:
            result.append({"prepared": f"{path} changes (its content is secret)\n"})
            continue
        before = read_text(path) or ""
        if path in same:
            result.append(same_everywhere(path, before, content))
        else:
            result.append(text_diff(path, before, content))
    return result


def judge(config: str) -> None:
    """Let HAProxy judge a configuration. Raises CommandError with its alerts."""
    write_file(CANDIDATE, config, spark_edge.FILE_MODE)
    try:
        must(spark_edge.PROGRAM, "-c", "-f", CANDIDATE)
    finally:
        os.unlink(CANDIDATE)


def install(files: dict[str, tuple[str, str]], params: dict[str, Any]) -> None:
    """Place the account, the folder, the keys and the files."""
    spark_edge.ensure_account()
    spark_edge.ensure_folder()
    spark_edge.ensure_states()
    spark_edge.ensure_spent()
    # Also those that a person has restored, which the edge could not read: a new file has the group of the folder.
    spark_edge.write_keys({**spark_edge.read_keys(), **params["first_keys"]})
    configs = [content for path, (content, _) in files.items() if path in CONFIGS]
    for path, (content, mode) in files.items():
        # Neither is replaced if HAProxy refuses one.
        while path in CONFIGS and configs:
            judge(configs.pop())
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        write_file(path, content, mode)


def unit_step(files: dict[str, tuple[str, str]], states: list[dict[str, str]]) -> str:
    """Return the command of systemctl that the units of both stages need, or nothing."""
    if any(state.get("ActiveState") != "active" for state in states):
        return "start"
    if files.keys() & UNIT_FILES:
        return "restart"
    return "reload" if files.keys() - {*spark_edge.switch_files(), *BESIDE} else ""


def switch_step(files: dict[str, tuple[str, str]], removes: list[str], params: dict[str, Any]) -> str:
    """Return the command of systemctl that the unit of the program which starts models needs, or nothing."""
    if removes:
        return "stop"
    runs = params["switch_unit"] and spark_edge.unit_state(spark_edge.SWITCH_UNIT).get("ActiveState") == "active"
    differs = files.keys() & set(spark_edge.switch_files()) or not runs
    return "restart" if params["switch_unit"] and differs else ""


def settle_switch(step: str, removes: list[str]) -> None:
    """Bring the program that starts models to its state. A switch that it has started goes on in a unit of its own."""
    if step == "stop":
        must("systemctl", "stop", spark_edge.SWITCH_UNIT)
    for path in removes:
        os.unlink(path)
    if step:
        must("systemctl", "daemon-reload")
    if step == "restart":
        must("systemctl", "restart", spark_edge.SWITCH_UNIT)


def settle(step: str, files: dict[str, tuple[str, str]], states: list[dict[str, str]]) -> None:
    """Bring the units to their state, and the map of keys to that of the file."""
    stale_units = any(state.get("NeedDaemonReload") == "yes" for state in states)
    if stale_units or files.keys() & {*UNIT_FILES, *spark_edge.TIMED_FILES}:
        must("systemctl", "daemon-reload")
    if states[0].get("UnitFileState") != "enabled":
        must("systemctl", "enable", spark_edge.UNIT)
    if step == "reload":
        spark_edge.reload()
    elif step:
        must("systemctl", step, spark_edge.UNIT)
        # The first stage only wants it: that it does not start is an error here.
        must("systemctl", "start", spark_edge.ROUTE_UNIT)
    elif not spark_edge.apply_keys(spark_edge.read_keys()):
        raise spark_edge.EdgeError(f"nothing answers at {SOCKET}")


def stop(module: AnsibleModule) -> None:
    state = spark_edge.unit_state()
    changed = (
        state.get("ActiveState") in ("active", "activating", "reloading") or state.get("UnitFileState") == "enabled"
    )
    if changed and not module.check_mode:
        must("systemctl", "disable", "--now", spark_edge.UNIT)
    module.exit_json(changed=changed, steps=[f"{spark_edge.UNIT} is stopped"] if changed else [])


def main() -> None:
    text = {"type": "str", "default": ""}
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "stopped"], "default": "present"},
            "config": text,
            "route": text,
            "tokens": text,
            "unit": text,
            "route_unit": text,
            **dict.fromkeys(TIMED, text),
            "quota_program": text,
            "certificate": text,
            "names_certificate": text,
            "certificate_list": text,
            "authority": text,
            "private_key": {**text, "no_log": True},
            # As in vllm_edge_key: a hash does not lead to its key.
            "first_keys": {"type": "dict", "default": {}, "no_log": False},
            "switch_program": text,
            "switch_list": text,
            **dict.fromkeys(ROOT, text),
            "switch_unit": text,
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        if params["state"] == "stopped":
            stop(module)
        files, removes, old = planned(params), unwanted(params), superseded(params)
        states = [spark_edge.unit_state(unit) for unit in spark_edge.STAGES]
        step, switch = unit_step(files, states), switch_step(files, removes, params)
        steps = [*([] if spark_edge.has_account() else [f"the account {spark_edge.ACCOUNT}"]), *files]
        steps += [f"a key of {name}" for name in persons(params["first_keys"])]
        steps += [f"{path} is removed" for path in (*removes, *old)]
        steps += [f"systemctl {switch} {spark_edge.SWITCH_UNIT}"] if switch else []
        steps += [f"systemctl {step} {spark_edge.UNIT}"] if step else []
        if not module.check_mode:
            install(files, params)
            for path in old:
                os.unlink(path)
            settle_switch(switch, removes)
            settle(step, files, states)
    except (OSError, CommandError, spark_edge.EdgeError) as error:
        module.fail_json(
            msg=f"the edge was not installed: {error} — expected: HAProxy takes the configuration, and "
            f"{spark_edge.UNIT} runs. Fix: journalctl -u {spark_edge.UNIT}. On this Spark. "
            "See docs/runbooks/edge-unit.md"
        )
    module.exit_json(changed=bool(steps), steps=steps, diff=diffs(files) if module._diff else [])


if __name__ == "__main__":
    main()
