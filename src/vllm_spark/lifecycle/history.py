"""What ran when on a box: the entries that a run leaves there, and the table of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = ("host", "time", "deployment", "what", "recipe", "image", "model", "toolkit", "ready", "gates", "who")
TABLE_WIDTH = 180
DIGITS = 12
# A start that never served missed the first gate.
NEVER_READY = "ready"


def entry(verb: str, who: str, judged: Mapping[str, Any]) -> dict[str, Any]:
    """What a run knows of a launch that has been judged; the box adds the time and its own record of the launch.
    `judged` is the result of vllm_verify."""
    gates = judged.get("gates") or {"held": [], "missed": [NEVER_READY]}
    return {
        "verb": verb,
        "who": who,
        "holds": bool(judged.get("holds")),
        "gates": gates,
        "ready_s": judged.get("running_s"),
        # Its first line; the report has the rest.
        "missed": str(judged.get("missed") or "").partition("\n")[0],
        "report": judged.get("report", ""),
    }


def summarize(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The gates that held and those that did not, each once, in the order in which they were judged. One that could not
    be judged is in neither."""
    names = {
        ok: list(dict.fromkeys(verdict["gate"] for verdict in verdicts if verdict["ok"] is ok)) for ok in (True, False)
    }
    return {"held": [name for name in names[True] if name not in names[False]], "missed": names[False]}


def rows(boxes: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The entries of all hosts, the oldest first, each with its host."""
    found = [{"host": host, **said} for host, entries in boxes.items() for said in entries]
    return sorted(found, key=lambda row: (str(row.get("time", "")), row["host"]))


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a person reads them."""
    if not found:
        return "no launch has been judged here yet: deploy, rollback and switch write it down"
    shown = Table(*COLUMNS)
    for row in found:
        shown.add_row(*_cells(row))
    text = StringIO()
    Console(file=text, width=TABLE_WIDTH).print(shown)
    return text.getvalue().rstrip()


def _cells(row: Mapping[str, Any]) -> list[str]:
    gates = row.get("gates") or {}
    judged = f"✗ {', '.join(gates.get('missed', []))}" if not row.get("holds") else f"✓ {len(gates.get('held', []))}"
    return [
        str(row["host"]),
        str(row.get("time", "")),
        f"{row.get('deployment')}" + (f", rank {row['rank']}" if row.get("rank") else ""),
        str(row.get("verb", "")),
        str(row.get("recipe", "")),
        _image(row),
        str(row.get("model", "")).partition("@")[2][:DIGITS],
        str(row.get("toolkit", "")),
        f"{row['ready_s']:.0f} s" if row.get("ready_s") is not None else "—",
        judged,
        str(row.get("who", "")),
    ]


def _image(row: Mapping[str, Any]) -> str:
    derived = row.get("derived") or {}
    name = derived.get("image") or row.get("digest") or ""
    return str(name).rpartition(":")[2][:DIGITS]
