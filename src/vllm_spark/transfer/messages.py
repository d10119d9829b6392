"""Messages of image steps: progress of a build or a pull, and the refusals if one fails. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_spark.core import units
from vllm_spark.core.refusal import register
from vllm_spark.verify import startup_phases
from vllm_spark.verify.startup_phases import Phase, StartupProgress

IMAGE_OVERLAY = register("image-overlay", runbook="image-overlay")
IMAGE_TRANSFER = register("image-transfer", runbook="image-transfer")
PATCH_DOES_NOT_APPLY = register("patch-does-not-apply", runbook="patch-does-not-apply")
IMAGE_BUILD = register("image-build", runbook="image-build")
IMAGE_PULL = register("image-pull", runbook="image-pull")

LINE_WIDTH = 80
# The refusal of a build step. The builder puts a prefix before the line and a colour code after it.
STEP_REFUSAL = re.compile(r"vllm-spark refuses: ([^\x1b\n]*)")
TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def build_headline(line: str, elapsed_s: float, deadline_s: float) -> str:
    """Return the progress line of a build; `line` is the last one of the log."""
    text = " ".join(TERMINAL_COLOUR.sub("", line).split())[:LINE_WIDTH]
    return f"building ({text or 'starting'})  {units.clock(elapsed_s)} of {units.clock(deadline_s)}"


def overlay_failure(overlay: Mapping[str, str], detail: str) -> str:
    """Return the refusal for an overlay; `detail` is the message of get_url, which contains the actual checksum."""
    return str(
        IMAGE_OVERLAY(
            what=f"the overlay {overlay['url']} was not downloaded: {' '.join(detail.split())}",
            expected=f"an archive with sha256 {overlay['sha256']}",
            fix="correct image.derive.overlay of the recipe, if its archive changed on purpose; nothing was built.",
        )
    )


def transfer_failure(transfer: Mapping[str, Any], detail: str) -> str:
    """Return the refusal for an image that the worker did not get; `detail` is the message of the failed step."""
    return str(
        IMAGE_TRANSFER(
            what=f"{transfer['image']} was not copied from {transfer['head_host']} to its worker: "
            f"{' '.join(detail.split())}",
            expected=f"a registry on {transfer['head']} port {transfer['port']}, reached over the fabric",
            fix="run the checks of the runbook, then deploy again: layers that arrived are kept.",
        )
    )


def build_failure(image: str, lines: Sequence[str], log: str) -> str:
    """Return the refusal for a build from the end of its log: the refusal of a step, else the last output."""
    text = TERMINAL_COLOUR.sub("", "\n".join(lines))
    refusals = STEP_REFUSAL.findall(text)
    detail = refusals[-1].strip() if refusals else " ".join(text.split())[-300:] or "the builder printed nothing"
    if refusals and detail.startswith("patch "):
        return str(
            PATCH_DOES_NOT_APPLY(
                what=f"building {image} stopped: {detail}",
                expected="a patch that applies to the base image without changes, or is applied already",
                fix=f"rewrite the patch for this base, or remove it from the recipe; the whole log is {log}.",
            )
        )
    return str(
        IMAGE_BUILD(
            what=f"building {image} stopped: {detail}",
            expected="a recipe whose image.derive works on this base",
            fix=f"correct image.derive of the recipe; the whole log is {log}.",
        )
    )


def image_headline(arrived_bytes: int, elapsed_s: float, deadline_s: float) -> str:
    """Return e.g. `pulling (3.1 GiB on disk)  00:41 of 1:00:00`. Layers count once unpacked, so it moves in steps."""
    return startup_phases.headline(
        StartupProgress(Phase.PULLING, detail=f"{units.gib(max(arrived_bytes, 0))} on disk"), elapsed_s, deadline_s
    )


def image_failure(image: str, detail: str) -> str:
    """Return the refusal for an image that was not pulled."""
    return str(
        IMAGE_PULL(
            what=f"pulling {image} failed: {detail or 'the job ended without a message'}",
            expected="a registry that serves this digest",
            fix="run `docker pull` of it on the Spark; if the digest is gone, correct the recipe or the lock file.",
        )
    )
