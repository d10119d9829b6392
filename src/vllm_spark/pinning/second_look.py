"""A digest from two vantage points: the registry of an image, and a second one that asks it over another connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vllm_spark.core.refusal import Fix, RefusedError, register
from vllm_spark.pinning.registry import Registry
from vllm_spark.pinning.resolution import Resolution
from vllm_spark.recipe import image_name

TWO_DIGESTS = register("two-digests", runbook="two-digests")


def confirmed(key: str, answer: Resolution, seconds: Mapping[str, str]) -> Resolution:
    """Return an answer with the second registry in its origin, or with a note that there is none or that it does not
    know. `key` is REPOSITORY:TAG, `seconds` host -> URL. Raises RefusedError for another digest."""
    repository, _, tag = key.rpartition(":")
    host = image_name.split(repository)[0]
    if not seconds.get(host):
        return replace(answer, note=f" (seen by {host} alone: vllm_second_registries names no second registry for it)")
    second = seconds[host].partition("://")[2].partition("/")[0] or seconds[host]
    try:
        # The login of the first registry is no business of the second.
        seen = Registry({host: seconds[host]}, lambda _host: "").resolve(repository, tag, (answer.platform,))
    except RefusedError as error:
        reason = "; ".join(refusal.what for refusal in error.refusals)
        return replace(answer, note=f" (seen by {host} alone; of {second}: {reason})")
    if seen.value != answer.value:
        raise TWO_DIGESTS.error(
            what=f"{key} for {answer.platform} is {answer.value} at {host} and {seen.value} at {second}",
            expected="one digest from both",
            fix=Fix("ansible-playbook lock.yml", "Wait some hours first: the second may have the tag of yesterday."),
        )
    return replace(answer, origin=f"{answer.origin} and {second}")
