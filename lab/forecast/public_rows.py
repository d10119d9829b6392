"""Public rows, one load each, as configurations of measured_rows.

The file has `rows`, `flags` and `protocols`. A row names the model, its layout in the words of its source, the load,
and what was measured. A row that the forecast cannot express is dropped with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.forecast.measured_rows import Configuration, Row
from vllm_spark.core import strict_yaml
from vllm_spark.recipe import architecture

# Models that are another one with other weights, by the name that the rows give their architecture.
SAME = {
    "kat-coder-v2.5-dev": "qwen3.6-35b-a3b",
    "qwen3.5-35b-a3b": "qwen3.6-35b-a3b",
    "ornith-1.5-35b": "qwen3.6-35b-a3b",
    "qwen3.8-27b": "qwen3.6-27b",
    "qwen3.5-27b": "qwen3.6-27b",
    "nemotron-cascade-2-30b-a3b": "nemotron-3-nano-30b-a3b",
    "nemotron-3-nano-omni-30b-a3b-reasoning": "nemotron-3-nano-30b-a3b",
    "nemotron-3.5-lightning-30b-a3b": "nemotron-3-nano-30b-a3b",
    "llama-3.3-70b": "llama-3.1-70b",
    "llama-3.3-70b-instruct": "llama-3.1-70b",
    "minimax-m2.7": "minimax-m2.5",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
}

B = "bf16"
ALL = {
    "bf16": {"attention": B, "mlp": B, "experts": B, "head": B},
    "fp8": {"attention": "fp8", "mlp": "fp8", "experts": "fp8", "head": B},
    "nvfp4": {"attention": "nvfp4", "mlp": "nvfp4", "experts": "nvfp4", "head": B},
    "int4": {"attention": "int4-g32", "mlp": "int4-g32", "experts": "int4-g32", "head": B},
}

# Pattern of "MODEL LAYOUT" in lower case -> part -> width. The first match counts. The widths of a checkpoint follow
# from its quantisation config, or from its size.
LAYOUTS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    (r"unsloth/gemma-4-26b", {**ALL["nvfp4"], "experts": {"nvfp4": 22, "fp8": 8}}),
    (r"nvidia/gemma-4-26b", {"attention": B, "mlp": B, "experts": "nvfp4", "head": B}),
    (r"unsloth/gemma-4", {"attention": "fp8", "mlp": "nvfp4", "head": B}),
    (r"nvidia/gemma-4-31b", {"attention": B, "mlp": "nvfp4", "head": B}),
    (r"gpt-oss", {"attention": B, "experts": "mxfp4", "head": B}),
    (r"ministral-3.*instruct", ALL["fp8"]),
    (r"mistral-small-4.*nvfp4", {"attention": B, "experts": "nvfp4", "shared": "nvfp4", "head": B}),
    (
        r"nemotron-3.*(nano-30b|lightning|super).*nvfp4",
        {"attention": B, "linear": "fp8", "experts": "nvfp4", "shared": "nvfp4", "head": B},
    ),
    (r"nvidia/qwen3\.[68]-27b-nvfp4", {"attention": "fp8", "mlp": "nvfp4", "head": "nvfp4"}),
    (r"nvidia/qwen3\.6-35b.*nvfp4", {"attention": "fp8", "experts": "nvfp4", "shared": "nvfp4", "head": "nvfp4"}),
    (r"qwen3\.[68]-27b.*nvfp4", {"attention": "fp8", "mlp": "nvfp4", "head": B}),
    (r"(qwen3\.6-35b|ornith).*nvfp4", {"attention": "fp8", "experts": "nvfp4", "shared": "nvfp4", "head": B}),
    (r"qwen3\.[5-8].* fp8$", {"attention": "fp8-block", "mlp": "fp8-block", "experts": "fp8-block", "head": B}),
    (r"nvidia/(llama|qwen3-)[^ ]* nvfp4$", ALL["nvfp4"]),
    (r" (bf16|fp8)[^ ]*( \(online\))?$", {}),
    (r"(awq|gptq) int4|int4 (w4a16|autoround)|awq int4", ALL["int4"]),
)

# Drafters whose dimensions are known: method and architecture of the model -> architecture of the drafter.
DRAFTERS = {
    ("mtp", "gemma-4-26b-a4b"): "gemma-4-26b-a4b-assistant",
    ("mtp", "gemma-4-31b"): "gemma-4-31b-assistant",
    ("mtp", "qwen3.6-35b-a3b"): "qwen3.6-35b-a3b-mtp",
    ("mtp", "qwen3.6-27b"): "qwen3.6-27b-mtp",
}

# Protocols in which a stream asks again as soon as it is answered.
CLOSED = re.compile(r"closed loop over|vllm bench serve|concurrency_bench|ainode|atlas-bench")
# Protocols whose prompt has another length than its name, or whose prompts share a prefix.
NO_FIRST_TOKEN = re.compile(r"jvr0x|pulsar|synthetic repeated")
# Protocols that send one prompt again, and the length from which that matters.
CACHED, LONG = re.compile("sostrowsk bench.py"), 8000
# Protocols whose streams are half as fast as those of another source, of the same model, layout and drafter.
CONTRADICTED = re.compile("jschmied bench_client")
# The decode of gpt-oss-120b if its 5.0 GB are read at 241 GB/s.
READ_GPT_OSS = 48
TOO_FAST = "faster than the attention and the head in BF16 can be read, so its kernels are others than stated"
# Ranks that the forecast knows.
MOST_RANKS = 2
# What a prompt has if its source does not say it.
USUAL_PROMPT, USUAL_OUTPUT = 256, 256
# Protocols whose output per second counts the prompts' time as well.
WALL = re.compile(r"over wall|wall time|wall rate|vllm bench serve")
FORK = re.compile(r"fork|dspark|anemll|exl3|b12x|sglang|tensorfold", re.I)


def read(file: Path) -> tuple[list[Configuration], dict[str, list[str]]]:
    """Return the configurations of a file, and reason -> ids of the dropped rows."""
    content = strict_yaml.load_own(file.read_text(encoding="utf-8"))
    groups: dict[tuple[Any, ...], list[Row]] = {}
    dropped: dict[str, list[str]] = {}
    for entry in content["rows"]:
        found = configuration(entry, content["flags"], content["protocols"])
        if isinstance(found, str):
            dropped.setdefault(found, []).append(entry["id"])
        else:
            groups.setdefault(found, []).append(_row(entry, content["protocols"]))
    return [_configuration(dict(key), rows) for key, rows in groups.items()], dropped


def _configuration(fields: dict[str, Any], rows: Sequence[Row]) -> Configuration:
    return Configuration(**{**fields, "layout": _thawed(fields["layout"])}, rows=tuple(rows))


def configuration(
    entry: Mapping[str, Any], flags: Mapping[str, str], protocols: Mapping[str, str]
) -> tuple[Any, ...] | str:
    """Return the fields of a row's configuration, hashable, or why the row is dropped."""
    reason = _refused(entry, protocols.get(entry["protocol"], ""))
    if reason:
        return reason
    name = known_architecture(entry["architecture"])
    layout = known_layout(entry["model"], str(entry["layout"]))
    if name is None or layout is None:
        return "the architecture or the layout is not known here"
    drafter = entry.get("drafter") or {"kind": "none"}
    drafting = drafter.get("kind", "none") != "none"
    tokens, accepted = drafter.get("drafted") or drafter.get("tokens") or 0, entry.get("acceptance") or 0
    assistant = DRAFTERS.get((str(drafter.get("kind")), name), "")
    if drafting and not (assistant and tokens and accepted):
        return "a drafter whose dimensions or whose acceptance is not stated"
    flag = flags.get(entry.get("flags") or "", "") or ""
    protocol = protocols.get(entry["protocol"], "")
    fields = {
        "id": f"{entry['configuration']}, {entry.get('variant') or entry['protocol']}",
        "model": entry["model"],
        "architecture": name,
        "layout": tuple(sorted(layout.items(), key=str)),
        "source": _source(str(entry["source"])),
        "protocol": entry["protocol"],
        "kv": "fp8" if str(entry.get("kv")).startswith(("fp8", "int8")) else "bf16",
        "tensor_parallel": entry.get("tensor_parallel") or 1,
        "drafted": tokens if drafting else 0,
        "accepted": float(accepted) if drafting else 0.0,
        "drafter": assistant,
        "marlin": "marlin" in flag.lower() or "gpt-oss" in name or "int4" in str(layout),
        "eager": bool(entry.get("eager")),
        "closed": bool(CLOSED.search(protocol)),
        "batched": _flag(flag, "batched.tokens", 8192),
        "sequences": _flag(flag, "num.seqs", 256),
    }
    return tuple((key, _frozen(value)) for key, value in fields.items())


