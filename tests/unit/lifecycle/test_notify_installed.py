"""What the inventory says about messages, what a deploy places for them, and what the verb says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_holdings, spark_status

from fakes.fake_ansible import FakeRun
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import files, launch
from vllm_spark.inventory import notify, spec
from vllm_spark.node import host_layout

NAME, SECRET = "NTFY_TOKEN", "tk_7Hq2v9secretsecret"
TARGET = {"url": "https://ntfy.sh/spark-5f1c", "secret": NAME}
WHAT_URL = "vllm_notify.url: another text"


@pytest.mark.parametrize(
    ("variable", "what"),
    [
        ({"secret": NAME}, "vllm_notify: it has neither url nor command"),
        ({"url": "https://x/t", "command": ["/bin/x"]}, "vllm_notify: it has both url and command"),
        ({"command": ["/bin/x"], "kind": "ntfy"}, "vllm_notify.kind: ntfy, without a url"),
        ({"command": ["mail", "ben"]}, 'vllm_notify.command[0]: "mail"'),
        ({"command": []}, "vllm_notify.command: []"),
        ({"command": "/bin/x"}, 'vllm_notify.command: "/bin/x"'),
        ({"url": "https://x/t", "kind": "slack"}, 'vllm_notify.kind: "slack"'),
        ({"url": "https://x/t", "secrets": NAME}, "vllm_notify: unknown key secrets"),
        ({"url": "https://x/t", "secret": "OTHER"}, "vllm_notify.secret: vllm_secrets has no value of OTHER"),
        ({"url": "https://x/t", "secret": "EMPTY"}, "vllm_notify.secret: vllm_secrets has no value of EMPTY"),
        ("https://x/t", 'vllm_notify: "https://x/t"'),
        *(
            ({"url": url}, WHAT_URL)
            for url in ("https://ntfy.sh", "https://ntfy.sh/", "ntfy.sh/t", "ftp://x/t", "https:///t", "https://x/a b")
        ),
        *(({"url": url}, WHAT_URL) for url in ("https://ben:pw@x/t", "https://x/t\n", "https://x/tö", "file:///etc/x")),
        ({"url": "https://ben:pw@x", "kind": "webhook"}, WHAT_URL),
    ],
)
def test_a_variable_that_tells_nobody_is_refused(variable: object, what: str) -> None:
    with pytest.raises(RefusedError) as refused:
        notify.parse(variable, {NAME: True, "EMPTY": False})
    (refusal,) = refused.value.refusals
    assert (refusal.id, refusal.runbook) == ("bad-notify", "inventory-refused")
    assert refusal.what.startswith(what)
    # A URL may be a secret.
    if what == WHAT_URL and isinstance(variable, dict):
        assert variable["url"] not in str(refusal)


@pytest.mark.parametrize(
    ("variable", "target"),
    [
        (TARGET, "https://ntfy.sh"),
        ({"url": "http://192.168.1.5:8080/spark"}, "http://192.168.1.5:8080"),
        ({"url": "http://[fd00::5]:80/spark"}, "http://[fd00::5]:80"),
        ({"url": "https://hooks.slack.com/services/T0/B0/x?y=%20", "kind": "webhook"}, "https://hooks.slack.com"),
        ({"url": "https://chat.home", "kind": "webhook"}, "https://chat.home"),
        ({"command": ["/usr/local/bin/tell", "--to=ben"], "secret": NAME}, "/usr/local/bin/tell"),
    ],
)
def test_the_settings_have_the_secret_and_what_may_be_shown(variable: dict[str, Any], target: str) -> None:
    settings = json.loads(notify.settings(notify.parse(variable, {NAME: True}), "spark1", {NAME: SECRET}))
    assert (settings["target"], settings["host"]) == (target, "spark1")
    assert settings.get("value") == (SECRET if "secret" in variable else None)


def test_the_sample_has_every_key_and_each_is_valid() -> None:
    sample = (paths.ROOT / "inventories/sample/group_vars/all/vllm.yml").read_text()
    section = sample.partition("vllm_notify: {}\n")[2].partition("\n\n")[0]
    shown = yaml.load("\n".join(line.removeprefix("# ") for line in section.splitlines()), yaml.CSafeLoader)
    assert set(shown) == set(json.loads(notify.SCHEMA.read_text())["properties"])
    command = {"command": shown.pop("command")}
    for variable in (shown, command):
        assert notify.parse(variable, {shown["secret"]: True}) == variable


def resolved(notification: object, secrets: dict[str, bool]) -> spec.Spec:
    inventory = spec.Inventory(
        deployments=[{"name": "demo", "recipe": "gemma-4-26b-a4b-nvfp4-mtp", "hosts": ["spark1"]}],
        sparks=("spark1",),
        limit=("spark1",),
        secrets=secrets,
        notification=notification,
    )
    found = spec.resolve(inventory, "spark1")
    assert found is not None
    return found


def test_the_engine_does_not_get_the_secret_and_no_server_restarts() -> None:
    before, after = resolved({}, {"HF_TOKEN": True}), resolved(TARGET, {"HF_TOKEN": True, NAME: True})
    assert (after.secrets, after.unused_secrets) == (("HF_TOKEN",), (NAME,))
    values = {"HF_TOKEN": "hf", NAME: SECRET}
    assert launch.env_file(values, after.to_json()) == launch.env_file({"HF_TOKEN": "hf"}, before.to_json())
    assert launch.script(after) == launch.script(before)
    # A recipe that needs it has it.
    assert resolved({**TARGET, "secret": "HF_TOKEN"}, {"HF_TOKEN": True}).secrets == ()


def test_a_wrong_variable_is_refused_before_a_spark_is_asked() -> None:
    with pytest.raises(RefusedError, match="neither url nor command"):
        resolved({"secret": NAME}, {NAME: True})


# --- what a deploy places


def variables(present: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    return {"spark1": {"spark_precheck_box": {"facts": {"files": present}}, "spark_lock_verb": "deploy"}}


def placed_files() -> dict[str, list[str]]:
    """Return the files of a Spark after a deploy, as its facts have them."""
    run, placed = FakeRun(hostvars=variables({}), modules=MODULES), {}
    run.act("vllm_notify", phase="install", settings=TARGET, secrets={NAME: SECRET})
    arguments = run.calls[0][1]
    texts = {file["path"]: (file["content"], file["mode"]) for file in arguments["files"]}
    texts[arguments["link_path"]] = (f"{arguments['link_key']}\n", "0600")
    placed = {path: [hashlib.sha256(text.encode()).hexdigest(), mode] for path, (text, mode) in texts.items()}
    return {**placed, host_layout.NOTIFY_ENABLED: placed[f"{host_layout.UNIT_DIR}/{host_layout.NOTIFY_TIMER}"]}


MODULES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "vllm_files": lambda args: {"changed": True, "changed_paths": [file["path"] for file in args["files"]]},
    "ansible.builtin.systemd_service": lambda _: {"changed": True, "state": "started"},
    "vllm_remove": lambda args: {"changed": True, "removed": [item["name"] for item in args["items"]]},
}


def test_a_deploy_places_program_units_and_secret_and_starts_the_timer() -> None:
    run = FakeRun(hostvars=variables({}), modules=MODULES)
    assert run.act("vllm_notify", phase="install", settings=TARGET, secrets={NAME: SECRET})["changed"]
    (name, arguments), (systemd, timer) = run.calls
    assert (name, systemd) == ("vllm_files", "ansible.builtin.systemd_service")
    assert timer == {"name": "vllm-notify.timer", "enabled": True, "state": "restarted", "daemon_reload": True}
    assert arguments["link_path"] == "/etc/vllm-spark/notify.json"
    # Only the secret file has the secret and the path of the URL, and no line shows them.
    shown = json.dumps([*arguments["files"], arguments["folders"], run.lines])
    assert SECRET not in shown
    assert "spark-5f1c" not in shown
    assert run.lines == ["spark1  vllm-notify will be installed: it tells https://ntfy.sh about troubles"]


def test_a_deploy_that_changes_nothing_asks_nothing() -> None:
    run = FakeRun(hostvars=variables(placed_files()))
    assert run.act("vllm_notify", phase="install", settings=TARGET, secrets={NAME: SECRET}) == {"changed": False}
    assert run.calls == run.lines == []


@pytest.mark.parametrize("missing", [host_layout.NOTIFY_ENABLED, host_layout.NOTIFY, host_layout.NOTIFY_SETTINGS])
def test_what_an_interrupted_deploy_has_left_out_is_placed(missing: str) -> None:
    present = placed_files()
    del present[missing]
    run = FakeRun(hostvars=variables(present), modules=MODULES)
    run.act("vllm_notify", phase="install", settings=TARGET, secrets={NAME: SECRET})
    assert [name for name, _ in run.calls] == ["vllm_files", "ansible.builtin.systemd_service"]


def test_a_new_secret_is_placed() -> None:
    run = FakeRun(hostvars=variables(placed_files()), modules=MODULES)
    run.act("vllm_notify", phase="install", settings=TARGET, secrets={NAME: "tk_another"})
    assert "tk_another" in run.calls[0][1]["link_key"]


def test_check_mode_predicts_and_starts_no_timer() -> None:
    run = FakeRun(hostvars=variables({}), modules=MODULES, check_mode=True)
    run.act("vllm_notify", phase="install", settings=TARGET, secrets={NAME: SECRET})
    assert [name for name, _ in run.calls] == ["vllm_files"]
    assert "would be installed" in run.lines[0]


def test_a_spark_of_a_site_without_the_variable_stays_as_it_is() -> None:
    run = FakeRun(hostvars=variables({}))
    assert run.act("vllm_notify", phase="install", settings={}, secrets={}) == {"changed": False}
    assert run.calls == run.lines == []


def test_without_the_variable_a_spark_tells_nobody_any_more() -> None:
    run = FakeRun(hostvars=variables(placed_files()), modules=MODULES)
    run.act("vllm_notify", phase="install", settings={}, secrets={})
    ((name, arguments),) = run.calls
    assert name == "vllm_remove"
    assert [(item["kind"], item["name"]) for item in arguments["items"]] == [
        ("unit", "vllm-notify.timer"),
        ("path", "/etc/systemd/system/timers.target.wants/vllm-notify.timer"),
        ("path", "/etc/vllm-spark/notify.json"),
        ("path", "/var/lib/vllm-spark/notify"),
    ]


def on_disk(root: Path) -> None:
    """Place what a deploy places, below a root."""
    for file in files.notify_program():
        path = root / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.content)
    settings, enabled = (root / path.lstrip("/") for path in (host_layout.NOTIFY_SETTINGS, host_layout.NOTIFY_ENABLED))
    enabled.parent.mkdir(parents=True)
    enabled.symlink_to(f"../{host_layout.NOTIFY_TIMER}")
    settings.parent.mkdir(parents=True)
    settings.write_text("{}")


def test_the_facts_of_a_host_have_every_file_of_it(tmp_path: Path) -> None:
    on_disk(tmp_path)
    found = set(spark_status.files([], str(tmp_path)))
    wanted = {file.path for file in files.notify_program()}
    assert wanted | {host_layout.NOTIFY_SETTINGS, host_layout.NOTIFY_ENABLED} <= found


def test_remove_takes_every_file_of_it(tmp_path: Path) -> None:
    on_disk(tmp_path)
    own, others = spark_holdings.unit_files(str(tmp_path))
    units = {Path(path).name for path in own}
    assert units == {host_layout.NOTIFY_TIMER, host_layout.NOTIFY_UNIT}
    assert [path for path in own if ".wants/" in path]
    assert others == []
    assert "vllm-notify.*" in spark_holdings.UNIT_PATTERNS
    # The other files are in folders that go as a whole.
    folders = (host_layout.PROGRAM_DIR, host_layout.CONFIG_DIR, host_layout.STATE_DIR, host_layout.UNIT_DIR)
    kept = [*(file.path for file in files.notify_program()), host_layout.NOTIFY_SETTINGS, host_layout.NOTIFY_DIR]
    assert [path for path in kept if not path.startswith(folders)] == []


# --- the verb


def report(said: dict[str, Any] | None, *, test: bool = False, check_mode: bool = False) -> FakeRun:
    option = "--test" if test and not check_mode else "--show"
    output = {} if said is None else {f"{host_layout.NOTIFY} {option}": json.dumps(said)}
    run = FakeRun(output=output, check_mode=check_mode)
    run.act("vllm_notify", phase="report", test=test)
    return run


SAID = {"target": "https://ntfy.sh", "why": "", "memory": {"told": {}}, "wait": [], "failure": {}}


@pytest.mark.parametrize(
    ("more", "test", "line"),
    [
        ({}, False, "https://ntfy.sh: told and not over: nothing"),
        ({}, True, "https://ntfy.sh: a test message was taken"),
        (
            {
                "memory": {
                    "told": {"vllm@chat": ["gave-up", 1_800_000_000.5], "edge-down": ["edge-down", 1_800_000_060]}
                }
            },
            False,
            "https://ntfy.sh: told and not over: gave-up of vllm@chat since 2027-01-15T08:00:00Z, "
            "edge-down since 2027-01-15T08:01:00Z",
        ),
    ],
)
def test_the_verb_says_what_was_told(more: dict[str, Any], test: bool, line: str) -> None:
    assert report({**SAID, **more}, test=test).lines == [f"spark1  {line}"]


def test_check_mode_sends_no_test_message() -> None:
    assert report(SAID, test=True, check_mode=True).lines == ["spark1  https://ntfy.sh: told and not over: nothing"]


@pytest.mark.parametrize(
    ("said", "id_", "what"),
    [
        (None, "notify-absent", "spark1 has no vllm-notify, so it tells nobody"),
        (
            {**SAID, "why": "it answers status 401 Unauthorized"},
            "notify-undelivered",
            "https://ntfy.sh took no message: it answers status 401 Unauthorized; 0 wait",
        ),
        (
            {**SAID, "failure": {"why": "Connection refused"}, "wait": [{}, {}]},
            "notify-undelivered",
            "https://ntfy.sh took no message: Connection refused; 2 wait",
        ),
    ],
)
def test_a_spark_that_tells_nobody_fails_the_verb(said: dict[str, Any] | None, id_: str, what: str) -> None:
    with pytest.raises(AnsibleActionFail) as failed:
        report(said)
    (refusal,) = failed.value._result["refusals"]
    assert (refusal["id"], refusal["what"], refusal["runbook"]) == (id_, what, "notify")
