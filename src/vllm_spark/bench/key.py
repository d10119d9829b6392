"""Keys of runs: how two of them differ, and whether their figures may be compared."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_spark.core import version
from vllm_spark.core.text import DIGEST_DIGITS, short_digest
from vllm_spark.core.types import Document
from vllm_spark.node.bench import corpora
from vllm_spark.node.bench.records import PROTOCOL, Key

# A difference of this part does not change what was measured.
REPORTED = ("toolkit",)
DIGESTS = ("image", "commit", "launch")
UNKNOWN = "unknown"


def of_server(model: str, hosts: str) -> Key:
    """Return the key of a run by this client against a server of which nothing else is known."""
    return {
        "model": model,
        "commit": "",
        "layout": "",
        "image": "",
        "launch": "",
        "topology": "",
        "hosts": hosts,
        "toolkit": version.version(),
        "protocol": f"{PROTOCOL}-{corpora.sha256()}",
    }


def layout(model: Document) -> str:
    """Return the layout of a recipe's model as a key has it, e.g. `attention=fp8 mlp=fp8`."""
    return " ".join(f"{part}={width}" for part, width in sorted(model.get("layout", {}).items()))


def topology(recipe: Document) -> str:
    """Return the topology of a recipe as a key has it, e.g. `2 nodes, tp 2, ray`."""
    parts = recipe["topology"]
    nodes = parts["nodes"]
    return "1 node" if nodes == 1 else f"{nodes} nodes, tp {parts['tensor_parallel']}, {parts['executor']}"


def changes(old: Key, new: Key) -> list[str]:
    """Return the parts that differ, e.g. `image 0c53… → a230…`. A part that is unknown in both runs does not differ."""
    before, after = _parts(old), _parts(new)
    names = list(dict.fromkeys([*before, *after]))
    return [
        f"{name} {_shown(name, before.get(name, ''))} → {_shown(name, after.get(name, ''))}"
        for name in names
        if before.get(name, "") != after.get(name, "")
    ]


def sentence(old: Key, new: Key) -> str:
    """Return the changes as a line."""
    differences = changes(old, new)
    return f"changed: {', '.join(differences)}" if differences else "the keys are equal"


def comparable(old: Key, new: Key) -> bool:
    """Return True if the keys are equal apart from the parts that are only reported."""
    return _measured(old) == _measured(new)


def _parts(key: Key) -> dict[str, str]:
    parts: Mapping[str, object] = key
    return {name: str(value) for name, value in parts.items()}


def _measured(key: Key) -> dict[str, str]:
    return {name: value for name, value in _parts(key).items() if name not in REPORTED}


def _shown(name: str, value: str) -> str:
    if not value:
        return UNKNOWN
    digest = short_digest(value) if name in DIGESTS else value
    return f"{digest}…" if name in DIGESTS and len(value) > DIGEST_DIGITS else digest
