"""The sub-commands of `vllm-spark` that need no host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.invented_pins import write_lock
from project_files import DATA
from vllm_spark.cli import main, verbs
from vllm_spark.cli.commands import CommandParser
from vllm_spark.core import paths
from vllm_spark.core.version import version
from vllm_spark.recipe import loader

RECIPE = "gemma-4-26b-a4b-fp8"
FACTS = str(DATA / "facts" / "spark.json")
# Of the commands; those of bench and recipe are groups.
MODULES = ["cli.verb", *(command.path for command in main.COMMANDS.values())]


def test_render_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["render", RECIPE, "--open", "--port", "8002", "--facts", FACTS]) == 0
    output = capsys.readouterr().out
    assert output.startswith("#!/bin/sh\n")
    assert "  --port 8002 \\\n" in output
    assert "--uds" not in output


def test_render_prints_what_a_deploy_without_vllm_edge_would_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["render", RECIPE, "--facts", FACTS]) == 0
    output = capsys.readouterr().out
    assert "  --uds " in output
    assert "  --port " not in output


def test_the_version_needs_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"vllm-spark {version()}\n"


def test_a_machine_without_git_knows_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert version.__wrapped__().endswith(" (no commit)")


def test_render_accepts_a_file_and_assumes_its_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["render", str(DATA / "recipes" / "everything.yml")]) == 0
    assert "ghcr.io/owner/engine@sha256:" in capsys.readouterr().out


@pytest.mark.parametrize("name", loader.names([paths.RECIPES]))
def test_every_recipe_has_a_launch_to_print(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lock = write_lock(loader.load(name).document, tmp_path / "lock.yml")
    assert main.main(["render", name, "--lock", str(lock)]) == 0
    assert f"--name vllm-{name.replace('.', '-')} " in capsys.readouterr().out


def test_render_names_a_port_that_a_deployment_may_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["render", RECIPE, "--port", "80"]) == 1
    assert f"Fix: vllm-spark render {RECIPE} --port 8000." in capsys.readouterr().err


def test_render_with_facts_refuses_a_launch_that_does_not_fit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, facts: dict[str, Any]
) -> None:
    facts["memory"]["available"] = 1 << 30
    small = tmp_path / "facts.json"
    small.write_text(json.dumps(facts))
    assert main.main(["render", RECIPE, "--facts", str(small)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "spark1 has 1.0 GiB available" in output.err


def test_an_unlocked_recipe_needs_the_lock_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tiny = "sandbox/recipes/tiny-gemma4.yml"
    assert main.main(["render", tiny]) == 1
    assert "has no digest" in capsys.readouterr().err
    lock = tmp_path / "lock.yml"
    lock.write_text(f'images: {{"registry:5000/vllm-spark/engine:0.32.0-cpu": {{digest: "sha256:{"5" * 64}"}}}}\n')
    assert main.main(["render", tiny, "--lock", str(lock)]) == 0
    assert f"@sha256:{'5' * 64}" in capsys.readouterr().out


def test_check_of_a_good_catalogue_has_no_faults_and_says_each_warning_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["check"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert [line for line in printed.out.splitlines() if ": warning: " not in line] == []
    (dropped,) = [line for line in printed.out.splitlines() if line.endswith("(grammar-dropped)")]
    assert dropped.startswith("gemma-4-26b-a4b-fp8-mtp-fp8kv, gemma-4-26b-a4b-fp8-mtp-overlay, ")


@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_warning_is_printed_and_refuses_nothing(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Gemma recipe without a tool parser is the trap of field report 004."""
    file = copied(tmp_path, lambda args: args.pop("enable-auto-tool-choice"))
    assert main.main([command, file]) == 0
    printed = capsys.readouterr()
    assert "a request with tools gets 400" in printed.out
    assert "(tools-off)" in printed.out
    assert printed.err == ""


def test_check_refuses_a_known_issue_until_it_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = copied(tmp_path, lambda args: args.update({"enable-sleep-mode": True}))
    assert main.main(["check", file]) == 1
    assert "-e accept_known_issue=sleep-mode" in capsys.readouterr().err
    assert main.main(["check", file, "--accept-known-issue", "sleep-mode"]) == 0
    assert "warning: accepted known issue sleep-mode" in capsys.readouterr().out


