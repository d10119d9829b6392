"""Commands of messages as a run would type them."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_spark.core import paths, run_command
from vllm_spark.core.run_command import ThisRun, for_everyone, typed
from vllm_spark_ansible import started

OPTIONS = [("-i", "inventories/other"), ("-l", "spark1"), ("-K", "")]
CLONE, COMMAND = ThisRun(by_command=False, options=OPTIONS), ThisRun(by_command=True, options=OPTIONS)
SEE = "See docs/runbooks/port-taken.md"
TEXTS = [
    ("Fix: ansible-playbook deploy.yml. Now", "ansible-playbook -i inventories/other -l spark1 -K deploy.yml. Now"),
    ("`ansible-playbook deploy.yml -l a,b`", "`ansible-playbook -i inventories/other -K deploy.yml -l a,b`"),
    ("`ansible-playbook switch.yml -e to=a` or", "`ansible-playbook -i inventories/other -K switch.yml -e to=a` or"),
    ("ansible-playbook stop.yml -K", "ansible-playbook -i inventories/other -l spark1 stop.yml -K"),
    ("Fix: vllm-spark logs tiny.", "Fix: vllm-spark logs -i inventories/other -l spark1 -K tiny."),
    ("Fix: vllm-spark key add NAME.", "Fix: vllm-spark key -i inventories/other -K add NAME."),
    ("Fix: vllm-spark trust ca.crt.", "Fix: vllm-spark trust -i inventories/other ca.crt."),
    # No verb, or a command of the same name.
    ("Fix: vllm-spark plan gemma.", "Fix: vllm-spark plan gemma."),
    ("Fix: vllm-spark bench http://a:8000 --model b", "Fix: vllm-spark bench http://a:8000 --model b"),
    ("Fix: vllm-spark recipes.", "Fix: vllm-spark recipes."),
    ("vllm-spark refuses: step 3", "vllm-spark refuses: step 3"),
    ("Fix: ansible HOST -m ping", "Fix: ansible HOST -m ping"),
    (SEE, SEE),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shown"), TEXTS)
def test_a_command_has_the_options_of_the_run(text: str, shown: str) -> None:
    with run_command.within(CLONE):
        assert shown in typed(text)
        assert typed(typed(text)) == typed(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Fix: ansible-playbook status.yml", "Fix: vllm-spark status -i inventories/other -l spark1 -K"),
        ("`ansible-playbook switch.yml -e to=a`", "`vllm-spark switch -i inventories/other -K -e to=a`"),
        (SEE, "See `vllm-spark runbook port-taken`"),
    ],
)
def test_a_run_of_the_command_prints_commands(text: str, shown: str) -> None:
    with run_command.within(COMMAND):
        assert typed(text) == shown
        assert typed(shown) == shown


def test_an_installed_toolkit_prints_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "IS_INSTALLED", True)
    assert (
        typed(f"Fix: ansible-playbook stop.yml. {SEE}") == "Fix: vllm-spark stop. See `vllm-spark runbook port-taken`"
    )


def test_what_a_spark_keeps_does_not_depend_on_the_run() -> None:
    text = "Its owner changes that with: ansible-playbook switch.yml -e to=a"
    for run in (CLONE, COMMAND):
        with run_command.within(run):
            assert for_everyone(text) == text


def argv(*words: str) -> list[str]:
    return ["ansible-playbook", *words]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["deploy.yml"], []),
        (["deploy.yml", "-Kv", "--check", "-f", "3"], [("-K", "")]),
        (
            ["-i", "a", "--inventory=b", "deploy.yml", "-l", "x,y"],
            [("-i", "a"), ("-i", "b"), ("-l", "x,y")],
        ),
        (["deploy.yml", "-u", "ada", "--vault-id", "v"], [("-u", "ada"), ("--vault-id", "v")]),
        (["deploy.yml", "-e", "vllm_hub_dir=/x mine=1"], [("-e", "vllm_hub_dir=/x mine=1")]),
        (["deploy.yml", "-e", '{"vllm_deployments": []}'], [("-e", '{"vllm_deployments": []}')]),
        # They belong to the command, or are secret.
        (["switch.yml", "-e", "to=tiny", "-e", "json=true", "-e", "vllm_switch_drain_s=1"], []),
        (["up.yml", "-eup_yes=true", "-e", "ansible_become_password=x", "-e", '{"vllm_secrets": {}}'], []),
    ],
)
def test_what_a_run_hands_on(words: list[str], options: list[tuple[str, str]]) -> None:
    assert started.this_run(argv(*words)).options == options


def test_the_folder_of_the_playbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = started.this_run(argv(str(paths.ROOT / "deploy.yml")))
    with run_command.within(run):
        assert typed("ansible-playbook status.yml") == f"ansible-playbook {paths.ROOT}/status.yml"
        assert typed(typed("ansible-playbook status.yml")) == typed("ansible-playbook status.yml")
    # A playbook of the owner that imports one.
    assert started.this_run(argv("mine/deploy.yml")).folder == f"{paths.ROOT}/"
    monkeypatch.chdir(paths.ROOT)
    assert started.this_run(argv("mine/deploy.yml")).folder == started.this_run(argv("deploy.yml")).folder == ""
