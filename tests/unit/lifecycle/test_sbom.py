"""The bill of materials: every component once, with its hash, and what is refused or left out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from fakes.fake_ansible import FakeRun
from project_files import RECIPE_FOLDERS
from vllm_spark.cli import main
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.lifecycle import sbom
from vllm_spark.lifecycle.sbom import packages

LOCK_TEXT = (paths.ROOT / "requirements.lock").read_text(encoding="utf-8")
SMALL = f"""\
# a comment
One_Two==1.5 ; sys_platform != 'win32' \\
    --hash=sha256:{"1" * 64} \\
    --hash=sha256:{"2" * 64}
    # via three
three[extra]==3 \\
    --hash=sha256:{"3" * 64}
"""
DEMO = {"name": "demo", "recipe": "everything", "hosts": ["spark1"]}
PAIR = {"name": "pair", "recipe": "two-sparks", "hosts": ["spark1", "spark2"], "active": False}
OPEN_RECIPE = "open-tag"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a recipe that pins neither its image nor its model."""
    recipe = yaml.safe_load((RECIPE_FOLDERS[0] / "everything.yml").read_text(encoding="utf-8"))
    del recipe["image"]["digest"], recipe["image"]["seen"], recipe["model"]["revision"], recipe["mounts"]
    (tmp_path / f"{OPEN_RECIPE}.yml").write_text(yaml.safe_dump({**recipe, "name": OPEN_RECIPE}), encoding="utf-8")
    return tmp_path


def contents(*deployments: Mapping[str, Any], folder: Path = Path("none"), requirements: str = SMALL) -> sbom.Contents:
    site = {
        "deployments": list(deployments),
        "limit": ["spark1", "spark2"],
        "recipe_folders": [folder, *RECIPE_FOLDERS],
        "lock_file": folder / "lock.yml",
    }
    return sbom.contents(site, requirements)


def test_every_package_of_the_lock_is_listed_with_its_hashes() -> None:
    found = list(packages(LOCK_TEXT))
    pins = [line for line in LOCK_TEXT.splitlines() if "==" in line and not line.startswith((" ", "#"))]
    assert [f"{one['name']}=={one['version']}" for one in found] == [pin.split()[0] for pin in pins]
    hashes = [file["content"] for one in found for file in one["externalReferences"][0]["hashes"]]
    assert len(hashes) == LOCK_TEXT.count("--hash=sha256:")


def test_a_package_has_its_marker_and_a_normal_name_in_its_address() -> None:
    one, three = packages(SMALL)
    assert (one["name"], one["purl"]) == ("One_Two", "pkg:pypi/one-two@1.5")
    assert one["properties"] == [{"name": "vllm-spark:only-if", "value": "sys_platform != 'win32'"}]
    assert "properties" not in three


def test_images_models_and_files_are_listed_by_their_pins() -> None:
    found = contents(DEMO, PAIR).components
    image = next(one for one in found.values() if one["type"] == "container")
    assert image["purl"] == (f"pkg:oci/engine@sha256%3A{'1' * 64}?repository_url=ghcr.io/owner/engine&tag=nightly-1")
    assert image["hashes"] == [{"alg": "SHA-256", "content": "1" * 64}]
    models = {one["name"]: one["version"] for one in found.values() if one["type"] == "machine-learning-model"}
    assert models.items() >= {"owner/Model": "a" * 40, "owner/Model-assistant": "b" * 40}.items()
    assert {one["name"] for one in found.values() if one["type"] == "file"} >= {"gemma4_patched.py"}
    used = [one["value"] for one in image["properties"]]
    assert "demo on spark1, active" in used


def test_the_wheels_of_a_derived_image_are_listed_with_their_hashes(folder: Path) -> None:
    recipe = yaml.safe_load((RECIPE_FOLDERS[0] / "everything.yml").read_text(encoding="utf-8"))
    lines = [
        f"attrs==26.1.0 --hash=sha256:{'7' * 64}",
        f"ray==2.55.1 --hash=sha256:{'8' * 64} --hash=sha256:{'9' * 64}",
    ]
    recipe["image"]["derive"] = {"pip": ["Ray[cgraph]==2.55.1"], "wheels": lines}
    (folder / "derived.yml").write_text(yaml.safe_dump({**recipe, "name": "derived", "mounts": []}), encoding="utf-8")
    found = contents({**DEMO, "recipe": "derived"}, folder=folder).components
    attrs, ray = (found[f"image:pkg:pypi/{name}"] for name in ("attrs@26.1.0", "ray@2.55.1"))
    assert [one["content"] for one in ray["hashes"]] == ["8" * 64, "9" * 64]
    assert attrs["properties"][0] == {"name": "vllm-spark:only-if", "value": "the base image lacks it"}
    assert [one["name"] for one in ray["properties"]] == ["vllm-spark:deployment"]


