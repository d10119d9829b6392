"""Derived images: the inputs of their names, the build, and the hosts that build and receive them."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.cases import intents
from fakes.recorded_hosts import load, record
from project_files import DATA
from vllm_spark.core import ports
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import checks, images, launch, plan, ranks
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory import spec
from vllm_spark.inventory.spec import SiteSettings, Spec
from vllm_spark.recipe import derived_image, loader
from vllm_spark.transfer import messages

PATCH = "--- a/vllm/x.py\n+++ b/vllm/x.py\n@@ -1,2 +1,2 @@\n-a\n+b\n c\n"
FILES = {"patches/x.patch": PATCH}
DIGEST = f"sha256:{'1' * 64}"
OVERLAY = {"url": "https://example.org/o.tar.gz", "sha256": "3" * 64, "folder": "o-1/vllm", "why": "because of tests"}
ADDED = {"url": "https://example.org/v.txt", "sha256": "5" * 64, "path": "/usr/local/share/v.txt", "why": "of tests"}
WHEELS = [f"{pin} --hash=sha256:{'7' * 64}" for pin in ("numpy==2.4.6", "ray==2.55.1", "transformers==5.14.1")]
DOCUMENT: dict[str, Any] = {
    "name": "demo",
    "image": {
        "repository": "ghcr.io/owner/engine",
        "tag": "v1",
        "digest": DIGEST,
        "derive": {
            "pip": ["ray[cgraph]==2.55.1", "transformers==5.14.1"],
            "wheels": WHEELS,
            "overlay": OVERLAY,
            "files": [ADDED],
        },
    },
    "patches": [{"path": "patches/x.patch", "sha256": "2" * 64, "why": "because of tests"}],
}


def derived(document: Mapping[str, Any] = DOCUMENT, files: Mapping[str, str] = FILES) -> derived_image.DerivedImage:
    image = derived_image.derived_image(document, files)
    assert image is not None
    return image


def put(place: str, value: Any) -> dict[str, Any]:
    """Return DOCUMENT with one value changed, or deleted if it is None."""
    document: Any = copy.deepcopy(DOCUMENT)
    *folders, key = place.split(".")
    inner = document
    for folder in folders:
        inner = inner[folder]
    if value is None:
        del inner[key]
    else:
        inner[key] = value
    return document  # type: ignore[no-any-return]


def test_a_recipe_without_additions_has_no_derived_image() -> None:
    plain = {**DOCUMENT, "image": {key: value for key, value in DOCUMENT["image"].items() if key != "derive"}}
    assert derived_image.derived_image({**plain, "patches": []}, {}) is None
    assert derived_image.derived_image({key: value for key, value in plain.items() if key != "patches"}, {}) is None
    assert derived_image.derived_image(plain, FILES) is not None, "patches alone need a derived image"


def test_the_name_contains_the_recipe_and_the_hash_of_the_inputs() -> None:
    image = derived()
    assert image.image == f"127.0.0.1:25093/derived/demo:{image.inputs[:12]}"
    assert len(image.inputs) == 64
    assert derived(copy.deepcopy(DOCUMENT)).inputs == image.inputs


CHANGES: dict[str, tuple[dict[str, Any], Mapping[str, str]]] = {
    "base": (put("image.digest", f"sha256:{'9' * 64}"), FILES),
    "pin": (put("image.derive.pip", ["ray[cgraph]==2.55.0", "transformers==5.14.1"]), FILES),
    "one pin less": (put("image.derive.pip", ["transformers==5.14.1"]), FILES),
    "no pin": (put("image.derive.pip", None), FILES),
    "a wheel's checksum": (put("image.derive.wheels", [line.replace("7", "8") for line in WHEELS]), FILES),
    "one wheel less": (put("image.derive.wheels", WHEELS[1:]), FILES),
    "Python": (put("image.derive.python", "3.13"), FILES),
    "overlay's checksum": (put("image.derive.overlay", {**OVERLAY, "sha256": "4" * 64}), FILES),
    "overlay's url": (put("image.derive.overlay", {**OVERLAY, "url": "https://example.org/p.tar.gz"}), FILES),
    "overlay's folder": (put("image.derive.overlay", {**OVERLAY, "folder": "o-2/vllm"}), FILES),
    "no overlay": (put("image.derive.overlay", None), FILES),
    "file's checksum": (put("image.derive.files", [{**ADDED, "sha256": "6" * 64}]), FILES),
    "file's path": (put("image.derive.files", [{**ADDED, "path": "/usr/local/share/w.txt"}]), FILES),
    "no file": (put("image.derive.files", None), FILES),
    "patch's text": (DOCUMENT, {"patches/x.patch": PATCH.replace("+b", "+B")}),
    "order of patches": (
        put("patches", [{"path": "patches/y.patch"}, {"path": "patches/x.patch"}]),
        {**FILES, "patches/y.patch": PATCH},
    ),
    "no patch": (put("patches", None), {}),
}


def test_a_change_of_any_input_changes_the_name() -> None:
    names = {name: derived(*change).image for name, change in CHANGES.items()}
    assert len({*names.values(), derived().image}) == len(CHANGES) + 1, names


SAME = {
    "tag": put("image.tag", "v2"),
    "why of the overlay": put("image.derive.overlay", {**OVERLAY, "why": "another reason"}),
    # A mirror has the same bytes.
    "url of a file": put("image.derive.files", [{**ADDED, "url": "https://example.com/v.txt"}]),
    "why of a patch": put("patches", [{**DOCUMENT["patches"][0], "why": "another reason"}]),
    "arguments": {**DOCUMENT, "args": {"max-model-len": 1}},
}


@pytest.mark.parametrize("name", SAME)
def test_a_change_of_another_field_keeps_the_name(name: str) -> None:
    assert derived(SAME[name]).image == derived().image


def test_the_program_and_the_template_are_inputs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = derived().inputs
    (tmp_path / "image_build.py").write_text("another program\n")
    monkeypatch.setattr("vllm_spark.core.paths.NODE", tmp_path)
    assert derived().inputs != before


def test_the_build_context_has_every_file_but_the_downloads() -> None:
    image = derived()
    assert set(image.files) == {"Dockerfile", "image_steps.py", "pins.txt", "wheels.txt", "patches/01-x.patch"}
    assert image.files["patches/01-x.patch"] == PATCH
    assert image.files["pins.txt"] == "ray==2.55.1\ntransformers==5.14.1\n", "the wheels have what an extra needs"
    assert image.files["wheels.txt"].splitlines() == WHEELS
    assert image.overlay == {key: value for key, value in OVERLAY.items() if key != "why"}
    assert image.downloads == [
        {"url": OVERLAY["url"], "sha256": OVERLAY["sha256"], "path": f"{image.folder}/overlay.tar.gz"},
        {"url": ADDED["url"], "sha256": ADDED["sha256"], "path": f"{image.folder}/files/{'5' * 64}"},
    ]
    assert image.folders == [image.folder, f"{image.folder}/files", f"{image.folder}/patches"]


def instructions(image: derived_image.DerivedImage) -> list[str]:
    return [line for line in image.files["Dockerfile"].splitlines() if line and line[0] != "#"]


def test_the_dockerfile_starts_from_the_digest_and_patches_last() -> None:
    steps = "/usr/local/lib/vllm-spark"
    assert instructions(derived()) == [
        f"FROM 127.0.0.1:25093/ghcr.io/owner/engine@{DIGEST}",
        f"COPY image_steps.py {steps}/",
        "ARG PIP_INDEX_URL",
        "ARG PIP_TRUSTED_HOST",
        f"COPY pins.txt wheels.txt {steps}/",
        f"RUN cd {steps} && python3 image_steps.py pip pins.txt wheels.txt 3.12",
        "COPY overlay.tar.gz /tmp/",
        f"RUN python3 {steps}/image_steps.py overlay /tmp/overlay.tar.gz o-1/vllm && rm /tmp/overlay.tar.gz",
        f"COPY files/{'5' * 64} /usr/local/share/v.txt",
        f"COPY patches/ {steps}/patches/",
        f"RUN cd {steps}/patches && python3 ../image_steps.py patch 01-x.patch",
    ]


def test_the_dockerfile_has_only_the_steps_of_the_recipe() -> None:
    document = put("image.derive.overlay", None)
    del document["patches"], document["image"]["derive"]["files"]
    only_pins = derived(document, {})
    assert [line.split()[0] for line in instructions(only_pins)] == ["FROM", "COPY", "ARG", "ARG", "COPY", "RUN"]


# index -> the build's arguments
INDEXES = {
    "": [],
    "https://example.org/simple": ["PIP_INDEX_URL=https://example.org/simple"],
    "http://10.0.0.1:8900/simple": ["PIP_INDEX_URL=http://10.0.0.1:8900/simple", "PIP_TRUSTED_HOST=10.0.0.1"],
}


@pytest.mark.parametrize("index", INDEXES)
def test_the_command_labels_the_image_and_names_the_index(index: str) -> None:
    image = derived()
    argv = derived_image.command(image, "0.1.0 (abc)", index)
    labels = [value for name, value in itertools.pairwise(argv) if name == "--label"]
    assert labels == [
        f"vllm-spark.base=127.0.0.1:25093/ghcr.io/owner/engine@{DIGEST}",
        f"vllm-spark.inputs={image.inputs}",
        "vllm-spark.recipe=demo",
        "vllm-spark.toolkit=0.1.0 (abc)",
    ]
    assert [value for name, value in itertools.pairwise(argv) if name == "--build-arg"] == INDEXES[index]
    assert argv[argv.index("--tag") + 1] == image.image
    assert argv[-1] == image.folder


def test_an_index_with_a_login_is_refused() -> None:
    (refusal,) = derived_image.index_refusals("https://me:secret@example.org/simple")
    assert "secret" not in str(refusal)
    assert "holds a login for example.org" in str(refusal)
    assert list(derived_image.index_refusals("https://example.org/simple")) == []
    (refusal,) = derived_image.index_refusals("https://me:secret@[::1/simple")
    assert "secret" not in str(refusal)
    assert "vllm_pip_index is no URL" in str(refusal)


# the end of a build's log -> (a part of the message, the runbook)
FAILURES = {
    "patch, classic builder": (
        ["\x1b[91mvllm-spark refuses: patch 01-x.patch does not apply: vllm/x.py, hunk 1 (line 1): …\x1b[0m",
         "The command '/bin/sh -c …' returned a non-zero code: 1"],
        "stopped: patch 01-x.patch does not apply: vllm/x.py, hunk 1 (line 1): …", "patch-does-not-apply",
    ),
    "patch, BuildKit": (
        ["#9 0.31 vllm-spark refuses: patch 01-x.patch does not apply: vllm/x.py, hunk 2 (line 8): …",
         "ERROR: process \"/bin/sh -c …\" did not complete successfully: exit code: 1"],
        "hunk 2 (line 8)", "patch-does-not-apply",
    ),
    "pip": (["ERROR: ResolutionImpossible", "vllm-spark refuses: pip cannot add ray==2 (above)"],
            "stopped: pip cannot add ray==2 (above)", "image-build"),
    "a wheel": (["vllm-spark refuses: another wheel of ray==2 (above): the index has a file with another checksum"],
                "stopped before anything was installed: another wheel of ray==2", "wheels"),
    "the builder itself": (["/var/lib/docker: no space left on device"], "no space left on device", "image-build"),
    "nothing": ([], "the builder printed nothing", "image-build"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_build_reports_its_reason_and_its_log(name: str) -> None:
    lines, reason, runbook = FAILURES[name]
    message = messages.build_failure("vllm-spark/demo:abc", lines, "/var/lib/x/build.log")
    assert reason in message
    assert "\x1b" not in message
    assert "the whole log is /var/lib/x/build.log" in message
    assert message.endswith(f"See docs/runbooks/{runbook}.md")


def test_the_headline_and_the_download_failure_of_a_build() -> None:
    assert messages.build_headline("\x1b[91mStep 2/9 : COPY x y\x1b[0m", 61, 3600) == (
        "building (Step 2/9 : COPY x y)  01:01 of 1:00:00"
    )
    message = messages.download_failure(OVERLAY, "The checksum for x did not match …; it was 55.")
    assert message.startswith("https://example.org/o.tar.gz was not downloaded: The checksum for x did not match")
    assert f"expected: a file with sha256 {'3' * 64}" in message


# --- recipes with patches


def recipe_folder(folder: Path, nodes: int = 1) -> Path:
    """Write a recipe `derived` for one Spark or two into a folder, and return the folder."""
    name = "two-sparks" if nodes > 1 else "everything"
    document = yaml.load((DATA / "recipes" / f"{name}.yml").read_text(), yaml.CSafeLoader)
    document |= {"name": "derived", "mounts": [], "secrets": []}
    document["image"]["derive"] = {
        "pip": ["iniconfig==2.3.1"],
        "wheels": [f"iniconfig==2.3.1 --hash=sha256:{'7' * 64}"],
    }
    document["patches"] = [
        {"path": "patches/x.patch", "sha256": hashlib.sha256(PATCH.encode()).hexdigest(), "why": "because of tests"}
    ]
    (folder / "patches").mkdir()
    (folder / "patches" / "x.patch").write_text(PATCH)
    (folder / "derived.yml").write_text(yaml.safe_dump(document))
    return folder


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_text(PATCH + "\n"), "patches: patches/x.patch has sha256 "),
        (Path.unlink, "patches: patches/x.patch is not a file beside the recipe"),
    ],
    ids=["changed", "absent"],
)
def test_a_patch_is_checked_when_the_recipe_is_loaded(
    damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    file = recipe_folder(tmp_path) / "patches" / "x.patch"
    assert loader.load("derived", (tmp_path,)).files == {"patches/x.patch": PATCH}
    damage(file)
    with pytest.raises(RefusedError, match=r"derived\.yml: ") as refused:
        loader.load("derived", (tmp_path,))
    assert message in str(refused.value)


def test_a_file_beside_the_recipe_needs_its_checksum(tmp_path: Path) -> None:
    file = recipe_folder(tmp_path) / "derived.yml"
    document = yaml.load(file.read_text(), yaml.CSafeLoader)
    document["mounts"] = [{"from": "toolkit", "path": "patches/x.patch", "target": "/x", "why": "because of tests"}]
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(RefusedError, match=r"mounts: patches/x\.patch has no sha256 — expected: a sha256, because"):
        loader.load("derived", (tmp_path,))


# --- the steps of each host


def specs_of(folder: Path, hosts: tuple[str, ...]) -> dict[str, Spec]:
    inventory = spec.Inventory(
        deployments=[{"name": "demo", "recipe": "derived", "hosts": list(hosts)}],
        sparks=hosts,
        limit=hosts,
        recipe_folders=(recipe_folder(folder, len(hosts)),),
        site=SiteSettings(pip_index="https://example.org/simple"),
    )
    resolved = {host: spec.resolve(inventory, host) for host in hosts}
    return {host: Spec.from_json(json.loads(json.dumps(one.to_json()))) for host, one in resolved.items() if one}


def test_the_launch_runs_the_derived_image_and_the_record_names_both(tmp_path: Path, facts: dict[str, Any]) -> None:
    specs = specs_of(tmp_path, ("spark1",))
    one = specs["spark1"]
    assert one.derived is not None
    assert one.image in launch.argv(one)
    assert one.base not in launch.argv(one)
    facts["paths"] = dict.fromkeys(checks.model_folders(one), True)
    planned, summary = plan.of_host(intents(specs), {"spark1": facts}, "spark1", "test")
    deployed = json.loads(next(file.content for file in planned.files if file.path.endswith("deployed.json")))
    assert (deployed["digest"], deployed["derived"]) == (
        DIGEST,
        {"image": one.image, "inputs": one.derived.inputs},
    )
    assert f"image {one.image} would be built here from {one.source}" in summary
    (build,) = planned.images.builds
    assert planned.images.pulls
    assert planned.gates["image"] == one.image
    assert "https://example.org/simple" in shlex.join(build["command"])
    assert {file["path"].rpartition("/")[0] for file in build["files"]} == set(build["folders"])


# (image id on the head, image id on the worker, True if the head has the base) -> host -> its steps
STEPS = {
    (None, None, False): {"spark1": "pull build push serve", "spark2": "take"},
    (None, None, True): {"spark1": "build push serve", "spark2": "take"},
    (None, "sha256:old", True): {"spark1": "build push serve", "spark2": "take"},
    ("sha256:a", None, False): {"spark1": "push serve", "spark2": "take"},
    ("sha256:a", "sha256:b", False): {"spark1": "push serve", "spark2": "take"},
    ("sha256:a", "sha256:a", False): {"spark1": "", "spark2": ""},
}


@pytest.mark.parametrize("present", STEPS)
def test_the_head_builds_and_the_worker_receives(
    present: tuple[str | None, str | None, bool], tmp_path: Path, facts: dict[str, Any]
) -> None:
    specs = specs_of(tmp_path, ("spark1", "spark2"))
    hosts = {}
    for host, identity in zip(specs, present[:2], strict=True):
        images_present = {specs[host].image: identity, specs[host].base: "sha256:base" if present[2] else None}
        fabric = record(tmp_path / host, load(DATA / "fabric" / "one-cable", host))
        hosts[host] = {**facts, "hostname": host, "images": images_present, "fabric": fabric}
    ranked = ranks.join(specs, hosts)
    for host, one in ranked.items():
        others = [HostContext(name, ranked[name], other) for name, other in hosts.items() if name != host]
        steps = images.steps(HostContext(host, one, hosts[host]), others, "test")
        needed = {"pull": steps.pulls, "build": steps.builds, "push": steps.pushes}
        needed |= {"serve": steps.server, "take": steps.takes}
        assert " ".join(name for name, step in needed.items() if step) == STEPS[present][host]
        assert bool(steps) == bool(STEPS[present][host])
        head = ranked["spark1"].group.address  # type: ignore[union-attr]
        registry = {"host": "ghcr.io", "repository": "owner/engine"}
        if steps.server:
            assert (steps.server["address"], steps.server["port"]) == (head, ports.IMAGES_PORT)
            assert steps.server["repositories"] == {"derived/derived": registry}
        for take in steps.takes:
            assert take["upstream"] == {
                "host": "spark1",
                "repository": "derived/derived",
                "url": f"http://{head}:{ports.IMAGES_PORT}",
            }
