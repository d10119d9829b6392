"""What release 0.1.0 had and this one refuses, with what serves instead. The next release deletes this module, and
playbooks/sbom.yml with it, whose message is that of the command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vllm_spark.core.refusal import Fix, register

REMOVED = register("removed", runbook="wrong-command")

COMMANDS = {
    "sbom": REMOVED(
        what="sbom was removed after release 0.1.0",
        expected="the lock file, which has the digest of each image and the commit of each model",
        fix=Fix(
            "ansible-playbook lock.yml",
            "It writes lock.yml beside the inventory. A scanner such as Syft or Trivy lists an image by its digest. "
            "requirements.lock of the toolkit has the packages of this machine.",
        ),
    ),
    "bench constants": REMOVED(
        what="bench constants was removed after release 0.1.0",
        expected="the evidence in reports/bench, which plan reads itself",
        fix=Fix("ansible-playbook plan.yml", "It has what was measured here, with the factors of the forecast."),
    ),
}
# A file that is read no more, and stays.
CONSTANTS = (
    "{file} is read no more: plan takes what was measured on these Sparks from the evidence in reports/bench, which "
    "bench.yml writes. The file stays; delete it."
)
# Constants of vllm_roofline that changed no mean error by a point. An inventory that has one goes on as before.
ROOFLINE = (
    *("apart_drafts", "attention_s", "attention_token_s", "compute_4_marlin", "compute_attention", "delta_s"),
    *("draft_s", "expert_s", "mamba_s", "sequence_s", "step_s"),
)
# Verb -> the refusal of `-e json=true`.
DOCUMENTS = {
    "history": REMOVED(
        what="the JSON document of history was removed after release 0.1.0",
        expected="a file that gets the rows",
        fix=Fix("ansible-playbook history.yml -e history_json=history.json", "It writes them as a JSON list."),
    ),
    "verify": REMOVED(
        what="the JSON document of verify was removed after release 0.1.0",
        expected="the exit status, and the report of each Spark",
        fix=Fix(
            "ansible-playbook verify.yml",
            "Its exit status is 2 if a gate fails, and it writes the verdicts of each Spark into reports as JSON.",
        ),
    ),
}


def roofline_notes(names: Iterable[str]) -> Iterator[str]:
    """Yield a line about the constants of a site that the forecast reads no more."""
    if gone := ", ".join(sorted(set(ROOFLINE).intersection(names))):
        yield (
            f"vllm_roofline: {gone}: read no more since release 0.1.0, because the forecast is as near without; "
            "docs/reference/prediction.md has those that count. Delete what is read no more from the inventory."
        )
