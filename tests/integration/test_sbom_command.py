"""`vllm-spark sbom` as an owner types it, judged by the published schema of CycloneDX 1.6."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry, Resource

from cached_folder import AS_LISTED, cached_folder, pip
from vllm_spark.core import paths

# The schemas are in the package of OWASP's own library. It is not imported, so its dependencies are not needed.
LIBRARY = (
    "cyclonedx-python-lib==11.12.0 --hash=sha256:0e807521a921a5c3cb8ce1153f8a61d29eedfe76a46aac2796b7c6b573391a54\n"
)
SCHEMAS = ("bom-1.6", "spdx", "jsf-0.82")


@pytest.fixture(scope="module")
def validator() -> Any:
    """A validator of CycloneDX 1.6."""

    def fill(folder: Path) -> None:
        listed = folder / "requirements.txt"
        listed.write_text(LIBRARY, encoding="utf-8")
        pip("install", *AS_LISTED, "--no-compile", "--target", str(folder), "--require-hashes", "-r", str(listed))

    folder = cached_folder(paths.ROOT / ".cache" / "cyclonedx", "schema", LIBRARY, fill) / "cyclonedx/schema/_res"
    texts = [(folder / f"{name}.SNAPSHOT.schema.json").read_text(encoding="utf-8") for name in SCHEMAS]
    resources = [Resource.from_contents(json.loads(text)) for text in texts]
    registry: Registry[Any] = Registry().with_resources((resource.id() or "", resource) for resource in resources)
    return jsonschema.Draft7Validator(resources[0].contents, registry=registry)


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "vllm_spark.cli.main", "sbom", *words]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.online
def test_the_document_of_a_site_is_valid(validator: Any, tmp_path: Path) -> None:
    done = run("out.json", "-i", str(paths.ROOT / "inventories" / "minimal"), folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(document)] == []
    kinds = {component["type"] for component in document["components"]}
    assert {"library", "container", "machine-learning-model"} <= kinds
    assert str(tmp_path / "out.json") in done.stdout


@pytest.mark.online
@pytest.mark.parametrize(
    "fault", [{"specVersion": 1}, {"components": [{"type": "image", "name": "x"}]}, {"serialNumber": "1"}]
)
def test_the_validator_finds_a_fault(validator: Any, fault: Mapping[str, Any]) -> None:
    """The check above can fail."""
    sound = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    assert list(validator.iter_errors(sound)) == []
    assert list(validator.iter_errors({**sound, **fault}))


def test_no_inventory_is_refused(tmp_path: Path) -> None:
    done = run("-i", str(tmp_path / "nowhere"), folder=tmp_path)
    assert done.returncode != 0
    assert "there is no inventory at" in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_inventory_without_sparks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"others": {"hosts": {"one": {}}}}), encoding="utf-8")
    done = run("-i", str(tmp_path / "hosts.yml"), folder=tmp_path)
    assert done.returncode == 1
    assert "has no host of the group sparks" in done.stderr
    assert not (tmp_path / "sbom.cdx.json").exists()
