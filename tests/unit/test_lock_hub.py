"""The hub's answers, of a stand-in for it behind huggingface_hub itself, and the verb `lock` over both stand-ins."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from conftest import DATA

import loopback
from fakes.fake_http import Reply, serving
from vllm_spark.core.refusal import RefusedError
from vllm_spark.pinning import lock_verb
from vllm_spark.pinning.hub import Hub
from vllm_spark.pinning.registry import Registry
from vllm_spark.recipe import loader, lockfile

COMMIT = "c0ffee" + "0" * 34
SMALL = b"# a program that the checkpoint ships\n"
LARGE = "d" * 64
RIGHT, WRONG = "hf_right", "hf_wrong"
DIGEST = f"sha256:{'5' * 64}"


def file(path: str, size: int, **more: object) -> dict[str, object]:
    """A file as the hub describes it."""
    return {"type": "file", "path": path, "size": size, "oid": "1" * 40, **more}


# As far as `lock` asks: a model's main branch, the files of a commit, and one file.
ANSWERS = {
    "/api/models/owner/Model/revision/main": Reply({"id": "owner/Model", "sha": COMMIT}),
    "/api/models/owner/gated/revision/main": Reply({}, status=403, headers={"X-Error-Code": "GatedRepo"}),
    "/api/models/owner/odd/revision/main": Reply({"error": "maintenance"}, status=418),
    f"/api/models/owner/Model/paths-info/{COMMIT}": Reply([file("patched.py", len(SMALL))]),
    f"/owner/Model/resolve/{COMMIT}/patched.py": Reply(SMALL, headers={"ETag": '"1"', "X-Repo-Commit": COMMIT}),
    f"/api/models/owner/Large/paths-info/{COMMIT}": Reply(
        [file("template.jinja", 20, lfs={"oid": LARGE, "size": 20, "pointerSize": 130})]
    ),
    f"/api/models/owner/Huge/paths-info/{COMMIT}": Reply([file("model.safetensors", 1 << 40)]),
    f"/api/models/owner/Empty/paths-info/{COMMIT}": Reply([]),
}


def hub(path: str, headers: Mapping[str, str]) -> Reply:
    if headers.get("Authorization") == f"Bearer {WRONG}":
        return Reply({"error": "Invalid credentials"}, status=401)
    unknown = Reply({"error": "Repository not found"}, status=404, headers={"X-Error-Code": "RepoNotFound"})
    return ANSWERS.get(path.partition("?")[0], unknown)


def test_the_branch_becomes_a_commit() -> None:
    with serving(hub) as (url, asked):
        answer = Hub(url, token=RIGHT).revision("owner/Model")
    assert answer.value == COMMIT
    assert answer.seen == url.removeprefix("http://")
    assert asked[0][1]["authorization"] == f"Bearer {RIGHT}"


def test_a_small_file_is_fetched_and_hashed() -> None:
    with serving(hub) as (url, asked):
        assert Hub(url).file("owner/Model", COMMIT, "patched.py").value == hashlib.sha256(SMALL).hexdigest()
    assert any("/resolve/" in path for path, _ in asked)


def test_a_file_that_the_hub_knows_by_sha256_is_not_fetched() -> None:
    with serving(hub) as (url, asked):
        assert Hub(url).file("owner/Large", COMMIT, "template.jinja").value == LARGE
    assert not any("/resolve/" in path for path, _ in asked)


# what is asked -> (id, a part of the message)
REFUSED = {
    "owner/nothing": ("hub-login", "owner/nothing does not exist, or is private"),
    "owner/gated": ("hub-login", "is gated"),
    "owner/odd": ("hub-down", "status 418"),
    "no name at all": ("hub-login", "is no name of a repository"),
}


@pytest.mark.parametrize("repository", REFUSED)
def test_everything_else_is_refused_with_its_reason(repository: str) -> None:
    with serving(hub) as (url, _), pytest.raises(RefusedError) as refused:
        Hub(url).revision(repository)
    (refusal,) = refused.value.refusals
    assert (refusal.id, REFUSED[repository][1] in str(refusal)) == (REFUSED[repository][0], True), str(refusal)


def test_a_wrong_token_is_refused() -> None:
    with serving(hub) as (url, _), pytest.raises(RefusedError, match="set HF_TOKEN"):
        Hub(url, token=WRONG).revision("owner/Model")


@pytest.mark.parametrize(
    ("repository", "path", "says"),
    [("owner/Empty", "none.py", "is no file there"), ("owner/Huge", "model.safetensors", "has 1099511627776 bytes")],
)
def test_a_file_that_cannot_be_mounted_is_refused(repository: str, path: str, says: str) -> None:
    with serving(hub) as (url, _), pytest.raises(RefusedError, match=says):
        Hub(url).file(repository, COMMIT, path)


def test_a_hub_that_is_down() -> None:
    with loopback.refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(RefusedError, match=rf"the hub at {url} does not answer: .* Fix: "):
            Hub(url).revision("owner/Model")


# --- the verb, over both


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of recipes: `open` leaves everything to the lock, `closed` pins its image."""
    document = yaml.safe_load((DATA / "recipes" / "everything.yml").read_text())
    del document["drafter"], document["image"]["digest"], document["model"]["revision"]
    document["image"]["repository"] = "images.test/owner/engine"
    document["mounts"] = [{**document["mounts"][0], "path": "patched.py"}]
    del document["mounts"][0]["sha256"]
    (tmp_path / "open.yml").write_text(yaml.safe_dump({**document, "name": "open"}))
    closed = {**document, "name": "closed", "mounts": [], "model": {**document["model"], "revision": COMMIT}}
    closed["image"] = {**document["image"], "digest": DIGEST}
    (tmp_path / "closed.yml").write_text(yaml.safe_dump(closed))
    return tmp_path


