"""Pins of the lock file: the references of recipes, their resolution by `lock`, and entries that moved."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.pinning import resolution
from vllm_spark.pinning.resolution import Resolution
from vllm_spark.recipe import lockfile
from vllm_spark.recipe.lockfile import Lock, UnpinnedRef

OLD, NEW = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
COMMIT, LATER = "a" * 40, "b" * 40
FILE, SUM = "c" * 64, "e" * 64
WHEELS = f"attrs==26.1.0 --hash=sha256:{FILE}\nray==2.55.1 --hash=sha256:{SUM}"

DOCUMENT: dict[str, Any] = {
    "name": "demo",
    "image": {"repository": "ghcr.io/owner/engine", "tag": "v1"},
    "model": {"repository": "owner/Model"},
    "drafter": {"repository": "owner/Drafter", "revision": COMMIT},
    "mounts": [
        {"from": "model", "path": "patched.py", "target": "/x"},
        {"from": "toolkit", "path": "files/x", "target": "/y", "sha256": FILE},
    ],
}
IMAGE, MODEL = "ghcr.io/owner/engine:v1", "owner/Model"
PINNED: dict[str, Any] = {
    **DOCUMENT,
    "image": {**DOCUMENT["image"], "digest": OLD},
    "model": {"repository": MODEL, "revision": COMMIT},
    "mounts": [],
}
FULL = Lock(
    {IMAGE: {"digest": OLD, "platform": "linux/arm64", "seen": "ghcr.io, 2026-01-01"}},
    {
        MODEL: {"revision": COMMIT, "seen": "hub, 2026-01-01", "files": {"patched.py": FILE}, "manifest": SUM},
        f"owner/Drafter@{COMMIT}": {"seen": "hub, 2026-01-01", "manifest": SUM},
    },
)


class FakeSource:
    """A PinSource with fixed answers that records its requests."""

    def __init__(self, image: str = OLD, revision: str = COMMIT, down: tuple[str, ...] = ()) -> None:
        self.answers = {
            "image": image,
            "revision": revision,
            "file": FILE,
            "manifest": SUM,
            "packages": WHEELS,
            "confirmed": "",
        }
        self.down = down
        self.requests: list[str] = []

    def _answer(self, kind: str, name: str, platform: str = "") -> Resolution:
        self.requests.append(f"{kind} {name}")
        if kind in self.down:
            raise RefusedError([Refusal(f"{kind}-down", f"{name} is down", "an answer", "wait.", "image-registry")])
        return Resolution(self.answers[kind], "somewhere", platform)

    def image(self, key: str, platforms: tuple[str, ...]) -> Resolution:
        return self._answer("image", key, platforms[0])

    def confirmed(self, key: str, answer: Resolution) -> Resolution:
        self._answer("confirmed", key)
        return replace(answer, origin="somewhere and elsewhere", note=" (twice)")

    def revision(self, repository: str) -> Resolution:
        return self._answer("revision", repository)

    def file(self, repository: str, revision: str, path: str) -> Resolution:
        return self._answer("file", f"{repository}@{revision}/{path}")

    def manifest(self, repository: str, revision: str) -> Resolution:
        return self._answer("manifest", f"{repository}@{revision}")

    def packages(self, pins: tuple[str, ...], python: str, platforms: tuple[str, ...]) -> Resolution:
        return self._answer("packages", f"{' '.join(pins)} {python} {' '.join(platforms)}")


def resolved(
    old: Lock, source: FakeSource, accepted: tuple[str, ...] = (), document: dict[str, Any] = DOCUMENT
) -> tuple[Lock, list[str]]:
    new, changes = resolution.resolve([document], old, source, accepted, "2026-11-21")
    return new, [change.line() for change in changes]


# name -> (lock, the missing pins)
MISSING = {
    "an empty lock": (Lock(), ["image ghcr.io/owner/engine:v1 has no digest", "model owner/Model has no revision",
                               "file patched.py of owner/Model has no sha256"]),
    "everything": (FULL, []),
    "a digest cut short": (
        Lock({IMAGE: {"digest": OLD[:20]}}, FULL.models),
        [f"image ghcr.io/owner/engine:v1 has the digest {OLD[:20]}"],
    ),
    "a branch": (Lock(FULL.images, {MODEL: {"revision": "main", "files": {"patched.py": FILE}}}),
                 ["model owner/Model has the revision main"]),
    "another tag": (Lock({"ghcr.io/owner/engine:v2": {"digest": OLD}}, FULL.models),
                    ["image ghcr.io/owner/engine:v1 has no digest"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_missing_pins_are_reported(name: str) -> None:
    table, expected = MISSING[name]
    assert [str(pin) for pin in lockfile.missing_pins(DOCUMENT, table)] == expected


def test_a_pinned_recipe_has_no_missing_pins() -> None:
    assert lockfile.missing_pins(PINNED, Lock()) == []
    assert lockfile.pinned(PINNED, FULL) == PINNED


def test_a_drafter_is_locked_like_a_model() -> None:
    document = {**PINNED, "drafter": {"repository": "owner/Drafter"}}
    assert [str(pin) for pin in lockfile.missing_pins(document, Lock())] == ["model owner/Drafter has no revision"]
    new, _ = resolved(Lock(), FakeSource(), document=document)
    assert lockfile.pinned(document, new)["drafter"]["revision"] == COMMIT


def test_pinned_adds_the_pins_of_the_lock_and_nothing_else() -> None:
    before = copy.deepcopy(DOCUMENT)
    filled = lockfile.pinned(DOCUMENT, FULL)
    assert filled["image"]["digest"] == OLD
    assert filled["model"]["revision"] == COMMIT
    assert [mount["sha256"] for mount in filled["mounts"]] == [FILE, FILE]
    assert before == DOCUMENT
    assert lockfile.missing_pins(filled, Lock()) == []


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("images", "Fix: ansible-playbook lock.yml. See docs/runbooks/image-not-locked.md"),
        ("models", "recipe demo: model owner/Model has no revision"),
        ("models", "recipe demo: file patched.py of owner/Model has no sha256"),
    ],
)
def test_a_missing_pin_is_refused(without: str, message: str) -> None:
    table = Lock(**{"images": FULL.images, "models": FULL.models, without: {}})
    assert message in "\n".join(str(refusal) for refusal in lockfile.refusals(DOCUMENT, table))


def test_new_entries_are_added() -> None:
    new, lines = resolved(Lock(), FakeSource())
    seen = "somewhere and elsewhere, 2026-11-21"
    assert new.images[IMAGE] == {"digest": OLD, "platform": "linux/arm64", "seen": seen}
    assert new.models[MODEL]["revision"] == COMMIT
    assert new.models[MODEL]["files"] == {"patched.py": FILE}
    assert lines[0] == f"image {IMAGE}: new, {OLD} (twice)"
    assert lockfile.missing_pins(DOCUMENT, new) == []


def test_entries_that_have_not_moved_stay() -> None:
    source = FakeSource()
    new, lines = resolved(FULL, source)
    assert new == FULL
    assert source.requests == [f"image {IMAGE}", f"revision {MODEL}"], "a commit's file does not change"
    assert lines == [
        f"image {IMAGE}: {OLD}",
        f"manifest owner/Drafter@{COMMIT}: {SUM}",
        f"model {MODEL}: {COMMIT}",
        f"file patched.py of {MODEL}: {FILE}",
        f"manifest {MODEL}: {SUM}",
    ]


# accepted keys -> (digest, revision) in the lock after both have moved
MOVED = {
    (): (OLD, COMMIT),
    (IMAGE,): (NEW, COMMIT),
    (MODEL,): (OLD, LATER),
    (IMAGE, MODEL): (NEW, LATER),
    ("all",): (NEW, LATER),
}


@pytest.mark.parametrize("accepted", MOVED, ids=lambda names: "+".join(names) or "nothing")
def test_a_moved_entry_is_reported_and_changes_only_if_accepted(accepted: tuple[str, ...]) -> None:
    new, lines = resolved(FULL, FakeSource(NEW, LATER), accepted)
    assert (new.images[IMAGE]["digest"], new.models[MODEL]["revision"]) == MOVED[accepted]
    assert OLD in lines[0]
    assert NEW in lines[0]
    assert (f"-e lock_accept={IMAGE}" in lines[0]) is (new.images[IMAGE]["digest"] == OLD)


# accepted keys -> whether a second registry is asked about a tag that has moved
CONFIRMED = {(): False, (IMAGE,): True, ("all",): True, (MODEL,): False}


@pytest.mark.parametrize("accepted", CONFIRMED, ids=lambda names: "+".join(names) or "nothing")
def test_a_digest_is_confirmed_before_it_is_written(accepted: tuple[str, ...]) -> None:
    source = FakeSource(NEW, LATER)
    resolved(FULL, source, accepted)
    assert (f"confirmed {IMAGE}" in source.requests) is CONFIRMED[accepted]
    with pytest.raises(RefusedError):
        resolved(Lock(), FakeSource(down=("confirmed",)))


def test_a_new_commit_replaces_the_checksums_of_its_files() -> None:
    source = FakeSource(OLD, LATER)
    source.answers["file"] = "d" * 64
    assert resolved(FULL, source)[0] == FULL, "the old commit stays, and so does its file"
    accepted, _ = resolved(FULL, source, (MODEL,))
    assert accepted.models[MODEL]["files"] == {"patched.py": "d" * 64}
    assert source.requests[-2:] == [f"file {MODEL}@{LATER}/patched.py", f"manifest {MODEL}@{LATER}"]


def test_a_file_of_a_pinned_commit_has_its_own_entry() -> None:
    document = {**DOCUMENT, "model": {"repository": MODEL, "revision": LATER}}
    new, _ = resolved(FULL, FakeSource(), document=document)
    assert new.models[MODEL] == FULL.models[MODEL]
    assert new.models[f"{MODEL}@{LATER}"]["files"] == {"patched.py": FILE}
    assert lockfile.missing_pins(document, new) == []


def test_a_manifest_is_recorded_for_the_commit_of_the_lock_or_of_the_recipe() -> None:
    new, _ = resolved(Lock(), FakeSource())
    assert new.models[MODEL]["manifest"] == new.models[f"owner/Drafter@{COMMIT}"]["manifest"] == SUM
    filled = lockfile.pinned(DOCUMENT, new)
    known = {f"{MODEL}@{COMMIT}": SUM, f"owner/Drafter@{COMMIT}": SUM}
    assert lockfile.manifests(DOCUMENT, filled, new) == known
    assert lockfile.manifests(DOCUMENT, filled, Lock()) == {}


def test_a_manifest_that_the_hub_does_not_give_refuses_nothing() -> None:
    new, lines = resolved(Lock(), FakeSource(down=("manifest",)))
    assert lockfile.missing_pins(DOCUMENT, new) == []
    assert "manifest" not in new.models[MODEL]
    expected = f"manifest {MODEL}: not recorded, so a pull compares nothing with it: {MODEL}@{COMMIT} is down"
    assert lines[-1] == expected


def test_every_fault_is_reported_at_once() -> None:
    with pytest.raises(RefusedError) as refused:
        resolved(Lock(), FakeSource(down=("image", "revision")), ("nonsense",))
    assert [refusal.id for refusal in refused.value.refusals] == ["unknown-accept", "image-down", "revision-down"]


def test_equal_locks_have_equal_text_that_reads_back(tmp_path: Path) -> None:
    first, second = (
        Lock({"b:1": {"digest": NEW}, "a:1": {"digest": OLD}}),
        Lock({"a:1": {"digest": OLD}, "b:1": {"digest": NEW}}),
    )
    assert lockfile.text(first) == lockfile.text(second)
    file = tmp_path / "lock.yml"
    file.write_text(lockfile.text(FULL))
    assert lockfile.read(file) == FULL


def test_unknown_keys_stay(tmp_path: Path) -> None:
    file = tmp_path / "lock.yml"
    file.write_text(yaml.safe_dump({"images": {IMAGE: {"digest": OLD, "note": "by hand"}}}))
    new, _ = resolved(lockfile.read(file), FakeSource())
    assert new.images[IMAGE] == {"digest": OLD, "note": "by hand"}


def with_packages(*pins: str, **derive: Any) -> dict[str, Any]:
    """Return PINNED with packages in its image."""
    return {**PINNED, "image": {**PINNED["image"], "derive": {"pip": list(pins), **derive}}}


RAY = with_packages("ray==2.55.1")
RAY_KEY = "ray==2.55.1 for Python 3.12 on linux/arm64"


def test_packages_are_locked_with_the_hashes_of_all_wheels(tmp_path: Path) -> None:
    file = tmp_path / "lock.yml"
    # A lock file of a toolkit that knew no packages.
    file.write_text(yaml.safe_dump({"images": dict(FULL.images), "models": dict(FULL.models)}))
    (refusal,) = lockfile.refusals(RAY, lockfile.read(file))
    assert (refusal.id, refusal.command) == ("packages-not-locked", "ansible-playbook lock.yml")
    assert f"packages {RAY_KEY} has no hashes" in refusal.what
    source = FakeSource()
    new, lines = resolved(lockfile.read(file), source, document=RAY)
    assert "packages ray==2.55.1 3.12 linux/arm64" in source.requests
    assert lines[0] == f"packages {RAY_KEY}: new, 2 wheels"
    file.write_text(lockfile.text(new))
    assert lockfile.read(file) == new
    assert list(lockfile.refusals(RAY, new)) == []
    assert lockfile.pinned(RAY, new)["image"]["derive"]["wheels"] == WHEELS.splitlines()
    # What is locked stays, and the index is not asked again.
    asked = len(source.requests)
    assert resolved(new, source, ("all",), RAY)[0] == new
    assert source.requests[asked:] == []


# document -> whether the lock of RAY is enough for it
OTHER_PACKAGES: dict[str, tuple[dict[str, Any], bool]] = {
    "the same": (RAY, True),
    "another version": (with_packages("ray==2.55.2"), False),
    "one more": (with_packages("ray==2.55.1", "attrs==26.1.0"), False),
    "another Python": (with_packages("ray==2.55.1", python="3.13"), False),
    "wheels of the recipe": (with_packages("ray==2.55.2", wheels=[f"ray==2.55.2 --hash=sha256:{SUM}"]), True),
    "wheels of other pins": (with_packages("ray==2.55.2", wheels=WHEELS.splitlines()), False),
}


@pytest.mark.parametrize("name", OTHER_PACKAGES)
def test_other_packages_need_other_hashes(name: str) -> None:
    document, enough = OTHER_PACKAGES[name]
    table = Lock(packages={RAY_KEY: {"wheels": WHEELS.splitlines()}})
    assert [refusal.id for refusal in lockfile.refusals(document, table)] == ([] if enough else ["packages-not-locked"])


BROKEN: dict[str, Callable[[], bytes]] = {
    "cut off": lambda: b"images: {unclosed",
    "a list": lambda: b"models: [a, b]",
    "files is a word": lambda: b"models: {owner/Model: {revision: x, files: word}}",
    "no text": lambda: b"\xff\xfe\x00",
    "a wheel without a hash": lambda: b'packages: {"ray==1 for Python 3.12 on linux/arm64": {wheels: [ray==1]}}',
    "no wheels": lambda: b'packages: {"ray==1 for Python 3.12 on linux/arm64": {}}',
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_lock_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    file = tmp_path / "lock.yml"
    file.write_bytes(BROKEN[name]())
    with pytest.raises(RefusedError, match=r"lock\.yml: .* Fix: correct"):
        lockfile.read(file)


def test_the_text_of_a_reference_names_the_file_and_its_repository() -> None:
    assert str(UnpinnedRef("file", MODEL, "patched.py")) == "file patched.py of owner/Model"
