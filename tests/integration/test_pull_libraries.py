"""A pull with real hub libraries, from a hub with xet: each file once, proven, in the model's folder alone.

The job runs as in the engine's container: the programs of a pull, the variables of its command, and the packages of one
library. The hub and xet's store are stand-ins; the library and hf_xet, its client, are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fakes.fake_hub import CHUNKS, LARGE, Hub
from fakes.hub_libraries import LIBRARIES, SHARING, library
from fakes.model_copies import COMMIT, FILES, FOLDER, REPOSITORY, manifest_of, serving_hub, snapshot_files, write_files
from vllm_spark.node import shared_blobs
from vllm_spark.node.pull.model_files import Source
from vllm_spark.transfer import plan, weights

pytestmark = pytest.mark.online

BIG = "model-00001-of-00002.safetensors"
SHARED = {path for path, content in FILES.items() if len(content) > LARGE}
OTHER = "owner/Other"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with serving_hub(tmp_path / "outside") as server:
        write_files(tmp_path / "outside" / OTHER / COMMIT, FILES)
        yield server


@pytest.fixture
def model(tmp_path: Path) -> Source:
    return Source(tmp_path / "hub", FOLDER, COMMIT)


def python(version: str, hub: Hub, code: str, *words: str, variables: Mapping[str, str] | None = None) -> str:
    """Run code with one library, and nothing else, and return what it prints."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(library(version)),
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(hub.folder.parent / "home"),
        **(variables or {}),
    }
    argv = [sys.executable, "-S", "-c", code, *words]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pull(version: str, hub: Hub, model: Source, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run the job in the way of the container. `variables` replace those of its command."""
    top = hub.folder.parent
    for path, text in plan.programs().items():
        (top / "programs" / path).parent.mkdir(parents=True, exist_ok=True)
        (top / "programs" / path).write_text(text)
    (top / "jobs").mkdir(exist_ok=True)
    ref = {"repository": REPOSITORY, "folder": FOLDER, "commit": COMMIT}
    (top / "jobs" / "fetch-hub.request").write_text(json.dumps({"hub": str(model.hub), "sources": [ref]}))
    argv = weights.hub_fetch_argv("image", str(model.hub))
    named = dict(value.split("=", 1) for option, value in pairwise(argv) if option == "--env")
    code = weights.RUN_JOB.replace("/programs", str(top / "programs"))
    words = argv[argv.index(weights.RUN_JOB) + 1 :]
    mine = {"VLLM_SPARK_JOBS": str(top / "jobs")}
    try:
        python(version, hub, code, *words, variables={**(named if variables is None else variables), **mine})
    except AssertionError as error:
        raise AssertionError((top / "jobs" / "fetch-hub.result").read_text()) from error
    result: dict[str, Any] = json.loads((top / "jobs" / "fetch-hub.result").read_text())
    return result


def hf_download(version: str, hub: Hub, folder: Path, repository: str = REPOSITORY) -> None:
    """Run the library's command line, as an owner does.

    With one worker: of several that make the store at once, one may leave its file outside of it.
    """
    code = "import sys; from huggingface_hub.cli.hf import main; sys.argv[0] = 'hf'; main()"
    words = ("--revision", COMMIT, "--cache-dir", str(folder), "--max-workers", "1")
    python(version, hub, code, "download", repository, *words)


def stored(model: Source) -> list[Path]:
    return list(shared_blobs.files(model.hub))


def check_own(model: Source) -> None:
    """Check that an engine which gets the model's folder alone reads every file, each under one name."""
    assert snapshot_files(model.hub) == FILES
    for file in model.snapshot.rglob("*"):
        if not file.is_dir():
            assert file.resolve().is_relative_to(model.root)
            assert file.stat().st_nlink == 1
    manifest = model.manifest()
    assert manifest is not None
    assert manifest.sha256 == manifest_of(FILES).sha256
    for entry in manifest.files:
        os.close(model.open(entry))


@pytest.mark.parametrize("version", LIBRARIES)
def test_each_file_arrives_once_and_in_the_models_folder(hub: Hub, model: Source, version: str) -> None:
    assert pull(version, hub, model)["fetched"]
    assert any(CHUNKS.fullmatch(line.split()[1]) for line in hub.requests), "hf_xet has fetched the large files"
    assert hub.sent() == Counter(set(FILES) - {"empty.txt"})
    check_own(model)
    assert not (model.hub / "blobs").exists()
    assert pull(version, hub, model)["fetched"] == []
    assert hub.requests == []


@pytest.mark.parametrize("version", SHARING)
def test_a_library_that_shares_in_spite_of_the_variable_costs_no_second_download(
    hub: Hub, model: Source, version: str
) -> None:
    pull(version, hub, model, variables={})
    assert hub.sent() == Counter(set(FILES) - {"empty.txt"})
    check_own(model)
    assert stored(model) == []


@pytest.mark.parametrize("version", SHARING)
def test_a_cache_of_hf_download_is_adopted_without_a_download(hub: Hub, model: Source, version: str) -> None:
    hf_download(version, hub, model.hub)
    assert len(stored(model)) == len(SHARED), "it is in the shared store"
    hub.sent()
    pull("0.36.2", hub, model)
    assert hub.sent() == Counter()
    check_own(model)
    assert stored(model) == []
    # The owner's library still finds all of it.
    hf_download(version, hub, model.hub)
    assert hub.sent() == Counter()


@pytest.mark.parametrize("version", SHARING)
def test_of_a_damaged_cache_one_file_is_fetched_again(hub: Hub, model: Source, version: str) -> None:
    hf_download(version, hub, model.hub)
    damaged = (model.snapshot / BIG).resolve()
    damaged.chmod(0o644)
    content = damaged.read_bytes()[:-1] + b"x"
    damaged.write_bytes(content)
    hub.sent()
    pull(version, hub, model)
    assert hub.sent() == Counter([BIG])
    check_own(model)
    assert stored(model) == [damaged]
    assert damaged.read_bytes() == content, "it is not the toolkit's"
    assert shared_blobs.unlinked(model.hub) == [damaged]


@pytest.mark.parametrize("version", SHARING)
def test_a_file_that_another_model_links_to_is_copied(hub: Hub, model: Source, version: str) -> None:
    hf_download(version, hub, model.hub)
    hf_download(version, hub, model.hub, OTHER)
    hub.sent()
    pull(version, hub, model)
    assert hub.sent() == Counter()
    check_own(model)
    assert len(stored(model)) == len(SHARED)
    assert shared_blobs.unlinked(model.hub) == []
    other = model.hub / "models--owner--Other" / "snapshots" / COMMIT
    assert {str(file.relative_to(other)): file.read_bytes() for file in other.rglob("*") if file.is_file()} == FILES


@pytest.mark.parametrize("version", SHARING)
def test_what_an_earlier_pull_left_in_the_store_is_not_fetched_again(hub: Hub, model: Source, version: str) -> None:
    """An earlier toolkit deleted the links, fetched twice, and failed."""
    hf_download(version, hub, model.hub)
    for path in SHARED:
        blob = model.root / "blobs" / (model.snapshot / path).readlink().name
        assert shared_blobs.hash_of(blob)
        blob.unlink()
        (model.snapshot / path).unlink()
    hub.sent()
    pull(version, hub, model)
    assert hub.sent() == Counter()
    check_own(model)
    assert stored(model) == []