def index(path: str, headers: Mapping[str, str]) -> Reply:
    del headers
    if path.endswith(f"manifests/{DIGEST}"):
        return Reply({"manifests": [{"digest": DIGEST, "platform": {"os": "linux", "architecture": "amd64"}}]})
    return Reply({"manifests": [{"digest": DIGEST, "platform": {"os": "linux", "architecture": "arm64"}}]})


def run(folder: Path, registry_url: str, hub_url: str, **more: object) -> lock_verb.LockOutcome:
    deployments = [
        {"name": "one", "recipe": "open", "hosts": ["spark1"]},
        {"name": "two", "recipe": "closed", "hosts": ["spark2"], "active": False},
    ]
    given = {"deployments": deployments, "limit": ("spark1",), "recipe_folders": (folder,), **more}
    registry = Registry({"images.test": registry_url})
    source = lock_verb.RemoteSources(registry, Hub(hub_url))
    wanted = lock_verb.LockRequest(**given)  # type: ignore[arg-type]
    return lock_verb.run(wanted, folder / "lock.yml", source, lock_verb.verified(registry), "2026-11-21")


def test_lock_writes_what_the_limited_recipes_leave_open(folder: Path) -> None:
    with serving(index) as (images, _), serving(hub) as (models, _):
        first = run(folder, images, models)
        lockfile.write(folder / "lock.yml", first.after)
        second = run(folder, images, models)
    assert first.before == ""
    assert len(first.lines) == 3
    assert all(": new, " in line for line in first.lines)
    assert second.after == second.before == first.after
    document = loader.load("open", (folder,)).document
    assert lockfile.missing_pins(document, lockfile.read(folder / "lock.yml")) == []


def test_lock_leaves_a_file_of_the_same_entries_as_it_is(folder: Path) -> None:
    """Whoever wrote it, in whatever order and with whatever comments."""
    with serving(index) as (images, _), serving(hub) as (models, _):
        made = run(folder, images, models).after
        (folder / "lock.yml").write_text(f"# mine\n{made.removeprefix(lockfile.HEADER)}")
        again = run(folder, images, models)
    assert again.after == again.before
    assert again.before.startswith("# mine")


def test_lock_says_that_a_recipe_pins_its_image_and_asks_only_when_told_to(folder: Path) -> None:
    with serving(index) as (images, asked), serving(hub) as (models, _):
        said = run(folder, images, models, limit=("spark2",)).lines
        assert asked == []
        with pytest.raises(RefusedError, match="is for linux/amd64 — expected: linux/arm64"):
            run(folder, images, models, limit=("spark2",), verify=True)
    assert said == ("recipe closed pins image images.test/owner/engine:nightly-1 itself, "
                    "not asked for (-e lock_verify=true asks)",)  # fmt: skip


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"limit": ("spark3",)}, "no deployment names spark3"),
        ({"recipes": ("opne",)}, "Fix: name 'open'"),
        ({"accepted": ("owner/Modle",)}, "lock_accept names owner/Modle"),
    ],
)
def test_lock_refuses_what_it_cannot_mean(more: dict[str, object], says: str, folder: Path) -> None:
    with serving(index) as (images, _), serving(hub) as (models, _), pytest.raises(RefusedError, match=says):
        run(folder, images, models, **more)


def test_lock_names_recipes_that_nobody_has_deployed(folder: Path) -> None:
    with serving(index) as (images, _), serving(hub) as (models, _):
        assert len(run(folder, images, models, limit=(), recipes=("open",)).lines) == 3


def test_when_the_registry_is_down_the_file_is_as_it_was(folder: Path) -> None:
    with serving(hub) as (models, _), loopback.refusing_port() as port:
        (folder / "lock.yml").write_text("images: {}\n")
        with pytest.raises(RefusedError, match="does not answer"):
            run(folder, f"http://127.0.0.1:{port}", models)
    assert (folder / "lock.yml").read_text() == "images: {}\n"
