"""The selection of the weights on a host that must be read and hashed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def needs_check(states: Collection[Mapping[str, Any]], verify: bool) -> bool:
    """Return True if a file must be hashed. `states` are those of vllm_weights, one per model: without `verify` only
    bytes that changed since they were last hashed count (`unread`). A model without a manifest has nothing to compare
    with."""
    known = [state for state in states if state.get("manifest")]
    return any(state["unread"] > 0 for state in known) or (verify and bool(known))
