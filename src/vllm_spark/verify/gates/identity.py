"""Is it the model, the engine and the launch that the recipe names?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from vllm_spark.core.text import plain
from vllm_spark.verify.gates.responses import dig
from vllm_spark.verify.gates.verdict import IDENTITY, Verdict, miss

# A name no server has: one that answers it serves something else than it says.
UNKNOWN_MODEL = "vllm-spark-no-such-model"


def identity(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del log
    replies = probe["responses"]
    cards = dig(replies, "models", "json", "data")
    cards = [card for card in cards if isinstance(card, Mapping)] if isinstance(cards, list) else []
    first = cards[0] if cards else {}
    card = next((found for found in cards if found.get("id") == wanted["served_name"]), first)
    version = str(dig(replies, "version", "json", "version") or "")
    container = probe.get("container") or {}
    facts: list[tuple[str, object, object]] = [
        ("served name", card.get("id"), wanted["served_name"]),
        ("model", card.get("root"), wanted["model_root"]),
        # A build's local part (+cu130, +cpu) says how it was built, not what it is.
        ("engine version", version.partition("+")[0], wanted["engine_version"].partition("+")[0]),
        ("image", container.get("image"), wanted["image"]),
        ("launch", container.get("labels", {}).get("vllm-spark.launch"), wanted["launch"]),
        ("status for an unknown model", dig(replies, "unknown-model", "status"), HTTPStatus.NOT_FOUND.value),
    ]
    if wanted["max_model_len"] is not None:
        facts.append(("context length", card.get("max_model_len"), wanted["max_model_len"]))
    wrong = [(name, seen, expected) for name, seen, expected in facts if seen != expected]
    for name, seen, expected in wrong:
        yield miss(
            IDENTITY, name.replace(" ", "-"), f"{name} is {plain(str(seen))}", f"{expected}",
            f"look for another server on port {wanted['port']}, then deploy again.", runbook="wrong-identity",
        )  # fmt: skip
    if not wrong:
        yield Verdict(IDENTITY, "all", True, f"{wanted['served_name']}, vLLM {plain(version)}, {wanted['image'][-12:]}")
