"""The hub client with the real huggingface_hub against a fake hub, and the verb `lock` with a fake registry too."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

import loopback
from fakes.fake_http import Reply, serving
from project_files import DATA
from vllm_spark.core import own_process
from vllm_spark.core.refusal import RefusedError
from vllm_spark.node.pull.files import git_sha1
from vllm_spark.node.pull.model_files import FileEntry, Manifest
from vllm_spark.pinning import lock_verb
from vllm_spark.pinning.hub import Hub
from vllm_spark.pinning.registry import Registry
from vllm_spark.recipe import loader, lockfile

COMMIT = "c0ffee" + "0" * 34
SMALL = b"# a program that the checkpoint ships\n"
CONFIG = b"{}"
LARGE = "d" * 64
RIGHT, WRONG = "hf_right", "hf_wrong"
DIGEST = f"sha256:{'5' * 64}"


def file(path: str, size: int, **more: object) -> dict[str, object]:
    """Return the entry of a file in a response of the hub."""
    return {"type": "file", "path": path, "size": size, "oid": "1" * 40, **more}


# A small file that is not taken, a small one that is, and a large one.
LISTED = [
    {"rfilename": "patched.py", "size": len(SMALL), "blobId": "1" * 40},
    {"rfilename": "config.json", "size": len(CONFIG), "blobId": git_sha1(CONFIG)},
    {
        "rfilename": "model.safetensors",
        "size": 20,
        "blobId": "2" * 40,
        "lfs": {"sha256": LARGE, "size": 20, "pointerSize": 130},
    },
]
# The endpoints that `lock` uses: a model's main branch, the files of a commit, and one file.
RESPONSES = {
    "/api/models/owner/Model/revision/main": Reply({"id": "owner/Model", "sha": COMMIT}),
    f"/api/models/owner/Model/revision/{COMMIT}": Reply({"id": "owner/Model", "sha": COMMIT, "siblings": LISTED}),
    "/api/models/owner/gated/revision/main": Reply({}, status=403, headers={"X-Error-Code": "GatedRepo"}),
    "/api/models/owner/odd/revision/main": Reply({"error": "maintenance"}, status=418),
    f"/api/models/owner/Model/paths-info/{COMMIT}": Reply([file("patched.py", len(SMALL))]),
    f"/owner/Model/resolve/{COMMIT}/config.json": Reply(CONFIG, headers={"ETag": '"2"', "X-Repo-Commit": COMMIT}),
    f"/owner/Model/resolve/{COMMIT}/patched.py": Reply(SMALL, headers={"ETag": '"1"', "X-Repo-Commit": COMMIT}),
    f"/api/models/owner/Large/paths-info/{COMMIT}": Reply(
        [file("template.jinja", 20, lfs={"oid": LARGE, "size": 20, "pointerSize": 130})]
    ),
    f"/api/models/owner/Huge/paths-info/{COMMIT}": Reply([file("model.safetensors", 1 << 40)]),
    f"/api/models/owner/Empty/paths-info/{COMMIT}": Reply([]),
}


MANIFEST = Manifest(
    "owner/Model",
    COMMIT,
    (
        FileEntry("config.json", len(CONFIG), hashlib.sha256(CONFIG).hexdigest(), git_sha1(CONFIG)),
        FileEntry("model.safetensors", 20, LARGE, LARGE),
    ),
)


def hub_response(path: str, headers: Mapping[str, str]) -> Reply:
    if headers.get("Authorization") == f"Bearer {WRONG}":
        return Reply({"error": "Invalid credentials"}, status=401)
    unknown = Reply({"error": "Repository not found"}, status=404, headers={"X-Error-Code": "RepoNotFound"})
    return RESPONSES.get(path.partition("?")[0], unknown)


def test_the_branch_resolves_to_a_commit() -> None:
    with serving(hub_response) as (url, requests):
        answer = Hub(url, token=RIGHT).revision("owner/Model")
    assert answer.value == COMMIT
    assert answer.origin == url.removeprefix("http://")
    assert requests[0][1]["authorization"] == f"Bearer {RIGHT}"


def test_a_small_file_is_downloaded_and_hashed() -> None:
    with serving(hub_response) as (url, requests):
        assert Hub(url).file("owner/Model", COMMIT, "patched.py").value == hashlib.sha256(SMALL).hexdigest()
    assert any("/resolve/" in path for path, _ in requests)


def test_a_file_whose_sha256_the_hub_knows_is_not_downloaded() -> None:
    with serving(hub_response) as (url, requests):
        assert Hub(url).file("owner/Large", COMMIT, "template.jinja").value == LARGE
    assert not any("/resolve/" in path for path, _ in requests)


# repository -> (id, a part of the message)
REFUSED = {
    "owner/nothing": ("hub-login", "owner/nothing does not exist, or is private"),
    "owner/gated": ("hub-login", "is gated"),
    "owner/odd": ("hub-down", "status 418"),
    "no name at all": ("hub-login", "is not the name of a repository"),
}


@pytest.mark.parametrize("repository", REFUSED)
def test_another_response_is_refused_with_its_reason(repository: str) -> None:
    with serving(hub_response) as (url, _), pytest.raises(RefusedError) as refused:
        Hub(url).revision(repository)
    (refusal,) = refused.value.refusals
    assert (refusal.id, REFUSED[repository][1] in str(refusal)) == (REFUSED[repository][0], True), str(refusal)


def test_a_wrong_token_is_refused() -> None:
    with serving(hub_response) as (url, _), pytest.raises(RefusedError, match="set HF_TOKEN"):
        Hub(url, token=WRONG).revision("owner/Model")


@pytest.mark.parametrize(
    ("repository", "path", "message"),
    [("owner/Empty", "none.py", "is not a file there"), ("owner/Huge", "model.safetensors", "has 1099511627776 bytes")],
)
def test_a_file_that_cannot_be_mounted_is_refused(repository: str, path: str, message: str) -> None:
    with serving(hub_response) as (url, _), pytest.raises(RefusedError, match=message):
        Hub(url).file(repository, COMMIT, path)


def test_a_hub_that_is_down_is_refused() -> None:
    with loopback.refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(RefusedError, match=rf"the hub at {url} does not answer: .* Fix: "):
            Hub(url).revision("owner/Model")


# --- the verb, with both


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the recipes `open`, which pins nothing, and `closed`, which pins its image and its model."""
    document = yaml.load((DATA / "recipes" / "everything.yml").read_text(), yaml.CSafeLoader)
    del document["drafter"], document["image"]["digest"], document["model"]["revision"]
    document["image"]["repository"] = "images.test/owner/engine"
    document["mounts"] = [{**document["mounts"][0], "path": "patched.py"}]
    del document["mounts"][0]["sha256"]
    (tmp_path / "open.yml").write_text(yaml.safe_dump({**document, "name": "open"}))
    closed = {**document, "name": "closed", "mounts": [], "model": {**document["model"], "revision": COMMIT}}
    closed["image"] = {**document["image"], "digest": DIGEST}
    (tmp_path / "closed.yml").write_text(yaml.safe_dump(closed))
    return tmp_path


