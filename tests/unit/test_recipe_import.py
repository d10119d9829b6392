"""`vllm-spark recipe import` of sparkrun's recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from project_files import DATA
from vllm_spark.cli import main
from vllm_spark.recipe import loader

CASES: list[dict[str, Any]] = yaml.safe_load((DATA / "sparkrun" / "cases.yml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_recipe_of_sparkrun(case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "theirs.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(case["recipe"]))
    status = main.main(["recipe", "import", str(file), "--into", str(out)])
    printed = capsys.readouterr()
    if "refused" in case:
        assert status == 1
        assert case["refused"] in printed.err
        assert " Fix: " in printed.err
        assert not out.exists()
        return
    assert status == 0
    recipe = loader.read(out / "theirs.yml").document
    assert {key: recipe.get(key) for key in case["expected"]} == case["expected"]
    assert ("drafter" in recipe) == ("drafter" in case["expected"])
    lines = sorted(line.removeprefix("  left out: ") for line in printed.out.splitlines() if "left out" in line)
    assert len(lines) == len(case["left_out"])
    for line, expected in zip(lines, sorted(case["left_out"]), strict=True):
        assert line.startswith(expected)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1, 2]",
        "a: b",
        "{",
        "model: 5",
        "name: x",
        "name: ../../x",
        "name: x\nmodel: {}",
        "name: x\narchitectures: 5",
        "name: x\narchitectures: {../y: {}}",
        "model: a/b\nruntime: vllm\ndefaults: [1]",
        "model: a/b\nruntime: vllm\nenv: x",
        "model: a/b\nruntime: vllm\nmin_nodes: two",
        "model: a/b\nruntime: vllm\ncommand: 5",
        "model: [a]\nruntime: vllm",
    ],
)
def test_a_file_that_is_no_recipe(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(content)
    assert main.main(["recipe", "import", str(file), "--into", str(tmp_path / "out")]) == 1
    assert " Fix: " in capsys.readouterr().err


def test_the_group_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["recipe"]) == 2
    assert "usage: vllm-spark recipe" in capsys.readouterr().err
