"""`vllm-spark recipe new` from a folder, and what a site does with its own recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes import derived_headers, derived_hub
from tiny_gemma4 import shape, template
from vllm_spark.cli import main
from vllm_spark.core import paths
from vllm_spark.recipe import loader

COMMIT = "7e577e577e577e577e577e577e577e577e577e57"
SMALL, LLAMA = "openai/gpt-oss-20b", "meta-llama/Meta-Llama-3.1-8B"
SPECIAL = {"<bos>": 1, "<pad>": 0, "<eos>": 2, shape.END: 3}


def snapshot(root: Path) -> Path:
    """Write a snapshot of the sandbox's model, without its weights. The file has its full size."""
    folder = root / "models--vllm-spark--tiny-gemma4" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    config = shape.configuration(SPECIAL, 640)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template.TEMPLATE)
    (folder / "tokenizer.json").write_text("{}")
    start, size = derived_headers.header(derived_headers.tensors(derived_headers.Model(config, {}, {})))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(start)
        file.truncate(size)
    return folder


def test_the_sandbox_model_from_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, site = snapshot(tmp_path), tmp_path / "site"
    site.mkdir()
    monkeypatch.setenv("ANSIBLE_INVENTORY", str(site))
    words = ["--like", "sandbox/recipes/tiny-gemma4.yml", "--name", "tiny-new", "--context", "4096", "--streams", "4"]
    assert main.main(["recipe", "new", str(folder), *words]) == 0
    file = site / "recipes" / "tiny-new.yml"
    recipe = loader.read(file).document
    like = loader.load("tiny-gemma4", (paths.ROOT / "sandbox" / "recipes",)).document
    assert {key: recipe[key] for key in ("image", "engine", "runtime", "memory")} == {
        key: like[key] for key in ("image", "engine", "runtime", "memory")
    }
    assert recipe["model"]["repository"] == "vllm-spark/tiny-gemma4"
    assert recipe["model"]["revision"] == COMMIT
    assert recipe["model"]["architecture"] == "tiny-gemma4"
    assert recipe["model"]["layout"] == like["model"]["layout"]
    assert recipe["args"]["tool-call-parser"] == recipe["args"]["reasoning-parser"] == "gemma4"
    assert sorted(recipe["gates"]) == [
        "anthropic",
        "failover",
        "garbage",
        "log",
        "ready",
        "reasoning",
        "structured",
        "tools",
    ]
    assert "drafter" not in recipe
    # The other commands find it by its name, beside the inventory.
    assert main.main(["check"]) == 0
    lock = tmp_path / "lock.yml"
    lock.write_text(f'images: {{"registry:5000/vllm-spark/engine:0.32.0-cpu": {{digest: "sha256:{"5" * 64}"}}}}\n')
    assert main.main(["render", "tiny-new", "--lock", str(lock)]) == 0
    assert "--max-model-len 4096" in capsys.readouterr().out
    assert main.main(["plan", "tiny-new"]) == 0
    assert "tiny-new on a reference Spark: go" in capsys.readouterr().out
    assert main.main(["recipes", "--json"]) == 0
    assert "tiny-new" in [entry["name"] for entry in json.loads(capsys.readouterr().out)]


def test_a_folder_without_a_name_needs_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = snapshot(tmp_path).rename(tmp_path / "copy")
    words = ["recipe", "new", str(folder), "--into", str(tmp_path / "out"), "--like", "sandbox/recipes/tiny-gemma4.yml"]
    assert main.main(words) == 1
    assert f"{folder} does not say which repository it is a copy of" in capsys.readouterr().err
    assert main.main([*words, "--as", f"some/model@{COMMIT}"]) == 0
    assert loader.read(tmp_path / "out" / "model.yml").document["model"]["repository"] == "some/model"