def registry_response(path: str, headers: Mapping[str, str]) -> Reply:
    del headers
    if path.endswith(f"manifests/{DIGEST}"):
        return Reply({"manifests": [{"digest": DIGEST, "platform": {"os": "linux", "architecture": "amd64"}}]})
    return Reply({"manifests": [{"digest": DIGEST, "platform": {"os": "linux", "architecture": "arm64"}}]})


def run(folder: Path, registry_url: str, hub_url: str, **more: object) -> lock_verb.LockOutcome:
    deployments = [
        {"name": "one", "recipe": "open", "hosts": ["spark1"]},
        {"name": "two", "recipe": "closed", "hosts": ["spark2"], "active": False},
    ]
    fields = {"deployments": deployments, "limit": ("spark1",), "recipe_folders": (folder,), **more}
    registry = Registry({"images.test": registry_url})
    source = lock_verb.RemoteSources(registry, Hub(hub_url))
    request = lock_verb.LockRequest(**fields)  # type: ignore[arg-type]
    return lock_verb.run(request, folder / "lock.yml", source, lock_verb.digest_check(registry), "2026-11-21")


def test_lock_resolves_the_recipes_within_the_limit(folder: Path) -> None:
    with serving(registry_response) as (images, _), serving(hub_response) as (models, _):
        first = run(folder, images, models)
        (folder / "lock.yml").write_text(first.after)
        second = run(folder, images, models)
    assert first.before == ""
    assert len(first.lines) == 4
    assert all(": new, " in line for line in first.lines)
    assert second.after == second.before == first.after
    document = loader.load("open", (folder,)).document
    assert lockfile.missing_pins(document, lockfile.read(folder / "lock.yml")) == []


def test_lock_keeps_a_file_with_the_same_entries(folder: Path) -> None:
    """The order of its entries and its comments do not matter."""
    with serving(registry_response) as (images, _), serving(hub_response) as (models, _):
        content = run(folder, images, models).after
        (folder / "lock.yml").write_text(f"# mine\n{content.removeprefix(lockfile.HEADER)}")
        again = run(folder, images, models)
    assert again.after == again.before
    assert again.before.startswith("# mine")


def test_lock_reports_a_digest_of_the_recipe_and_checks_it_only_with_lock_verify(folder: Path) -> None:
    with serving(registry_response) as (images, requests), serving(hub_response) as (models, _):
        lines = run(folder, images, models, limit=("spark2",)).lines
        assert requests == []
        with pytest.raises(RefusedError, match="is for linux/amd64 — expected: linux/arm64"):
            run(folder, images, models, limit=("spark2",), verify=True)
    assert lines == (
        "recipe closed pins image images.test/owner/engine:nightly-1 itself, "
        "not checked (-e lock_verify=true checks it)",
        f"manifest owner/Model@{COMMIT}: new, {MANIFEST.sha256}",
    )


