"""What differs between two launches, as an operator reads it before a rollback; launches that were edited by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_launches

from fakes.cases import build
from fakes.installed_states import deployment, holdings, launch, pulled
from vllm_spark.deploy import launch as deploy_launch
from vllm_spark.inventory.spec import Spec
from vllm_spark.lifecycle import rollback, rollback_target
from vllm_spark.node import launch_difference

DIGESTS = ("sha256:" + "1" * 64, "sha256:" + "2" * 64)


@pytest.mark.parametrize(
    ("current", "target", "expected"),
    [
        (["--max-num-seqs 3"], ["--max-num-seqs 2"], "--max-num-seqs 3 → 2"),
        (["--env A=1", "--env B=1"], ["--env A=1", "--env B=2"], "--env B 1 → 2"),
        (["--no-x"], [], "the commands cannot be compared"),
        (["docker run", "--init"], ["docker run"], "--init is removed"),
        (["docker run"], ["docker run", "--dtype float16"], "--dtype float16 is added"),
        ([f"h:5/o/e@{DIGESTS[0]}"], [f"h:5/o/e@{DIGESTS[1]}"], "image e 111111111111 → 222222222222"),
        ([f"h:5/o/e@{DIGESTS[0]}"], [f"h:5/o/f:v1@{DIGESTS[1]}"], "image e 111111111111 → f 222222222222"),
        # Another patch, overlay or package.
        (["h:5/derived/r:111111111111"], ["h:5/derived/r:222222222222"], "image derived/r 111111111111 → 222222222222"),
        # The image, mounts and labels come after what the operator has changed.
        (
            [f"h:5/o/e@{DIGESTS[0]}", "--label a=1", "--max-num-seqs 3"],
            [f"h:5/o/e@{DIGESTS[1]}", "--label a=2", "--max-num-seqs 4"],
            "--max-num-seqs 3 → 4; image e 111111111111 → 222222222222; --label a 1 → 2",
        ),
        (
            ["--mount type=bind,source=/a,target=/x,readonly"],
            ["--mount type=bind,source=/b,target=/x,readonly"],
            "--mount /x /a → /b",
        ),
        (
            ["--mount type=bind,source=/a,target=/x,readonly"],
            ["--mount type=bind,source=/b,target=/x"],
            "--mount /x type=bind,source=/a,target=/x,readonly → type=bind,source=/b,target=/x",
        ),
        (["--label vllm-spark.launch=a"], ["--label vllm-spark.launch=b"], "the same command"),
        ([f"--f{n} 1" for n in range(6)], [f"--f{n} 2" for n in range(6)],
         "--f0 1 → 2; --f1 1 → 2; --f2 1 → 2; --f3 1 → 2; 2 more"),
    ],
)  # fmt: skip
def test_summary(current: list[str], target: list[str], expected: str) -> None:
    assert " ".join(launch_difference.summary(current, target).split()) == expected


def test_the_line_of_a_rollback_says_what_differs() -> None:
    launches = {"current": launch("c"), "previous": launch("a")}
    hosts = {"spark1": holdings({"demo": deployment(**launches)}, [pulled("a")], units={"vllm@demo.service": "active"})}
    line = rollback_target.targets(hosts)["spark1"].line()
    assert line.startswith("demo goes back: --flag c → a. It runs recipe-a with image aaaaaaaaaaaa of toolkit")
    assert "edited" not in line
    launches["previous"] = launch("a", edited=True)
    hosts = {"spark1": holdings({"demo": deployment(**launches)}, [pulled("a")], units={"vllm@demo.service": "active"})}
    assert "was edited by hand after its deploy" in rollback_target.targets(hosts)["spark1"].line()


def installed(folder: Path, spec: Spec, facts: dict[str, Any]) -> None:
    for file in build(spec, facts).files:
        if file.path.startswith("/etc/vllm-spark/demo/") and "/mounts/" not in file.path:
            (folder / Path(file.path).name).write_text(file.content)


def test_an_edit_on_the_host_is_noticed(resolve: Callable[..., Spec], facts: dict[str, Any], tmp_path: Path) -> None:
    spec = resolve()
    assert spark_launches.edited(str(tmp_path)) is None
    installed(tmp_path, spec, facts)
    read = spark_launches.launches(str(tmp_path))["current"]
    assert read["edited"] is False
    assert f"--label vllm-spark.launch={deploy_launch.fingerprint(spec)}" in read["command"]
    assert read["command"][0] == "docker run"
    (tmp_path / "launch").write_text((tmp_path / "launch").read_text() + "# by hand\n")
    assert spark_launches.edited(str(tmp_path)) is True
    # A record of an older toolkit does not say.
    record = json.loads((tmp_path / "deployed.json").read_text())
    assert record.pop("launch_sha256") == hashlib.sha256(deploy_launch.script(spec).encode()).hexdigest()
    (tmp_path / "deployed.json").write_text(json.dumps(record))
    assert spark_launches.edited(str(tmp_path)) is None


def test_a_secret_in_a_command_is_masked() -> None:
    script = "#!/bin/sh\nexec docker run \\\n  --api-key a-very-secret-value \\\n  --init\n"
    lines = spark_launches.command_lines(script)
    assert lines[0] == "docker run"
    assert not any("a-very-secret-value" in line for line in lines)


def test_the_report_of_a_rollback_says_that_the_launch_was_edited() -> None:
    restored = {"restored": {"deployment": "demo", "recipe": "r", "image": "e:1", "toolkit": "t"}}
    report = rollback.failure_report("no token", {}, {**restored, "edited": True}, {"holds": True})
    assert rollback.EDITED in report
    assert rollback.EDITED not in rollback.failure_report("no token", {}, {**restored, "edited": None}, {"holds": True})