def test_a_config_alone_leaves_the_widths_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = derived_hub.DATA / "openai--gpt-oss-20b" / "config.json"
    assert main.main(["recipe", "new", str(file), "--as", "openai/gpt-oss-20b", "--into", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "model.layout: which width has each part? The configuration names mxfp4" in output
    assert "args.chat-template: which template do chats use?" in output
    text = (tmp_path / "gpt-oss-20b.yml").read_text()
    assert "  # open: layout: which width" in text


def configured(folder: Path, changes: dict[str, Any], quantisation: dict[str, Any]) -> Path:
    """Write the configuration of a model with 8 billion weights in two files, as ModelOpt does. Returns the folder."""
    config = json.loads((derived_hub.DATA / "meta-llama--Meta-Llama-3.1-8B" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    (folder / "hf_quant_config.json").write_text(json.dumps(quantisation))
    return folder


@pytest.mark.parametrize("of", [".", "config.json"])
@pytest.mark.parametrize(
    ("quantisation", "named"),
    [
        ({"quantization": {"quant_algo": "NVFP4"}}, "names NVFP4"),
        ({"quant_algo": "FP8"}, "names FP8"),
        ({"quantization": {}}, "has a quantisation without a name"),
    ],
)
def test_a_quantisation_beside_config_json_is_not_taken_for_bf16(
    of: str, quantisation: dict[str, Any], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = configured(tmp_path, {}, quantisation)
    words = ["recipe", "new", str(folder / of), "--as", LLAMA, "--into", str(tmp_path / "out")]
    assert main.main(words) == 0
    output = capsys.readouterr().out
    assert f"model.layout: which width has each part? The configuration {named}; the headers" in output
    assert "memory, speed and time to first token: unknown" in output
    (recipe,) = (tmp_path / "out").glob("*.yml")
    assert "layout" not in loader.read(recipe).document["model"]


# Names that promise fewer bits than BF16. ModelOpt keeps the widths in hf_quant_config.json, which may lie elsewhere.
@pytest.mark.parametrize(
    ("repository", "named"),
    [
        ("nvidia/Llama-3.1-8B-NVFP4", "nvfp4"),
        ("RedHatAI/Llama-3.1-8B-FP8-dynamic", "fp8"),
        ("owner/Llama-3.1-8B-AWQ-4bit", "awq"),
        ("owner/Llama-3.1-8B.w4a16", "w4"),
        ("owner/Llama-3.1-8B", ""),
        ("owner/Llama-3.1-8B-BF16", ""),
    ],
)
def test_a_config_without_a_quantisation_is_bf16_only_if_no_name_says_otherwise(
    repository: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = derived_hub.DATA / LLAMA.replace("/", "--") / "config.json"
    assert main.main(["recipe", "new", str(file), "--as", repository, "--into", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    asked = f"model.layout: which width has each part? The name of the repository says {named}, and config.json alone"
    assert (asked in output) == bool(named)
    (recipe,) = tmp_path.glob("*.yml")
    assert ("layout" in loader.read(recipe).document["model"]) == (not named)


# Layers of a model that has 32 with 8 billion weights, its quantisation, options; the Sparks, or a part of a message
# and the Sparks that hold it.
@pytest.mark.parametrize(
    "case",
    [
        (320, "FP8", [], 1),
        (570, "FP8", [], 2),
        (570, "NVFP4", [], 1),
        (570, "FP8", ["--nodes", "1"], "has at least 125.4 GB of weights; 1 Spark of 128 GB hold 104.5 GB", "2 Sparks"),
        (
            1000,
            "FP8",
            [],
            "has at least 219.2 GB of weights; 2 Sparks of 128 GB hold 209.1 GB",
            "3 Sparks behind a switch",
        ),
        (
            1000,
            "BF16",
            ["--nodes", "3"],
            "438.3 GB of weights; 3 Sparks of 128 GB hold 313.6 GB",
            "8 Sparks behind a switch",
        ),
        (1000, "FP8", ["--nodes", "3"], 3),
        (1000, "NVFP4", [], 2),
    ],
    ids=str,
)
def test_weights_of_unknown_width_have_a_least_size(
    case: tuple[int, str, list[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers, algorithm, options, expected, *enough = case
    folder = configured(tmp_path, {"num_hidden_layers": layers}, {"quantization": {"quant_algo": algorithm}})
    status = main.main(["recipe", "new", str(folder), "--as", "some/model", "--into", str(tmp_path / "out"), *options])
    if isinstance(expected, str):
        assert status == 1
        message = capsys.readouterr().err
        assert expected in message
        assert f"or take {enough[0]} (--nodes {enough[0][0]})" in message
        return
    assert status == 0
    topology = loader.read(tmp_path / "out" / "model.yml").document["topology"]
    assert topology["nodes"] == expected
    # Its 32 heads are known without the widths.
    assert topology.get("pipeline_parallel", 1) == (expected if expected > 2 else 1)


# Attention heads, heads of K and V, options; the topology without its executor, or a part of the message.
SHAPES: list[tuple[int, int, list[str], dict[str, int] | str]] = [
    (32, 8, ["--nodes", "2"], {"nodes": 2, "tensor_parallel": 2}),
    (32, 8, ["--nodes", "3"], {"nodes": 3, "tensor_parallel": 1, "pipeline_parallel": 3}),
    (24, 3, ["--nodes", "3"], {"nodes": 3, "tensor_parallel": 3}),
    (32, 8, ["--nodes", "4"], {"nodes": 4, "tensor_parallel": 4}),
    (32, 2, ["--nodes", "4"], {"nodes": 4, "tensor_parallel": 4}),
    (18, 6, ["--nodes", "4"], {"nodes": 4, "tensor_parallel": 2, "pipeline_parallel": 2}),
    (32, 8, ["--nodes", "6"], {"nodes": 6, "tensor_parallel": 2, "pipeline_parallel": 3}),
    (32, 8, ["--nodes", "7"], {"nodes": 7, "tensor_parallel": 1, "pipeline_parallel": 7}),
    (32, 8, ["--nodes", "8"], {"nodes": 8, "tensor_parallel": 8}),
    (9, 3, ["--nodes", "2"], "2 ranks cannot share 9 attention heads, 3 heads of K and V"),
    (36, 12, ["--nodes", "8"], "two stages of four ranks failed on eight Sparks"),
]


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_the_heads_decide_how_the_sparks_share_a_model(
    case: tuple[int, int, list[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heads, shared, options, expected = case
    config = json.loads((derived_hub.DATA / LLAMA.replace("/", "--") / "config.json").read_text())
    changes = {"num_attention_heads": heads, "num_key_value_heads": shared, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    words = [str(tmp_path), "--as", "some/Llama-8B", "--into", str(tmp_path / "out"), *options]
    status, printed = main.main(["recipe", "new", *words]), capsys.readouterr()
    if isinstance(expected, str):
        assert status == 1
        assert expected in printed.err
        assert " Fix: " in printed.err
        return
    assert status == 0
    (file,) = (tmp_path / "out").glob("*.yml")
    recipe = loader.read(file).document
    assert recipe["topology"] == {**expected, "executor": "mp"}
    assert "fabric" in recipe["gates"]
    assert ("stages of a pipeline follow one another" in printed.out) == ("pipeline_parallel" in expected)
    assert f"number of hosts: {expected['nodes']}\n" in printed.out
    assert main.main(["check", str(file)]) == 0


# config.json alone of models that no family knew, options, and a part of what is said.
NEW_FAMILIES = {
    "Kimi allows the code of its tokenizer": ("moonshotai/Kimi-K2.5", "needs its own Python code (auto_map"),
    "the experts of MiniMax alone": ("MiniMaxAI/MiniMax-M3", "has at least 835.2 GB of weights; 2 Sparks"),
    "the experts of Step alone": ("stepfun-ai/Step-3.7-Flash", "has at least 383.0 GB of weights; 2 Sparks"),
    "Hy3 in BF16": ("tencent/Hy3", "or take 8 Sparks behind a switch (--nodes 8)"),
    "GLM, whose image no recipe pins": ("zai-org/GLM-5.3-Flash", "the catalogue pins no image"),
}


@pytest.mark.parametrize("what", NEW_FAMILIES)
def test_a_model_that_cannot_be_served_is_refused_by_its_config(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, said = NEW_FAMILIES[what]
    file = derived_hub.DATA / name.replace("/", "--") / "config.json"
    assert main.main(["recipe", "new", str(file), "--as", name, "--into", str(tmp_path)]) == 1
    assert said in capsys.readouterr().err


# The same with a name or a width that promises fewer bits: the Sparks, and a part of what stays open.
OPEN_FAMILIES = {
    "stepfun-ai/Step-3.7-Flash": ("o/Step-3.7-Flash-NVFP4", 2, "what is a layer of the kind sliding_attention?"),
    "deepseek-ai/DeepSeek-V4-Flash": ("o/V4", 2, "what is a layer of the kind compressed attention?"),
    "RadixArk/Qwen3.8-Flash-Next-NVFP4": ("o/Next-NVFP4", 1, "where is the table of n-grams?"),
    "tencent/Hy3": ("o/Hy3-NVFP4", 2, "model.layout: which width has each part?"),
}


@pytest.mark.parametrize("of", OPEN_FAMILIES)
def test_a_model_of_fewer_bits_stays_open(of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, nodes, asked = OPEN_FAMILIES[of]
    file = derived_hub.DATA / of.replace("/", "--") / "config.json"
    assert main.main(["recipe", "new", str(file), "--as", name, "--into", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert asked in output
    assert "memory, speed and time to first token: unknown" in output
    (recipe,) = tmp_path.glob("*.yml")
    assert loader.read(recipe).document["topology"]["nodes"] == nodes


# Model, changes of its config.json, and a part of the question about them.
WRONG = {
    "a text_config that is not a map": (
        "google/gemma-4-26B-A4B",
        {"text_config": True},
        "what is the width of the model",
    ),
    "dense layers in words": (
        SMALL,
        {"first_k_dense_replace": "one"},
        "what is the number of dense layers? config.json has one",
    ),
    "more dense layers than layers": (SMALL, {"first_k_dense_replace": 10**30}, "what is the number of dense layers"),
    "no heads": (LLAMA, {"num_attention_heads": 0}, "what is heads of the"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_value_of_config_json_is_a_question(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, changes, question = WRONG[what]
    sound = derived_hub.DATA / name.replace("/", "--") / "config.json"
    (tmp_path / "config.json").write_text(json.dumps({**json.loads(sound.read_text()), **changes}))
    words = ["recipe", "new", str(tmp_path / "config.json"), "--as", name, "--into", str(tmp_path / "out")]
    assert main.main(words) == 0
    assert question in capsys.readouterr().out


def test_shared_layers_in_words_are_a_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((derived_hub.DATA / "google--gemma-4-26B-A4B" / "config.json").read_text())
    config["text_config"]["num_kv_shared_layers"] = ["two"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["recipe", "new", str(tmp_path / "config.json"), "--as", "google/gemma-4-26B-A4B"]
    assert main.main([*words, "--into", str(tmp_path / "out")]) == 0
    assert "what is the number of layers that share the cache of others?" in capsys.readouterr().out


def header(text: str, weights: int = 0) -> bytes:
    """Return a file with this header, and weights of zeros."""
    return len(text).to_bytes(8, "little") + text.encode() + bytes(weights)


CUT = {
    "an empty file": (b"", "is too small for a safetensors file"),
    "half a header": ((1000).to_bytes(8, "little") + b"{", "is cut in its header, which has 1 of 1000 bytes"),
    "weights that are not there": (
        header('{"a.weight": {"dtype": "BF16", "shape": [1000, 1000], "data_offsets": [0, 2000000]}}'),
        "its header puts a.weight at bytes 0 to 2000000",
    ),
    "a shape that is not one": (
        header('{"a.weight": {"dtype": "BF16", "shape": ["x"], "data_offsets": [0, 1]}}', 1),
        "whose tensor a.weight cannot be read —",
    ),
    # 2**40 times a text is a text of 2**40 letters.
    "a shape with a text": (
        header('{"a.weight": {"dtype": "BF16", "shape": [1099511627776, "x"], "data_offsets": [0, 1]}}', 1),
        "whose tensor a.weight cannot be read —",
    ),
    "a shape of many sizes": (
        header(json.dumps({"a.weight": {"dtype": "BF16", "shape": [10**300] * 9999, "data_offsets": [0, 1]}}), 1),
        "whose tensor a.weight cannot be read —",
    ),
    "offsets that are null": (
        header('{"a.weight": {"dtype": "BF16", "shape": [1], "data_offsets": null}}', 1),
        "whose tensor a.weight cannot be read —",
    ),
    "offsets that are none": (
        header('{"a.weight": {"dtype": "BF16", "shape": [1], "data_offsets": [0]}}', 1),
        "whose tensor a.weight cannot be read",
    ),
    "bytes that are not those of the shape": (
        header('{"a.weight": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 8]}}', 8),
        "gives a.weight 8 bytes for 8 numbers of BF16",
    ),
}


@pytest.mark.parametrize("what", CUT)
def test_a_folder_with_a_damaged_file(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, expected = CUT[what]
    folder = snapshot(tmp_path)
    (folder / "model.safetensors").write_bytes(content)
    assert main.main(["recipe", "new", str(folder), "--into", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert expected in message
    assert " Fix: name another commit" in message


def test_a_site_shares_a_recipe_as_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    (mine / "architectures").mkdir(parents=True)
    known = yaml.load((paths.RECIPES / "architectures" / "llama-3.1-8b.yml").read_text(), yaml.CSafeLoader)
    (mine / "architectures" / "own-llama.yml").write_text(yaml.safe_dump({**known, "name": "own-llama"}))
    recipe = yaml.load((paths.RECIPES / "qwen3.6-35b-a3b-fp8.yml").read_text(), yaml.CSafeLoader)
    recipe["model"] |= {"architecture": "own-llama", "layout": {"attention": "bf16", "mlp": "bf16", "head": "bf16"}}
    (mine / "own.yml").write_text(yaml.safe_dump({**recipe, "name": "own"}))
    assert main.main(["recipe", "export", str(mine / "own.yml")]) == 0
    shared = tmp_path / "shared.yml"
    shared.write_text(capsys.readouterr().out)
    assert main.main(["recipe", "import", str(shared), "--into", str(theirs)]) == 0
    assert loader.read(theirs / "own.yml").document == loader.read(mine / "own.yml").document
    assert (theirs / "architectures" / "own-llama.yml").is_file()
    assert main.main(["plan", str(theirs / "own.yml")]) == 0
    assert "memory of a reference Spark" in capsys.readouterr().out


def test_a_recipe_with_patches_is_not_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["recipe", "export", "gemma-4-31b-nvfp4-tp2-mtp"]) == 1
    assert "needs patches/shm-broadcast-sleep.patch beside it" in capsys.readouterr().err


def test_a_broken_architecture_beside_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "architectures").mkdir()
    (tmp_path / "architectures" / "bad.yml").write_text("---\nname: bad\n")
    recipe = yaml.load((paths.RECIPES / "qwen3.6-35b-a3b-fp8.yml").read_text(), yaml.CSafeLoader)
    recipe["model"]["architecture"] = "bad"
    (tmp_path / "own.yml").write_text(yaml.safe_dump({**recipe, "name": "own"}))
    assert main.main(["check", str(tmp_path / "own.yml")]) == 1
    assert "bad.yml: (top level): missing keys" in capsys.readouterr().err