PLACED = [
    {"name": "one", "recipe": "closed", "hosts": ["spark1"]},
    {"name": "two", "recipe": "open", "hosts": ["spark1"], "active": False},
]


def test_lock_asks_no_registry_for_an_inactive_deployment(folder: Path) -> None:
    with loopback.refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        done = run(folder, url, url, deployments=PLACED)
    assert done.before == done.after
    assert done.lines[-1] == (
        "inactive deployment two: recipe open is not locked; before a switch: "
        "ansible-playbook lock.yml -e vllm_lock_recipes=open"
    )
    with serving(registry_response) as (images, _), serving(hub_response) as (models, _):
        (folder / "lock.yml").write_text(run(folder, images, models, recipes=("open",)).after)
        assert "inactive" not in " ".join(run(folder, images, models, deployments=PLACED).lines)


def test_lock_asks_nothing_where_nothing_is_open(folder: Path) -> None:
    with serving(registry_response) as (images, _), serving(hub_response) as (models, _):
        first = run(folder, images, models, open_only=True)
        assert first.after == run(folder, images, models).after != ""
        (folder / "lock.yml").write_text(first.after)
    with loopback.refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        for limit in ("spark1", "spark2", "spark3"):
            done = run(folder, url, url, limit=(limit,), open_only=True)
            assert (done.before, done.lines) == (done.after, ()), limit


def test_lock_records_the_manifest_of_a_pinned_recipe_where_several_sparks_share_the_model(folder: Path) -> None:
    pair = [{"name": "one", "recipe": "closed", "hosts": ["spark1", "spark2"]}]
    with serving(registry_response) as (images, _), serving(hub_response) as (models, _):
        alone = run(folder, images, models, deployments=pair, open_only=True)
        both = run(folder, images, models, deployments=pair, limit=("spark1", "spark2"), open_only=True)
    assert (alone.after, alone.lines) == ("", ())
    assert MANIFEST.sha256 in both.after
    (folder / "lock.yml").write_text(both.after)
    with loopback.refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        again = run(folder, url, url, deployments=pair, limit=("spark1", "spark2"), open_only=True)
    assert (again.before, again.lines) == (again.after, ())


def test_lock_runs_in_a_process_of_its_own(folder: Path) -> None:
    args = {
        **{"deployments": PLACED, "limit": ["spark1"], "recipes": ["open"], "recipe_folders": [str(folder)]},
        **{"accepted": [], "verify": False, "open_only": False, "token": "", "lock_file": str(folder / "lock.yml")},
        "second_registries": {},
    }
    lines: list[str] = []
    module = "vllm_spark.pinning.lock_verb"
    with loopback.refusing_port() as port, pytest.raises(RefusedError) as refused:
        own_process.run(module, {**args, "registries": {"images.test": f"http://127.0.0.1:{port}"}}, lines.append)
    assert refused.value.refusals[0].id == "registry-down"
    done = own_process.run(module, {**args, "recipes": ["closed"], "registries": {}}, lines.append)
    assert (done["before"], done["after"], lines) == ("", "", [])
    assert "pins image" in done["lines"][0]
    with serving(registry_response) as (images, _), serving(hub_response) as (models, asked):
        request = {**args, "registries": {"images.test": images}}
        done = own_process.run(module, request, lines.append, {"HF_ENDPOINT": models})
    assert asked, "the library of the hub reads its variables when it is imported"
    assert f"{models.rpartition('//')[2]}, " in done["after"]


def test_a_process_that_ends_without_a_result_is_reported() -> None:
    with pytest.raises(OSError, match=r"python -m vllm_spark\.absent ended with status 1: .*No module named"):
        own_process.run("vllm_spark.absent", {}, print)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"limit": ("spark3",)}, "no deployment names spark3"),
        ({"recipes": ("opne",)}, "Fix: name 'open'"),
        ({"accepted": ("owner/Modle",)}, "lock_accept names owner/Modle"),
    ],
)
def test_lock_refuses_an_unknown_name(more: dict[str, object], message: str, folder: Path) -> None:
    with (
        serving(registry_response) as (images, _),
        serving(hub_response) as (models, _),
        pytest.raises(RefusedError, match=message),
    ):
        run(folder, images, models, **more)


def test_lock_resolves_named_recipes_without_a_deployment(folder: Path) -> None:
    with serving(registry_response) as (images, _), serving(hub_response) as (models, _):
        assert len(run(folder, images, models, limit=(), recipes=("open",)).lines) == 4


def test_the_file_is_unchanged_if_the_registry_is_down(folder: Path) -> None:
    with serving(hub_response) as (models, _), loopback.refusing_port() as port:
        (folder / "lock.yml").write_text("images: {}\n")
        with pytest.raises(RefusedError, match="does not answer"):
            run(folder, f"http://127.0.0.1:{port}", models)
    assert (folder / "lock.yml").read_text() == "images: {}\n"
