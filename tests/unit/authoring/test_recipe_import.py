"""`vllm-spark recipe import` of sparkrun's recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from project_files import DATA
from vllm_spark.authoring import refused_values
from vllm_spark.cli import main
from vllm_spark.core import paths, text
from vllm_spark.recipe import kept_files, loader

CASES: list[dict[str, Any]] = yaml.load((DATA / "sparkrun" / "cases.yml").read_text(), yaml.CSafeLoader)


def run_import(content: str, folder: Path) -> int:
    """Import a file with this content into `out` of the folder, and return the status."""
    file = folder / "theirs.yaml"
    file.write_text(content)
    return main.main(["recipe", "import", str(file), "--into", str(folder / "out")])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_recipe_of_sparkrun(case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, status = tmp_path / "out", run_import(yaml.safe_dump(case["recipe"]), tmp_path)
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
    assert set(recipe["gates"]) == set(case.get("gates", recipe["gates"]))
    assert ("drafter" in recipe) == ("drafter" in case["expected"])
    for word, key in (("left out", "left_out"), ("open", "open")):
        lines = [
            line.removeprefix(f"  {word}: ") for line in printed.out.splitlines() if line.startswith(f"  {word}: ")
        ]
        assert len(lines) == len(case.get(key, ())), lines
        for line, expected in zip(sorted(lines), sorted(case.get(key, ())), strict=True):
            assert line.startswith(expected)
    text = (out / "theirs.yml").read_text()
    assert all(f"# open: {question.partition('.')[2]}" in text for question in case.get("open", ()))


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (
            {"command": "vllm serve a/b --odd\x1b[2J\x07 {missing}"},
            r"left out: --odd\x1b[2J\x07: {missing} has",
        ),
        ({"env": {"A\x1b[2J": "x"}}, "env: key"),
        ({"odd\x1b[2J": "x"}, "not known here"),
        ({"container": "x\x1b[2J"}, "left out: container"),
        ({"runtime": "x\x1b[2J"}, "runtime"),
        ({"defaults": {"dtype": "\x9b2J"}}, "--dtype"),
    ],
)
def test_a_recipe_prints_no_code_for_the_terminal(
    change: dict[str, Any], shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_import(yaml.safe_dump({"model": "a/b", "runtime": "vllm", **change}), tmp_path)
    printed = "".join(capsys.readouterr())
    assert shown in printed
    assert text.printable(printed) == printed


@pytest.mark.parametrize(
    ("revision", "following"),
    [
        (
            "main",
            ["Next: vllm-spark lock -e vllm_lock_recipes=theirs", "It pins the model's commit, which a deploy needs."],
        ),
        ("1" * 40, ["Next: vllm-spark check OUT/theirs.yml"]),
    ],
)
def test_an_import_says_what_is_unknown_and_ends_with_one_command(
    revision: str, following: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_import(f"model: a/b-7b\nruntime: vllm\ncontainer: c\nmodel_revision: '{revision}'\n", tmp_path) == 0
    lines = capsys.readouterr().out.replace(str(tmp_path / "out"), "OUT").splitlines()
    assert "  forecast: unknown, because the file names no architecture" in lines
    assert "  `vllm-spark recipe new a/b-7b` writes a second recipe, which has one" in lines
    end = lines[-len(following) :]
    assert all(line.startswith(begin) for line, begin in zip(end, following, strict=True)), lines
    assert sum(line.startswith("Next: ") for line in lines) == 1


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
    assert run_import(content, tmp_path) == 1
    assert " Fix: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"memory": {"utilization": 2}}, "memory.utilization: 2"),
        ({"args": {"max-num-seqs": "many"}}, "args.max-num-seqs: 'many'"),
        ({"model": {"repository": "no repository"}}, "model.repository"),
    ],
)
def test_a_fault_of_an_exported_recipe_names_the_file_of_its_owner(
    change: dict[str, Any], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.load((paths.RECIPES / "gpt-oss-120b.yml").read_text(), yaml.CSafeLoader)
    for block, values in change.items():
        document[block] |= values
    file = tmp_path / "gpt-oss-120b.yml"
    file.write_text(yaml.safe_dump(document))
    assert main.main(["recipe", "import", str(file), "--into", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().err
    assert f"{file}: {what}" in printed
    assert f"Fix: correct {file}." in printed


def test_what_cannot_be_left_out_remains() -> None:
    document = yaml.load((paths.RECIPES / "gpt-oss-120b.yml").read_text(), yaml.CSafeLoader)
    document["args"] |= {"seed": "x"}
    document["topology"]["executor"] = "ray"
    lines, faults = refused_values.leave_out(document, paths.RECIPES)
    assert [line.partition(";")[0] for line in lines] == ["--seed: 'x'"]
    assert [fault.what for fault in faults] == ["topology.executor: ray"]


def test_check_names_files_that_no_mount_brings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.load((paths.RECIPES / "gpt-oss-120b.yml").read_text(), yaml.CSafeLoader)
    document["args"] |= {"chat-template": "/models/x.jinja", "lora-modules": ['{"name": "a", "path": "/lora/a"}']}
    mount = {
        "from": "model",
        "path": "x.jinja",
        "target": "/models/x.jinja",
        "sha256": "0" * 64,
        "why": "the template of chats",
    }
    file = tmp_path / "gpt-oss-120b.yml"
    for mounted, expected in (({}, 1), ({"mounts": [mount]}, 0)):
        file.write_text(yaml.safe_dump({**document, **mounted}))
        assert main.main(["check", str(file)]) == 0
        printed = capsys.readouterr().out
        assert printed.count("warning: args.chat-template: is /models/x.jinja in the image?") == expected
        assert "warning: args.lora-modules: is /lora/a in the image?" in printed


def test_no_recipe_of_the_catalogue_misses_a_file() -> None:
    documents = [loader.read(file).document for file in loader.names([paths.RECIPES]).values()]
    assert [list(kept_files.questions(document)) for document in documents] == [[]] * len(documents)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("-tp 4", ["  Sparks: 4, behind a switch", "`vllm-spark recipe new a/b --nodes 4` writes a second recipe"]),
        ("-tp 1 -pp 3", ["  Sparks: 3, behind a switch", "`vllm-spark recipe new a/b --nodes 3` writes"]),
        ("-tp 2", ["  Sparks: 2\n", "`vllm-spark recipe new a/b --nodes 2` writes"]),
    ],
)
def test_a_file_for_several_sparks_says_what_they_need(
    flags: str, says: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_import(f"model: a/b\nruntime: vllm\ncontainer: c\ncommand: vllm serve a/b {flags}\n", tmp_path) == 0
    printed = capsys.readouterr().out
    assert [part for part in says if part not in printed] == []


def test_weights_that_four_sparks_do_not_hold_may_fit_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = "model: a/b-397B-FP8\nruntime: vllm\ncontainer: c\ncommand: vllm serve a/b-397B-FP8 -tp 4\n"
    assert run_import(content, tmp_path) == 1
    assert "or a smaller model, or a recipe for more Sparks." in capsys.readouterr().err


def test_the_group_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main(["recipe"])
    said = capsys.readouterr().err
    assert "required: {new,import,export} — expected: what its help shows. Fix: vllm-spark recipe --help" in said
