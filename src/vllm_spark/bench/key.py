"""Keys of runs: how two of them differ, and whether their figures may be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_spark.bench.evidence import Evidence
from vllm_spark.core import version
from vllm_spark.core.text import DIGEST_DIGITS, short_digest
from vllm_spark.core.types import Document
from vllm_spark.node.bench import corpora
from vllm_spark.node.bench.records import PROTOCOL, Fault, Key
from vllm_spark.recipe import rules

# A difference of this part does not change what was measured.
REPORTED = ("toolkit",)
DIGESTS = ("image", "commit", "launch")
UNKNOWN = "unknown"
# What a run has seen of the server and its hosts. A run that has not seen it says nothing about it.
SEEN = ("engine", "drafter", "driver", "os")
# The fault of a GPU whose clock is held down.
CAPPED = "clock-cap"


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
    """Return the topology of a recipe as a key has it, e.g. `2 nodes, tp 2, ray` or `4 nodes, tp 2, pp 2, mp`."""
    parts = recipe["topology"]
    nodes, stages = parts["nodes"], rules.stages_of(recipe)
    pipeline = f", pp {stages}" if stages > 1 else ""
    return "1 node" if nodes == 1 else f"{nodes} nodes, tp {parts['tensor_parallel']}{pipeline}, {parts['executor']}"


def changes(old: Evidence, new: Evidence) -> list[str]:
    """Return the parts in which two runs differ, e.g. `image 0c53… → a230…`.

    A part that is unknown in both does not differ, nor does one of SEEN that is unknown in one.
    """
    before, after = parts(old), parts(new)
    return [
        f"{name} {shown(name, before.get(name, ''))} → {shown(name, after.get(name, ''))}"
        for name in dict.fromkeys([*before, *after])
        if differs(name, before.get(name, ""), after.get(name, ""))
    ]


def sentence(old: Evidence, new: Evidence) -> str:
    """Return the changes as a line."""
    differences = changes(old, new)
    return f"changed: {', '.join(differences)}" if differences else "the keys are equal"


def comparable(old: Evidence, new: Evidence) -> bool:
    """Return True if the keys are equal apart from the parts that are only reported."""
    before, after = parts(old), parts(new)
    names = {*before, *after} - set(REPORTED)
    return not any(differs(name, before.get(name, ""), after.get(name, "")) for name in names)


def same_place(old: Evidence, new: Evidence) -> bool:
    """Return True if two runs are of one model on the same Sparks by the same definitions, whatever else differs: the
    older one is what the newer one was upgraded from."""
    before, after = parts(old), parts(new)
    place = old.run["subject"]["deployment"] == new.run["subject"]["deployment"]
    return place and all(before[name] == after[name] for name in ("model", "hosts", "topology", "protocol"))


def parts(run: Evidence) -> dict[str, str]:
    """Return the parts of the key, and what the run saw of the server and of its hosts."""
    parts: Mapping[str, object] = run.run["key"]
    drafted = {"acceptance" in cell["figures"] for cell in run.cells.values() if cell["figures"]}
    hosts = run.run["host"].values()
    seen = {
        "engine": run.run["subject"]["engine_version"],
        "drafter": ("yes" if True in drafted else "no") if drafted else "",
        **{name: ", ".join(dict.fromkeys(host.get(name, "") for host in hosts)) for name in ("driver", "os")},
        "clocks": "capped" if any(fault["id"] == CAPPED for fault in _faults(run)) else "",
    }
    return {**{name: str(value) for name, value in parts.items()}, **seen}


def _faults(run: Evidence) -> Iterator[Fault]:
    for cell in run.cells.values():
        yield from cell["faults"]


def differs(name: str, old: str, new: str) -> bool:
    """Return True if a part differs; one of SEEN that is unknown in one run does not."""
    return old != new and (name not in SEEN or (old != "" and new != ""))


def shown(name: str, value: str) -> str:
    """Return the value of a part for people, a digest by its first digits."""
    if not value:
        return UNKNOWN
    digest = short_digest(value) if name in DIGESTS else value
    return f"{digest}…" if name in DIGESTS and len(value) > DIGEST_DIGITS else digest
