"""`vllm-spark completion`: what may follow, and the scripts in the shells that are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_spark.cli import completion, main, verbs
from vllm_spark.core import paths
from vllm_spark.recipe import folders, loader

OPTIONS = {"-l", "--limit", "--check", "-K"}
# What was typed -> what must be among the words, and what must not.
FOLLOWING: dict[tuple[str, ...], tuple[set[str], set[str]]] = {
    ("dep",): ({"deploy"}, {"doctor"}),
    ("deploy", ""): (OPTIONS, {"deploy", "--json"}),
    ("status", "--"): ({"--json", "--limit"}, {"-l"}),
    ("plan", "-"): ({"--json", "--limit", "--facts"}, set()),
    ("plan", "gemma-4-31b-n"): ({"gemma-4-31b-nvfp4"}, {"--json"}),
    ("key", ""): ({"add", "revoke", "list"}, OPTIONS),
    ("recipe", ""): ({"new", "import", "export"}, set()),
    ("recipe", "new", "--"): ({"--into"}, set()),
    ("deploy", "-l", ""): (set(), OPTIONS),
    ("nosuch", ""): (set(), OPTIONS),
    ("completion", ""): ({"bash", "zsh", "fish"}, set()),
}


@pytest.mark.parametrize("typed", FOLLOWING)
def test_what_may_follow(typed: tuple[str, ...]) -> None:
    wanted, unwanted = FOLLOWING[typed]
    found = set(completion.following(typed))
    assert found >= wanted
    assert not found & unwanted
    assert all(word.startswith(typed[-1]) for word in found)


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """A folder with values that only Ansible reads, and files that cannot be read."""
    variables = tmp_path / "group_vars" / "all"
    variables.mkdir(parents=True)
    (tmp_path / "hosts.yml").write_text("sparks:\n  hosts:\n    spark1: {ansible_host: '{{ here }}'}\n    spark2:\n")
    (variables / "vllm.yml").write_text(
        "key: !vault x\nvllm_deployments:\n  - {name: gemma, hosts: [spark1], overrides: {args: {a: b}}}\n"
    )
    (variables / "broken.yml").write_text("a: [")
    (variables / "vault.yml").write_bytes(b"$ANSIBLE_VAULT;1.1;AES256\n6162\xff\n")
    return tmp_path


# What was typed in front of the name -> the names.
NAMES = {("logs",): ["gemma"], ("switch", "--to"): ["gemma"], ("status", "-l"): ["spark1", "spark2"]}


@pytest.mark.parametrize("typed", NAMES)
def test_the_names_of_an_inventory_are_offered(
    typed: tuple[str, ...], inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, *option = typed
    for named in (inventory, inventory / "hosts.yml"):
        assert completion.following([command, "-i", str(named), *option, ""]) == NAMES[typed]
    monkeypatch.setattr(paths, "INVENTORY", inventory)
    assert completion.following([*typed, NAMES[typed][0][0]]) == NAMES[typed]
    monkeypatch.setattr(paths, "INVENTORY", inventory / "absent" / "site")
    assert not set(completion.following([*typed, ""])) & {*NAMES[typed]}


def test_every_command_and_every_recipe_is_offered() -> None:
    assert set(completion.following([""])) == {*main.COMMANDS, *verbs.found(), "--help", "--version"}
    assert set(completion.following(["render", ""])) == set(loader.names(folders.searched()))


# Shell -> a program that completes `vllm-spark dep`. zsh completes only at a terminal, so its own two commands print.
TYPED = {
    "bash": "eval \"$(vllm-spark completion bash)\"; COMP_WORDS=(vllm-spark dep) COMP_CWORD=1; _vllm_spark; "
    "printf '%s\\n' \"${COMPREPLY[@]}\"",
    "zsh": "compdef() { :; }; compadd() { print -l -- $found; }; eval \"$(vllm-spark completion zsh)\"; "
    "words=(vllm-spark dep) CURRENT=2; _vllm_spark",
    "fish": "vllm-spark completion fish | source; complete -C 'vllm-spark dep'",
}  # fmt: skip


@pytest.mark.parametrize("shell", TYPED)
def test_a_shell_completes_a_verb(shell: str, tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    argv = [shell, *(["-f"] if shell == "zsh" else []), "-c", TYPED[shell]]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["deploy"]