def test_a_component_of_two_deployments_is_listed_once() -> None:
    both = contents(DEMO, {**DEMO, "name": "twin", "hosts": ["spark2"]}).components
    assert list(both) == list(contents(DEMO).components)
    assert [one["value"] for one in both["pkg:huggingface/owner/Model@" + "a" * 40]["properties"]] == [
        "demo on spark1, active",
        "twin on spark2, active",
    ]


def test_an_active_deployment_that_is_not_locked_is_refused(folder: Path) -> None:
    with pytest.raises(RefusedError) as refused:
        contents({**DEMO, "recipe": OPEN_RECIPE}, folder=folder)
    assert [refusal.id for refusal in refused.value.refusals] == ["not-locked", "model-not-locked"]
    assert all("ansible-playbook lock.yml" in str(refusal) for refusal in refused.value.refusals)


def test_an_inactive_deployment_that_is_not_locked_is_left_out_and_named(folder: Path) -> None:
    found = contents(DEMO, {**DEMO, "name": "later", "recipe": OPEN_RECIPE, "active": False}, folder=folder)
    assert found.notes == ("inactive deployment later is left out: recipe open-tag is not locked",)
    assert list(found.components) == list(contents(DEMO).components)


def test_what_the_lock_file_pins_is_listed(folder: Path) -> None:
    lock = {
        "images": {"ghcr.io/owner/engine:nightly-1": {"digest": f"sha256:{'8' * 64}"}},
        "models": {"owner/Model": {"revision": "9" * 40, "manifest": "7" * 64}},
    }
    (folder / "lock.yml").write_text(yaml.safe_dump(lock), encoding="utf-8")
    found = contents({**DEMO, "recipe": OPEN_RECIPE}, folder=folder).components
    model = found[f"pkg:huggingface/owner/Model@{'9' * 40}"]
    assert model["properties"][0] == {"name": "vllm-spark:manifest-sha256", "value": "7" * 64}
    assert any(one["version"] == f"sha256:{'8' * 64}" for one in found.values() if one["type"] == "container")


@pytest.mark.parametrize(
    ("deployments", "expected"),
    [
        ([], "sbom-nothing-runs"),
        ([{**DEMO, "hosts": ["spark9"]}], "sbom-nothing-runs"),
        ([{**DEMO, "recipe": "no-such-recipe"}], "unknown-recipe"),
        ([{"name": "demo"}], "bad-deployments"),
        ([{**DEMO, "active": False, "overrides": {"gates": {"ready": {}}}}], "bad-deployments"),
        ([{**PAIR, "overrides": {"drafter": {"speculative_tokens": 3}}}], "no-drafter"),
    ],
)
def test_a_site_without_an_answer_is_refused(deployments: list[dict[str, Any]], expected: str) -> None:
    with pytest.raises(RefusedError) as refused:
        contents(*deployments)
    assert {refusal.id for refusal in refused.value.refusals} == {expected}


def test_the_serial_number_follows_from_the_components() -> None:
    one, same, other = (
        sbom.document(contents(*deployments).components, "1", AT) for deployments in ([DEMO], [DEMO], [DEMO, PAIR])
    )
    assert one == same
    assert one["serialNumber"] != other["serialNumber"]
    assert one["metadata"]["timestamp"] == "2026-01-02T03:04:05Z"
    assert one["dependencies"][0]["dependsOn"] == [component["bom-ref"] for component in one["components"]]


@pytest.mark.parametrize("check_mode", [False, True])
def test_the_action_writes_the_document(check_mode: bool, tmp_path: Path) -> None:
    file = tmp_path / "sbom.json"
    run = FakeRun(check_mode=check_mode)
    folders = [str(folder) for folder in RECIPE_FOLDERS]
    args = {"deployments": [DEMO], "limit": ["spark1"], "recipe_folders": folders, "lock_file": "none.yml"}
    run.act("vllm_sbom", file=str(file), **args)
    assert run.lines[-1].startswith(f"{file}: ")
    assert run.lines[-1].endswith("packages, 1 images, 2 models, 2 files")
    assert file.exists() is not check_mode
    if file.exists():
        assert json.loads(file.read_text(encoding="utf-8"))["specVersion"] == "1.6"


@pytest.mark.parametrize(("written", "status"), [(True, 0), (False, 1)])
def test_the_command_refuses_an_inventory_without_sparks(
    written: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ansible-playbook ends with 0 if no host matches."""
    file = tmp_path / "sbom.json"

    def run(argv: list[str], **_: object) -> SimpleNamespace:
        assert argv[1:-1] == ["-i", "inventories/home", "-e", f"sbom_file={file}"]
        if written:
            file.write_text("{}", encoding="utf-8")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    assert main.main(["sbom", str(file), "-i", "inventories/home"]) == status
    assert ("was not written" in capsys.readouterr().err) is not written


def test_the_status_of_the_playbook_is_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=4))
    assert main.main(["sbom", str(tmp_path / "sbom.json")]) == 4
