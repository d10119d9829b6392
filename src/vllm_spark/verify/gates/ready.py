"""Does it serve? A 200 of /health proves nothing: it does not ask the workers (vLLM v1/engine/async_llm.py,
check_health), so the first question is a token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_spark.verify.gates.responses import read, status
from vllm_spark.verify.gates.verdict import READY, Verdict, miss


def is_ready(probe: Mapping[str, Any]) -> bool:
    """Did the engine give one token? Where nothing was asked, on a worker: does its head say that it serves?"""
    if not probe["responses"]:
        running = (probe.get("container") or {}).get("state") == "running"
        return running and probe.get("state", {}).get("state") == "serving"
    response = probe["responses"].get("ready", {})
    return not read(response).fault


def rank(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    """A worker: it runs what it should, and its head serves."""
    del log
    container, state = probe.get("container") or {}, probe.get("state", {})
    facts = (
        ("state", state.get("state"), "serving"),
        ("container", container.get("state"), "running"),
        ("image", container.get("image"), wanted["image"]),
        ("launch", container.get("labels", {}).get("vllm-spark.launch"), wanted["launch"]),
    )
    wrong = [(name, seen, expected) for name, seen, expected in facts if seen != expected]
    for name, seen, expected in wrong:
        why = f" ({state['why']})" if name == "state" and state.get("why") else ""
        yield miss(
            READY, f"rank-{name}", f"{name} of rank {wanted['rank']} is {seen}{why}", f"{expected}",
            f"journalctl -u {wanted['unit']} -e on both Sparks.", runbook="pair-does-not-start",
        )  # fmt: skip
    if not wrong:
        yield Verdict(READY, "rank", True, f"rank {wanted['rank']} runs and its head serves")


def token(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del log
    response = probe["responses"].get("ready", {})
    if is_ready(probe):
        yield Verdict(READY, "token", True, f"one token in {response['seconds']:.2f} s")
    else:
        yield miss(
            READY, "token", f"no token from {wanted['served_name']}: {read(response).fault or status(response)}",
            "a completion of one token", f"journalctl -u {wanted['unit']} -e", runbook="engine-failed-to-start",
        )  # fmt: skip