def known_architecture(name: str) -> str | None:
    """Return the architecture of a row, or None."""
    name = SAME.get(name.partition(" ")[0], name.partition(" ")[0])
    return name if name in architecture.names() else None


def known_layout(model: str, layout: str) -> Mapping[str, Any] | None:
    """Return part -> width, or None."""
    for pattern, widths in LAYOUTS:
        if re.search(pattern, f"{model} {layout}".lower()):
            return widths or ALL.get(re.split(r"[^a-z0-9]", layout.lower())[0])
    return None


def _refused(entry: Mapping[str, Any], protocol: str) -> str:
    """Return why a row is no measurement of the engine that the forecast describes; empty if it is one."""
    ranks, streams = entry.get("tensor_parallel") or 1, entry.get("streams") or 0
    measured = entry.get("measured") or {}
    decode = measured.get("decode_tok_s_per_stream") or 0
    kernels = f"{entry['engine']} {entry.get('image')}"
    reasons = {
        "more than two Sparks, or another hardware or division": entry.get("hardware", "GB10") != "GB10"
        or ranks > MOST_RANKS
        or ranks != (entry.get("nodes") or ranks),
        "no number of streams, or nothing measured": not streams or not measured,
        "an engine with kernels of its own (fork)": FORK.search(kernels) or "head MXFP4" in str(entry["layout"]),
        "the same long prompt again and again, which the prefix cache holds": CACHED.search(protocol)
        and (entry.get("prompt") or 0) > LONG
        and streams > 1,
        "half of what another source has for the same configuration and load": CONTRADICTED.search(protocol)
        and streams > 1,
        TOO_FAST: "gpt-oss-120b" in entry["model"] and decode > READ_GPT_OSS,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _row(entry: Mapping[str, Any], protocols: Mapping[str, str]) -> Row:
    measured, protocol = entry["measured"], protocols.get(entry["protocol"], "")
    decode, total = measured.get("decode_tok_s_per_stream"), measured.get("output_tok_s_over_wall")
    prompt = entry.get("prompt")
    if not decode and entry["streams"] == 1 and not WALL.search(protocol):
        decode, total = total or measured.get("decode_total"), None
    if not WALL.search(protocol):
        total = None
    # The first cell of a llama-benchy run holds the warm-up: 590 ms for 1,024 tokens, 515 ms for 2,048.
    warm_up = protocol.endswith("01-chat") and entry["streams"] == 1
    # How many prompts arrive at once is not stated where the rate is infinite.
    queued = "request-rate inf" in protocol and entry["streams"] > 1
    keep = prompt and not warm_up and not queued and not NO_FIRST_TOKEN.search(protocol)
    return Row(
        prompt=prompt or USUAL_PROMPT,
        # llama-benchy's multi-turn test names the number of turns.
        depth=0 if "multi-turn" in protocol else entry.get("depth") or 0,
        output=max(2, entry.get("output") or USUAL_OUTPUT),
        streams=entry["streams"],
        decode=decode,
        total=None if decode else total,
        first_token_ms=measured.get("ttft_ms") if keep else None,
    )


def _source(text: str) -> str:
    """Return the repository and its commit, or the whole address."""
    return text if text.startswith("http") or "@" not in text else text.partition(":")[0]


def _flag(text: str, name: str, default: int) -> int:
    found = re.search(rf"{name}\W+(\d+)", text.replace("_", "-").replace("-", "."))
    return int(found[1]) if found else default


def _frozen(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple((key, tuple(width.items()) if isinstance(width, Mapping) else width) for key, width in value)
    return value


def _thawed(layout: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return {part: dict(width) if isinstance(width, tuple) else width for part, width in layout}
