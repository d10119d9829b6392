"""The launch script: a shell that runs it gets exactly the planned argv."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_spark.core.paths import RECIPES
from vllm_spark.deploy import launch
from vllm_spark.inventory.rank_group import Member, RankGroup
from vllm_spark.inventory.spec import Spec

# Installed beside the interpreter by the lock of requirements, so the environment need not be active.
SHELLCHECK = str(Path(sys.executable).parent / "shellcheck")

# A fake docker that prints its arguments, separated by NUL.
PRINT_ARGV = "#!/bin/sh\nprintf '%s\\0' docker \"$@\"\n"

NASTY = [
    "it's",
    '"quoted"',
    "$HOME",
    "`id`",
    "%h",
    "a b",
    "",
    "*",
    "\\",
    "ünïcode",
    "line\nbreak",
    "{{ x }}",
    "#no comment",
]

MEMBERS = (Member("spark1", "192.168.177.10"), Member("spark2", "192.168.177.11"))


def argv_of_shell(script: str, folder: Path) -> list[str]:
    """Run a launch script with the fake docker and return the argv that it got."""
    (folder / "docker").write_text(PRINT_ARGV)
    (folder / "docker").chmod(0o755)
    (folder / "launch").write_text(script)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", str(folder / "launch")], capture_output=True, text=True, check=True, env=env)
    first, _, rest = done.stdout.partition("\n")
    assert first.startswith("vllm-spark: launch ")
    return rest.removesuffix("\0").split("\0")


def test_a_shell_gets_the_planned_argv(resolve: Callable[..., Spec], tmp_path: Path) -> None:
    spec = resolve()
    assert argv_of_shell(launch.script(spec), tmp_path) == launch.argv(spec)


@pytest.mark.parametrize("word", NASTY, ids=repr)
def test_a_shell_gets_special_characters_unchanged(word: str, resolve: Callable[..., Spec], tmp_path: Path) -> None:
    spec = resolve(overrides={"args": {"odd": word, "map": {"key": word}, "list": [word, "x"]}})
    argv = argv_of_shell(launch.script(spec), tmp_path)
    assert argv == launch.argv(spec)
    assert argv[argv.index("--odd") + 1] == word


def test_the_same_inputs_give_the_same_bytes(resolve: Callable[..., Spec]) -> None:
    one = resolve(overrides={"args": {"b": 1, "a": {"y": 1, "x": 2}}})
    other = resolve(overrides={"args": {"a": {"x": 2, "y": 1}, "b": 1}})
    assert launch.script(one) == launch.script(other)


# Another value for each field of `runtime`.
RUNTIME = {
    "shm_size": "17g",
    "ulimits": {"core": 0},
    "devices": ["/dev/other"],
    "capabilities": ["SYS_NICE"],
    "seccomp": "unconfined",
}


def test_every_field_of_runtime_has_a_value_here() -> None:
    schema = json.loads((RECIPES / "schema.json").read_text())
    assert schema["properties"]["runtime"]["properties"].keys() == RUNTIME.keys()


@pytest.mark.parametrize("field", RUNTIME)
def test_every_field_of_runtime_reaches_the_launch(field: str, resolve: Callable[..., Spec]) -> None:
    spec = resolve()
    runtime = {**spec.recipe["runtime"], field: RUNTIME[field]}
    assert launch.argv(replace(spec, recipe={**spec.recipe, "runtime": runtime})) != launch.argv(spec)


def test_the_fingerprint_changes_with_the_launch(resolve: Callable[..., Spec]) -> None:
    fingerprints = {
        launch.fingerprint(resolve(**fields))
        for fields in ({}, {"port": 8001}, {"overrides": {"env": {"A": "b"}}}, {"overrides": {"args": {"a": True}}})
    }
    assert len(fingerprints) == 4


def test_shellcheck_accepts_the_script(resolve: Callable[..., Spec]) -> None:
    done = subprocess.run(
        [SHELLCHECK, "-"], input=launch.script(resolve()), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_env_file_has_one_line_per_secret() -> None:
    text = launch.env_file({"VLLM_API_KEY": "k=1 #$'", "HF_TOKEN": "t"})
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == ["HF_TOKEN=t", "VLLM_API_KEY=k=1 #$'"]


def test_a_secret_with_a_line_break_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match=r"vllm_secrets\.HF_TOKEN has a line break") as refused:
        launch.env_file({"HF_TOKEN": "hidden\nvalue"})
    assert "hidden" not in str(refused.value)


def test_the_engine_timeout_is_the_deadline_of_the_ready_gate(resolve: Callable[..., Spec]) -> None:
    assert "VLLM_ENGINE_READY_TIMEOUT_S" not in launch.environment(resolve())
    slow = resolve(recipe="gemma-4-26b-a4b-fp8", secrets={})
    assert launch.environment(slow)["VLLM_ENGINE_READY_TIMEOUT_S"] == "900"


def test_the_unit_is_constant_and_does_not_pull() -> None:
    unit = launch.unit_file()
    assert "{{" not in unit
    assert "pull" not in unit
    assert "ExecStart=/etc/vllm-spark/%i/launch" in unit


def test_the_site_can_switch_swap_off_and_drop_caches_at_every_start(resolve: Callable[..., Spec]) -> None:
    spec = resolve()
    asked = replace(spec, site=replace(spec.site, swap_off=True, drop_caches=True))
    commands = ["swapoff --all", "sync", "echo 3 >/proc/sys/vm/drop_caches"]
    assert [line for line in launch.script(asked).splitlines() if line in commands] == commands
    assert [line for line in launch.script(spec).splitlines() if line in commands] == []
    assert launch.fingerprint(asked) != launch.fingerprint(spec)


@pytest.mark.parametrize(
    ("overrides", "value"),
    [
        ({}, "expandable_segments:True"),
        ({"env": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}}, "max_split_size_mb:512"),
        ({"env": {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}}, None),
        ({"args": {"enable-sleep-mode": True}}, None),
        # vLLM takes a connector of its cache beside expandable segments only with the flag.
        ({"args": {"kv-transfer-config": {"kv_connector": "NixlConnector"}}}, "expandable_segments:True"),
        ({"args": {"kv-transfer-config.kv_connector": "NixlConnector"}}, "expandable_segments:True"),
        ({"args": {"kv-offloading-size": 8}}, "expandable_segments:True"),
        ({"args": {"kv-offloading-size": 8, "enable-cumem-allocator": False}}, None),
        ({"args": {"kv-offloading-size": 8}, "engine": {"version": "0.21.0"}}, None),
    ],
)
def test_torch_expands_its_segments_unless_the_recipe_says_otherwise(
    overrides: dict[str, dict[str, object]], value: str | None, resolve: Callable[..., Spec]
) -> None:
    spec = resolve()
    newer = {"engine": {"version": "0.22.0"}, **overrides}
    recipe = {**spec.recipe, **{block: {**spec.recipe[block], **changes} for block, changes in newer.items()}}
    changed = replace(spec, recipe=recipe)
    assert launch.environment(changed).get("PYTORCH_CUDA_ALLOC_CONF") == value
    connected = any(name.startswith("kv-") for name in overrides.get("args", {}))
    assert launch.flags(changed).get("enable-cumem-allocator", False) is (connected and value is not None)


@pytest.mark.parametrize(
    ("version", "kept"),
    [("0.26.0", True), ("0.27.0", False), ("0.28.1rc1.dev7", False), ("0.31.0", False), ("0.32.0", True)],
)
@pytest.mark.parametrize("executor", ["mp", "ray"])
def test_a_pair_keeps_what_flashinfer_tuned_only_where_its_ranks_do_not_wait_for_it(
    executor: str, version: str, kept: bool, resolve: Callable[..., Spec]
) -> None:
    """vllm#57423: the second start of a pair with experts hangs."""
    alone = resolve()
    alone = replace(alone, recipe={**alone.recipe, "engine": {"version": version}})
    paired = replace(alone, group=RankGroup(0, executor, "enp1s0f0np0", MEMBERS))
    assert (launch.TUNING_FOLDER not in launch.environment(paired)) is kept
    assert launch.TUNING_FOLDER not in launch.environment(alone)
    if not kept:
        folder = launch.environment(paired)[launch.TUNING_FOLDER]
        assert not [target for _, target, _ in launch.mounts(paired) if folder.startswith(f"{target}/")]
