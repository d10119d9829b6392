"""`vllm-spark recipe new` against the stand-in hub: fourteen models, and every way in which a hub can fail."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fakes import derived_hub
from fakes.derived_hub import Fault, Repository
from vllm_spark.cli import main
from vllm_spark.cli.recipe import new
from vllm_spark.core import documents
from vllm_spark.pinning.hub import Hub
from vllm_spark.recipe import architecture, loader
from vllm_spark.sizing import layout, memory
from waiting import LIMIT_S

SMALL = "openai/gpt-oss-20b"
MOST_BYTES = 20e6


def run(folder: Path, *words: str) -> int:
    return main.main(["recipe", "new", *words, "--into", str(folder)])


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> str:
    """Run, and return the refusal. It has the form of a message, no traceback, and nothing was written."""
    assert run(folder, *words) == 1
    message = capsys.readouterr().err
    assert " — expected: " in message
    assert " Fix: " in message
    assert re.search(r"See `vllm-spark runbook [a-z-]+`", message)
    assert "Traceback" not in message
    assert not list(folder.glob("**/*.yml"))
    return message


EXPECTED: dict[str, dict[str, Any]] = documents.read_yaml(derived_hub.DATA / "expected.yml")


@pytest.mark.parametrize("name", EXPECTED)
def test_a_published_model(name: str, hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.find(name)
    assert run(tmp_path, name) == 0
    assert hub.sent < MOST_BYTES
    assert capsys.readouterr().err.startswith("read ")
    recipe = loader.read(next(tmp_path.glob("*.yml"))).document
    expected = EXPECTED[name]
    assert recipe.get("env", {}) == expected.get("env", {})
    assert [file["path"] for file in recipe["image"].get("derive", {}).get("files", [])] == expected.get("files", [])
    assert recipe["model"]["layout"] == expected["layout"]
    assert {key: recipe["args"].get(key) for key in expected["args"]} == expected["args"]
    assert sorted(recipe["gates"]) == sorted([*expected["gates"], "failover", "log", "ready"])
    assert recipe["topology"]["nodes"] == expected["nodes"]
    assert recipe["model"]["revision"] == derived_hub.repository(name).commit
    assert recipe.get("drafter", {}).get("speculative_tokens", 0) == expected["drafter"]
    assert main.main(["check", *map(str, tmp_path.glob("*.yml"))]) == 0


SIZED = [row for row in derived_hub.rows() if "published" in row]


@pytest.mark.parametrize("row", SIZED, ids=lambda row: row["model"])
def test_a_derived_model_has_the_published_size(row: dict[str, Any]) -> None:
    derived = sum(derived_hub.repository(row["model"]).sizes.values())
    assert derived == pytest.approx(row["published"], rel=row["within"])


@pytest.mark.parametrize("name", ["nvidia/Qwen3.6-27B-NVFP4", "openai/gpt-oss-120b", "nvidia/MiniMax-M2.5-NVFP4"])
def test_the_layout_gives_the_bytes_of_the_files(name: str, hub: derived_hub.Hub, tmp_path: Path) -> None:
    assert run(tmp_path, name) == 0
    recipe = loader.read(next(tmp_path.glob("*.yml"))).document
    unsized = copy.deepcopy(dict(recipe))
    size = unsized["model"].pop("size_bytes")
    heads = recipe.get("drafter", {}).get("architecture")
    own = architecture.of_recipe(recipe, heads).stored_weights() if heads else {}
    assert memory.file_bytes(unsized) + sum(own.values()) * layout.UNQUANTISED == pytest.approx(size, rel=0.02)


def test_a_name_that_no_hub_has(hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nobody/nothing does not exist, or is private" in refused(capsys, tmp_path, "nobody/nothing")


@pytest.mark.parametrize("name", ["noslash", "a/b/c", "-x/y", "a/b@", "a b/c", "../etc"])
def test_a_name_that_is_none(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) if name.startswith("-") else pytest.MonkeyPatch.context():
        assert "is neither a path nor the name of a repository" in refused(capsys, tmp_path, name)


def test_a_commit_that_the_repository_does_not_have(
    hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "does not have this commit" in refused(capsys, tmp_path, f"{SMALL}@{'1' * 40}")
    assert run(tmp_path, f"{SMALL}@{derived_hub.repository(SMALL).commit}") == 0


def test_a_gated_repository_needs_a_token(
    hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_right"
    message = refused(capsys, tmp_path, SMALL)
    assert "is gated" in message
    assert "set HF_TOKEN" in message
    monkeypatch.setattr(new, "Hub", lambda: Hub(endpoint=hub.url, token=hub.token, deadline_s=LIMIT_S))
    assert run(tmp_path, SMALL) == 0


# Fault -> a part of the message.
FAULTS: dict[str, tuple[Fault, str]] = {
    "401": (Fault("/api/", status=401), "may not be read (status 401)"),
    "403": (Fault("/resolve/", status=403), "may not be read (status 403)"),
    "429": (Fault("/api/", status=429, headers={"Retry-After": "17"}), "Wait 17 s first"),
    "429 of a header": (Fault("safetensors", status=429), "refuses more requests for now"),
    "500": (Fault("/api/", status=500), "does not answer: status 500"),
    "503 of a file": (Fault("config.json", status=503), "does not answer: status 503"),
    "a file that it lists and does not have": (
        Fault("config.json", status=404, headers={"X-Error-Code": "EntryNotFound"}),
        "a file that it lists is not there",
    ),
    "cut in the list": (Fault("/api/", cut=100), "does not answer"),
    "cut in config.json": (Fault("config.json", cut=100), "does not answer"),
    "cut in a header": (Fault("00001-of", cut=5000), "does not answer"),
    "slow": (Fault("config.json", delay_s=4.0), "does not answer: timed out"),
    "not JSON": (Fault("/api/", body=b"<html>log in</html>"), "its answer is not that of a hub"),
    "a list": (Fault("/api/", body=b"[]"), "its answer is not that of a hub"),
    "null": (Fault("/api/", body=b"null"), "its answer is not that of a hub"),
    "no commit": (Fault("/api/", body=b'{"id": "a/b", "siblings": []}'), "its answer has the commit None"),
    "a config.json that is none": (Fault("resolve", body=b"<html>"), "config.json is not JSON"),
    "a config.json that is a list": (Fault("resolve", body=b"[1]"), "is JSON, and not a map"),
    "a header that is too long": (Fault("00001-of", body=(1 << 40).to_bytes(8, "little")), "too big"),
    "an empty header": (Fault("00001-of", body=b""), "too small"),
    "a header that is no JSON": (Fault("00001-of", body=(4).to_bytes(8, "little") + b"abcd"), "is not JSON"),
    "a header that is a list": (Fault("00001-of", body=(2).to_bytes(8, "little") + b"[]"), "is not a map of tensors"),
    "whole files": (Fault("safetensors", whole=True), "it ignores ranges and sends whole files"),
    "a redirect to itself": (Fault("/api/", status=302, headers={"Location": "/api/"}), "does not answer"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_hub_that_fails(
    fault: str,
    hub: derived_hub.Hub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    what, expected = FAULTS[fault]
    if what.delay_s:
        monkeypatch.setattr(new, "Hub", lambda: Hub(endpoint=hub.url, token="", deadline_s=what.delay_s / 2))
    hub.faults.append(what)
    assert expected in refused(capsys, tmp_path, SMALL)


def test_no_hub_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new, "Hub", lambda: Hub(endpoint="http://127.0.0.1:9", token="", deadline_s=LIMIT_S))
    assert "HF_ENDPOINT names another hub" in refused(capsys, tmp_path, SMALL)


def test_a_hub_that_trickles(
    hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new, "LIMIT_S", 1.0)
    hub.faults.append(Fault("/resolve/", delay_s=0.6))
    assert "it took more than 1 s in all" in refused(capsys, tmp_path, SMALL)


def test_more_bytes_than_allowed(
    hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new, "LIMIT_BYTES", 100_000)
    assert "it has sent more than" in refused(capsys, tmp_path, SMALL)


def test_files_are_redirected_to_another_address(hub: derived_hub.Hub, tmp_path: Path) -> None:
    hub.redirects = True
    assert run(tmp_path, SMALL) == 0


def changed(hub: derived_hub.Hub, **files: bytes | None) -> None:
    """Serve the small model with other files; None removes one. `__` is a dot and `_0` a dash."""
    original = derived_hub.repository(SMALL)
    copied = Repository(original.commit, dict(original.files), dict(original.sizes))
    for name, content in files.items():
        path = name.replace("__", ".").replace("_0", "-")
        copied.files.pop(path, None)
        copied.sizes.pop(path, None)
        if content is not None:
            copied.files[path] = content
    hub.repositories[SMALL] = copied


def index(change: dict[str, str]) -> bytes:
    document = json.loads(derived_hub.repository(SMALL).files["model.safetensors.index.json"])
    return json.dumps({**document, "weight_map": {**document["weight_map"], **change}}).encode()


NORM = "model.layers.0.self_attn.q_proj.weight"
LIES = {
    "a file that is not there": (
        {"model__safetensors__index__json": index({NORM: "other.safetensors"})},
        "of which 1 do",
    ),
    "a tensor in another file": (
        {"model__safetensors__index__json": index({NORM: "model-00003-of-00003.safetensors"})},
        "puts 1 tensors where they are not",
    ),
    "a tensor that is nowhere": (
        {"model__safetensors__index__json": index({"x.weight": "model-00003-of-00003.safetensors"})},
        "puts 1 tensors where they are not, of which x.weight",
    ),
    "no map": ({"model__safetensors__index__json": b'{"weight_map": []}'}, "has no weight_map"),
    "a shard too few": (
        {"model__safetensors__index__json": None, "model_000002_0of_000003__safetensors": None},
        "is one of 2 files, whose names say 3",
    ),
    "no config": ({"config__json": None}, "has no config.json"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_repository_that_does_not_fit_together(
    lie: str, hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, expected = LIES[lie]
    changed(hub, **files)
    assert expected in refused(capsys, tmp_path, SMALL)


OTHERS = {
    "GGUF": ({"model-Q4_K_M.gguf": b"GGUF"}, "has no safetensors files, but GGUF"),
    "pickles": ({"pytorch_model.bin": b"PK"}, "has no safetensors files, but pickles"),
    "nothing": ({"README.md": b"soon"}, "no weights of another kind either"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_formats(kind: str, hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, expected = OTHERS[kind]
    hub.repositories["some/model"] = Repository("1" * 40, {"config.json": b'{"model_type": "llama"}', **files})
    message = refused(capsys, tmp_path, "some/model")
    assert expected in message
    assert "name a repository of the same model with safetensors files" in message


REFUSED_MODELS = {
    "deepseek-ai/DeepSeek-V3": "has 688.6 GB of weights; 2 Sparks of 128 GB hold 209.1 GB",
    "moonshotai/Kimi-K3": "needs its own Python code (auto_map of config.json)",
    "XiaomiMiMo/MiMo-V2-Flash": "has the model_type mimo_v2_flash",
}


@pytest.mark.parametrize("name", REFUSED_MODELS)
def test_a_model_that_is_refused(
    name: str, hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert REFUSED_MODELS[name] in refused(capsys, tmp_path, name)
    assert not any("safetensors " in request for request in hub.requests), "refused before its headers are read"


def test_a_model_that_needs_its_own_code(
    hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads(derived_hub.repository(SMALL).files["config.json"])
    code = {"auto_map": {"AutoModelForCausalLM": "modeling_other.Other"}, "model_type": "other_type"}
    changed(hub, config__json=json.dumps({**config, **code}).encode())
    message = refused(capsys, tmp_path, SMALL)
    assert "needs its own Python code (auto_map of config.json)" in message
    assert "model_type other_type" in message
    # A family whose code the engine has does not need it.
    changed(hub, config__json=json.dumps({**config, "auto_map": code["auto_map"]}).encode())
    assert run(tmp_path, SMALL) == 0
    assert "trust-remote-code" not in loader.read(tmp_path / "gpt-oss-20b.yml").document["args"]


def test_dimensions_that_the_headers_contradict(
    hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads(derived_hub.repository(SMALL).files["config.json"])
    changed(hub, config__json=json.dumps({**config, "num_local_experts": 16}).encode())
    assert run(tmp_path, SMALL) == 0
    output = capsys.readouterr().out
    assert "architecture experts: which is right?" in output
    assert "memory, speed and time to first token: unknown" in output
    assert ": go" not in output
    text = next(tmp_path.glob("*.yml")).read_text()
    assert "# open: " in text
    assert "layout" not in loader.read(next(tmp_path.glob("*.yml"))).document["model"]


@pytest.mark.parametrize("value", ["32", None, -1, 0, True, [32], {}, 1e9, 10**30])
@pytest.mark.parametrize("key", ["hidden_size", "layer_types", "num_local_experts", "head_dim", "sliding_window"])
def test_a_config_with_values_that_are_none(
    key: str, value: Any, hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads(derived_hub.repository(SMALL).files["config.json"])
    changed(hub, config__json=json.dumps({**config, key: value}).encode())
    status = run(tmp_path, SMALL)
    printed = capsys.readouterr()
    left_open = (
        "memory, speed and time to first token: unknown" in printed.out and "open questions: none" not in printed.out
    )
    assert (status == 1 and " Fix: " in printed.err) or left_open


def test_a_config_alone_has_an_unknown_size(
    hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_bytes(derived_hub.repository(SMALL).files["config.json"])
    assert run(tmp_path / "into", str(config), "--as", f"{SMALL}@{'a' * 40}") == 0
    output = capsys.readouterr().out
    assert f"commit {'a' * 40}, size unknown" in output
    assert " 0.0 GB" not in output


def test_the_options(hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--node-memory", "64", "--context", "8192", "--streams", "12", "--drafter", "none", "--name", "mine"]
    assert run(tmp_path, "nvidia/Qwen3.6-27B-NVFP4", *words) == 0
    recipe = loader.read(tmp_path / "mine.yml").document
    assert recipe["args"]["max-model-len"] == 8192
    assert recipe["args"]["max-num-seqs"] == 12
    assert "drafter" not in recipe
    assert recipe["memory"]["utilization"] < 0.78
    assert "each of 12 streams, 8192 tokens of context" in capsys.readouterr().out
    assert run(tmp_path, "nvidia/Qwen3.6-27B-NVFP4", "--name", "mine") == 1
    assert "exists — expected: a new file" in capsys.readouterr().err
    assert run(tmp_path, "nvidia/Qwen3.6-27B-NVFP4", "--name", "mine", "--replace", "--nodes", "2") == 0
    assert loader.read(tmp_path / "mine.yml").document["topology"]["nodes"] == 2


def test_a_pipeline_has_no_drafter(hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "nvidia/Qwen3.6-27B-NVFP4"
    assert "vLLM starts no drafter under one" in refused(capsys, tmp_path, name, "--nodes", "3", "--drafter", "mtp")
    for nodes in (3, 4):
        assert run(tmp_path, name, "--nodes", str(nodes), "--replace") == 0
        recipe = loader.read(tmp_path / "qwen3.6-27b-nvfp4.yml").document
        assert ("drafter" in recipe) == (nodes == 4)
        assert ("without a drafter" in capsys.readouterr().out) == (nodes == 3)
        # The plan before the switch is bought agrees: the head has room for what it alone holds.
        assert main.main(["plan", str(tmp_path / "qwen3.6-27b-nvfp4.yml"), "--sparks", str(nodes)]) == 0
        assert "the toolkit deploys it by this recipe" in capsys.readouterr().out


def test_a_peak_that_was_measured_is_not_taken_over(hub: derived_hub.Hub, tmp_path: Path) -> None:
    assert run(tmp_path, SMALL, "--nodes", "4", "--like", "gpt-oss-120b") == 0
    assert sorted(loader.read(tmp_path / "gpt-oss-20b.yml").document["memory"]) == ["free_floor_bytes", "utilization"]


def test_a_context_beyond_the_model(hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "whose config.json has 131072 positions" in refused(capsys, tmp_path, SMALL, "--context", "500000")


def test_a_name_from_the_hub_is_neither_obeyed_nor_written_as_yaml(
    hub: derived_hub.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads(derived_hub.repository(SMALL).files["config.json"])
    kinds = ["\x1b[2Jcleared\nsecrets: [STOLEN]", *config["layer_types"][1:]]
    changed(hub, config__json=json.dumps({**config, "layer_types": kinds}).encode())
    assert run(tmp_path, SMALL) == 0
    assert "\x1b" not in capsys.readouterr().out
    file = tmp_path / "gpt-oss-20b.yml"
    assert "\x1b" not in file.read_text()
    assert "secrets" not in loader.read(file).document
    changed(hub, config__json=json.dumps({**config, "model_type": "\x1b[2J"}).encode())
    assert run(tmp_path, SMALL) == 1
    assert "\x1b" not in capsys.readouterr().err
