"""Messages of the build of a derived image: its progress, and the refusals if it fails. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vllm_spark.core import units
from vllm_spark.core.refusal import register
from vllm_spark.node.image_build import OTHER_WHEEL

IMAGE_DOWNLOAD = register("image-download", runbook="image-download")
PATCH_DOES_NOT_APPLY = register("patch-does-not-apply", runbook="patch-does-not-apply")
IMAGE_BUILD = register("image-build", runbook="image-build")
OTHER_HASH = register("other-hash", runbook="wheels")

LINE_WIDTH = 80
# The refusal of a build step. The builder puts a prefix before the line and a colour code after it.
STEP_REFUSAL = re.compile(r"vllm-spark refuses: ([^\x1b\n]*)")
TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def build_headline(line: str, elapsed_s: float, deadline_s: float) -> str:
    """Return the progress line of a build; `line` is the last one of the log."""
    text = " ".join(TERMINAL_COLOUR.sub("", line).split())[:LINE_WIDTH]
    return f"building ({text or 'starting'})  {units.clock(elapsed_s)} of {units.clock(deadline_s)}"


def download_failure(download: Mapping[str, str], detail: str) -> str:
    """Return the refusal for a file of a build; `detail` is the message of get_url, which contains the actual
    checksum."""
    return str(
        IMAGE_DOWNLOAD(
            what=f"{download['url']} was not downloaded: {' '.join(detail.split())}",
            expected=f"a file with sha256 {download['sha256']}",
            fix="correct image.derive of the recipe, if the file changed on purpose; nothing was built.",
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
    if detail.startswith(OTHER_WHEEL):
        return str(
            OTHER_HASH(
                what=f"building {image} stopped before anything was installed: {detail}",
                expected="the files that `lock` saw, because a release never changes",
                fix="ask the owner of the index why. If it has builds of its own, remove the packages from the lock "
                f"file, then `ansible-playbook lock.yml`; the whole log is {log}.",
            )
        )
    return str(
        IMAGE_BUILD(
            what=f"building {image} stopped: {detail}",
            expected="a recipe whose image.derive works on this base",
            fix=f"correct image.derive of the recipe; the whole log is {log}.",
        )
    )
