"""`vllm-spark recipe import` of public files: what tests/data/imports expects of each."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fakes import import_rows
from vllm_spark.bench import profiles, references
from vllm_spark.cli import main
from vllm_spark.recipe import loader


def _cases() -> list[Any]:
    return [
        pytest.param(kind, row, id=row["id"])
        for kind in import_rows.KINDS
        for row in import_rows.rows(kind)
        if not row.get("held")
    ]


@pytest.mark.parametrize(("kind", "row"), _cases())
def test_a_public_file(kind: str, row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = import_rows.run(row, kind, tmp_path)
    assert import_rows.faults(row, outcome) == []
    assert "a-token-of-its-owner" not in f"{outcome.out}{outcome.err}{outcome.recipes}"
    for name in outcome.recipes:
        assert main.main(["check", str(tmp_path / "out" / f"{name}.yml")]) == 0, capsys.readouterr().err


def _nvidia(ident: str) -> dict[str, Any]:
    return next(row for row in import_rows.rows("nvidia") if row["id"] == ident)


def test_the_bench_measures_the_load_of_the_figures_of_nvidia(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = import_rows.run(_nvidia("qwen3.6-27b-1x"), "nvidia", tmp_path)
    (recipe,) = outcome.recipes.values()
    assert [(one["metric"], one["value"]) for one in recipe["expected"]] == [("decode", 28.41), ("prefill", 1097.88)]
    profile = profiles.load("nvidia")
    assert all(references.has_load(one, cell) for one in recipe["expected"] for cell in profile.cells)
    assert main.main(["plan", str(tmp_path / "out" / f"{recipe['name']}.yml")]) == 0
    assert "reported: 28.41 tok/s, one stream, 8192 tokens in, 256 out" in capsys.readouterr().out


def test_figures_of_another_text_pin_nothing(tmp_path: Path) -> None:
    outcome = import_rows.run(_nvidia("qwen3.8-27b-1x"), "nvidia", tmp_path)
    (recipe,) = outcome.recipes.values()
    assert "expected" not in recipe
    assert recipe["model"].get("revision") != "319f741cce68d7914884900c138a1fbb70a42f30"
    assert "performance.yaml: it measured another text of this recipe" in outcome.out


SERVE = "#!/bin/sh\nexec vllm serve /models/x --max-model-len 4096\n"


def test_the_source_is_the_file_and_its_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit = "1" * 40
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git" / "refs" / "heads" / "main").write_text(f"{commit}\n")
    file = tmp_path / "mine.sh"
    file.write_text(SERVE)
    words = ["recipe", "import", str(file), "--into", str(tmp_path / "out")]
    assert main.main(words) == 1
    assert "model /models/x: a folder of its owner" in capsys.readouterr().err
    assert main.main([*words, "--as", "openai/gpt-oss-20b"]) == 0
    recipe = loader.read(tmp_path / "out" / "mine.yml").document
    assert recipe["model"]["repository"] == "openai/gpt-oss-20b"
    checksum = sha256(SERVE.encode()).hexdigest()
    assert recipe["sources"] == [f"mine.sh (sha256 {checksum}), of the checkout at {commit}"]


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("services: {a: 5}", "services.a: 5"),
        ("services: {a: {image: x, command: [1, {b: c}]}}", "services.a.command"),
        ('services: {a: {image: vllm/vllm-openai:v0.30.0, command: "\'x"}}', "the command cannot be read"),
        ("services: {}", "no `vllm serve` in it"),
        ("hardware: dgx-spark", "backend"),
        ("{hardware: rtx, backend: vllm, runtime: {image: x}, serve: {command: y}, topology: {}}", "hardware rtx"),
        ("{hardware: dgx-spark, backend: vllm, runtime: x, serve: {command: y}, topology: {}}", 'runtime: "x"'),
    ],
)
def test_a_file_with_a_fault(content: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(content)
    assert main.main(["recipe", "import", str(file), "--into", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().err
    assert shown in printed
    assert " Fix: " in printed


def test_a_private_character_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.sh"
    file.write_text("vllm serve a/b --seed \ue0007\n")
    assert main.main(["recipe", "import", str(file), "--into", str(tmp_path / "out")]) == 1
    assert "Fix: name another file" in capsys.readouterr().err


def test_a_token_of_another_command_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = f"hf_{'a' * 34}"
    file = tmp_path / "x.sh"
    lines = [f"huggingface-cli {token}", f"docker login -p {token}", f"HF_TOKEN={token} vllm serve openai/gpt-oss-20b"]
    file.write_text("\n".join(lines))
    assert main.main(["recipe", "import", str(file), "--into", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert token not in f"{printed.out}{printed.err}{(tmp_path / 'out' / 'x.yml').read_text()}"
    assert "other commands, which nothing runs: huggingface-cli …; docker login" in printed.out


@pytest.mark.parametrize(
    "launch",
    [
        'docker run --entrypoint "" vllm/vllm-openai:v0.30.0 vllm serve openai/gpt-oss-20b --seed 7',
        "docker run --entrypoint vllm vllm/vllm-openai:v0.30.0 serve openai/gpt-oss-20b --seed 7",
        "sudo docker run -it --rm --gpus=all vllm/vllm-openai:v0.30.0 --model openai/gpt-oss-20b --seed 7",
        "docker run vllm/vllm-openai:v0.30.0 openai/gpt-oss-20b --seed 7",
        "docker exec -d engine bash -lc 'exec vllm serve \"$1\" --seed 7' x openai/gpt-oss-20b",
        "nohup uv run python3 -m vllm.entrypoints.openai.api_server --seed 7 --model openai/gpt-oss-20b >log 2>&1 &",
        "cd /x && exec vllm serve --seed 7 openai/gpt-oss-20b",
        "docker compose up -d\nvllm serve openai/gpt-oss-20b --seed 7",
    ],
)
def test_the_ways_to_start_a_server(launch: str, tmp_path: Path) -> None:
    file = tmp_path / "x.sh"
    file.write_text(f"{launch}\n")
    assert main.main(["recipe", "import", str(file), "--into", str(tmp_path / "out")]) == 0
    recipe = loader.read(tmp_path / "out" / "x.yml").document
    assert (recipe["model"]["repository"], recipe["args"]) == ("openai/gpt-oss-20b", {"seed": 7})


@pytest.mark.parametrize(
    "measured",
    ["profiles: 5", "profiles: [{workload: {}, results: {}}]", "[1]", "{", "software: {model_revision: [1]}"],
)
def test_figures_with_a_fault_name_their_file(
    measured: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {**_nvidia("qwen3.6-27b-1x")}
    row.pop("figures")
    (tmp_path / "performance.yaml").write_text(measured)
    outcome = import_rows.run(row, "nvidia", tmp_path)
    assert outcome.status == 1
    assert " Fix: " in outcome.err
