"""The files of the model and its drafter, and the mounted files that come from the model's folder."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.refusal import Fix
from vllm_spark.core.types import Document
from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory.spec import Spec, mount_source
from vllm_spark.recipe import hub_cache


def model_folders(spec: Spec) -> list[str]:
    """Return the snapshot folders that the engine reads: the model's, then the drafter's."""
    return [folder for folder, _ in _snapshots(spec)]


def folders_of_the_engine(spec: Spec) -> list[str]:
    """Return the snapshot folders that an engine reads which is not root; none for an open engine, which is root."""
    return [] if spec.open else model_folders(spec)


def checksummed_files(spec: Spec) -> list[str]:
    """Return the paths of the mounted files of the model, whose sha256 the recipe names."""
    return [mount_source(spec, mount) for mount in _model_mounts(spec)]


@check(
    "no-model",
    runbook="model-missing",
    severity="refusal",
    needs=("paths",),
    what="{folder} does not exist or is empty",
    expected="the model's files at its pinned commit",
    fix=Fix(
        "ansible-playbook pull.yml -l {hosts}",
        "Or on {host}: `sudo docker run --rm --network host --entrypoint hf --env HF_HUB_DISABLE_SHARED_BLOBS=1 -v "
        "{hub_dir}:/hub {image} download {source} --cache-dir /hub`. Or set vllm_hub_dir to the folder that has them.",
    ),
)
def no_model(context: HostContext) -> Iterator[Observation]:
    spec = context.spec
    for folder, source in _snapshots(spec):
        if not context.facts["paths"].get(folder):
            yield Observation(
                {
                    "folder": folder,
                    "hosts": ",".join(spec.deployment.hosts),
                    "source": f"{source['repository']} --revision {source['revision']}",
                    "hub_dir": spec.site.hub_dir,
                    "image": spec.source,
                }
            )


@check(
    "model-unreadable",
    runbook="model-missing",
    severity="refusal",
    needs=("unreadable",),
    what="{path} cannot be read by every user",
    expected="files that the engine can read, which is not root while vllm_edge is closed",
    fix="on {host}: `sudo chmod --recursive o+rX {repository}`.",
)
def model_unreadable(context: HostContext) -> Iterator[Observation]:
    unreadable = context.facts.get("unreadable") or {}
    for folder in folders_of_the_engine(context.spec):
        if path := unreadable.get(folder):
            yield Observation({"path": path, "repository": folder.rpartition("/snapshots/")[0]})


@check(
    "model-outside",
    runbook="model-missing",
    severity="refusal",
    needs=("outside",),
    what="{file} leads out of the model's folder",
    expected="files in the model's folder, which alone the engine gets",
    fix=Fix("ansible-playbook pull.yml -l {hosts}", "It adopts them without a download."),
)
def model_outside(context: HostContext) -> Iterator[Observation]:
    outside = context.facts.get("outside") or {}
    for folder in model_folders(context.spec):
        if file := outside.get(folder):
            yield Observation({"file": file, "hosts": ",".join(context.spec.deployment.hosts)})


@check(
    "wrong-checksum",
    runbook="model-missing",
    severity="refusal",
    needs=("checksums",),
    what="{file} has sha256 {actual}",
    expected="{sha256}, with which recipe {recipe} was tested",
    fix="fetch the file again at the pinned commit; if it changed on purpose, review the recipe.",
)
def wrong_checksum(context: HostContext) -> Iterator[Observation]:
    for mount in _model_mounts(context.spec):
        file = mount_source(context.spec, mount)
        actual = context.facts["checksums"].get(file)
        if actual != mount["sha256"]:
            yield Observation(
                {
                    "file": file,
                    "actual": actual or "none: it does not exist",
                    "sha256": mount["sha256"],
                    "recipe": context.spec.recipe["name"],
                }
            )


def _snapshots(spec: Spec) -> list[tuple[str, Document]]:
    """Return (snapshot folder, model or drafter) of each."""
    sources = [spec.recipe["model"], spec.recipe.get("drafter")]
    return [(hub_cache.snapshot(spec.site.hub_dir, source), source) for source in sources if source]


def _model_mounts(spec: Spec) -> list[Document]:
    return [mount for mount in spec.recipe.get("mounts", []) if mount["from"] == "model"]