def copied(folder: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """Return a copy of RECIPE whose `args` are changed."""
    document = yaml.load((paths.RECIPES / f"{RECIPE}.yml").read_text(), yaml.CSafeLoader)
    change(document["args"])
    file = folder / f"{RECIPE}.yml"
    file.write_text(yaml.safe_dump(document))
    return str(file)


def test_an_unknown_name_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["render", "gemma-4-26b-a4b-pf8"]) == 1
    assert f"Fix: name '{RECIPE}'." in capsys.readouterr().err


def test_a_missing_file_is_a_message_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["check", "nowhere/none.yml"]) == 1
    assert "none.yml" in capsys.readouterr().err
    assert main.main(["render", RECIPE, "--facts", "nowhere.json"]) == 1
    assert "nowhere.json" in capsys.readouterr().err


PAIR = str(DATA / "recipes" / "two-sparks.yml")


@pytest.mark.parametrize(
    ("rank", "address", "runs"), [("0", "192.168.177.10", "ray start --head"), ("1", "192.168.177.11", "ray")]
)
def test_render_a_pair_without_any_host(rank: str, address: str, runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["render", PAIR, "--rank", rank]) == 0
    output = capsys.readouterr().out
    assert f"--address {address}" in output
    assert f"--env VLLM_HOST_IP={address}" in output
    assert runs in output


@pytest.mark.parametrize("options", [["--facts", FACTS], ["--facts", FACTS, FACTS, FACTS]])
def test_render_a_pair_needs_the_facts_of_both(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["render", PAIR, *options]) == 1
    assert "Fix: --facts spark1.json spark2.json." in capsys.readouterr().err


def test_one_spark_has_no_rank_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["render", RECIPE, "--rank", "1"]) == 1
    assert "is for 1 Sparks" in capsys.readouterr().err


def test_every_sub_command_has_a_module_with_its_arguments_and_its_run() -> None:
    groups = [main.COMMANDS, *(main.COMMANDS[name].module().COMMANDS for name in ("bench", "recipe"))]
    for group in groups:
        for name, command in group.items():
            parser = CommandParser(prog=name, command=command)
            with pytest.raises(SystemExit):
                parser.parse_args(["--help"])
            assert parser.get_default("run") is getattr(command.module(), "run", None)
            assert hasattr(command.module(), "run") or name in {"bench", "recipe"}


def imported(code: str) -> set[str]:
    """Return the modules that a program of its own has after some code."""
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_only_the_commands_that_ask_the_hub_import_its_library() -> None:
    others = [name for name in main.COMMANDS if name != "recipe"]
    found = imported(f"from vllm_spark.cli import main\nfor name in {others}: main.COMMANDS[name].module()")
    assert {"vllm_spark.cli.plan", "vllm_spark.doctor.command"} <= found
    assert not {"huggingface_hub", "vllm_spark.pinning.hub"} & found


def test_a_command_does_not_import_the_others() -> None:
    found = imported("from vllm_spark.cli import main\nmain.parse(['report'])")
    assert {name for name in MODULES if f"vllm_spark.{name}" in found} == {"cli.report"}


@pytest.mark.parametrize("words", [["--help"], ["nosuch"], [], ["bench", "--help"], ["recipe", "nosuch"]])
def test_a_usage_imports_no_command(words: list[str]) -> None:
    found = imported(f"from vllm_spark.cli import main\ntry: main.parse({words})\nexcept SystemExit: print()")
    groups = {"cli.bench.command", "cli.recipe.command", "cli.verb"}
    assert {name for name in MODULES if f"vllm_spark.{name}" in found} <= groups
    assert not {"yaml", "jsonschema", "rich", "importlib.metadata"} & found


def test_a_plan_without_hosts_imports_nothing_of_a_deploy() -> None:
    found = imported(f"from vllm_spark.cli import main\nmain.main(['plan', {RECIPE!r}])")
    assert "vllm_spark.sizing.forecast" in found
    assert not {"vllm_spark.deploy", "vllm_spark.verify", "vllm_spark.edge", "jinja2", "cryptography"} & found


@pytest.mark.parametrize("words", [["--help"], []])
def test_a_usage_names_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.parse(words)
    printed = "".join(capsys.readouterr())
    assert [name for name in (*main.COMMANDS, *verbs.found()) if f"\n  {name} " not in printed] == []
