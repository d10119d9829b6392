"""History of launches on a host: the entries that a run writes there, and their table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.table import Table

from vllm_spark.core import table as text_table
from vllm_spark.core.text import DIGEST_DIGITS, short_digest
from vllm_spark.node import launch_difference

COLUMNS = (
    *("host", "time", "deployment", "what", "launch", "changed", "recipe", "image", "model", "toolkit"),
    *("ready", "gates", "who"),
)
# Columns that share one where a row has no room.
STACKED = (
    *(("host",), ("time", "who"), ("deployment", "what"), ("launch", "image", "model"), ("changed",)),
    *(("recipe", "toolkit"), ("ready", "gates")),
)
TABLE_WIDTH = 200
# A start that never served missed the first gate.
NEVER_READY = "ready"
NO_PLAN: Mapping[str, Any] = MappingProxyType({})


# The verbs that place the launch of a plan.
PLACES = ("deploy", "switch")


def entry(verb: str, who: str, judged: Mapping[str, Any], plan: Mapping[str, Any] = NO_PLAN) -> dict[str, Any]:
    """Return the entry of a judged launch. The host adds the time and its record of the launch. `judged` is the result
    of vllm_verify, `plan` that of the host as JSON, if this run has made one. If the launch takes the place of one that
    was edited by hand and ran, `put_back` has what differs."""
    found = plan.get("on_host", {}) if verb in PLACES else {}
    put_back = {"put_back": found["changes"] or launch_difference.SAME} if found.get("ran") else {}
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
        **put_back,
    }


def summarize(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the names of the gates that passed and of those that failed, each once, in the order of judging. A gate
    that could not be judged is in neither list."""
    names = {
        ok: list(dict.fromkeys(verdict["gate"] for verdict in verdicts if verdict["ok"] is ok)) for ok in (True, False)
    }
    return {"held": [name for name in names[True] if name not in names[False]], "missed": names[False]}


def rows(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the entries of all hosts, each with its host, oldest first."""
    merged = [{"host": host, **item} for host, entries in histories.items() for item in entries]
    return sorted(merged, key=lambda row: (str(row.get("time", "")), row["host"]))


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a text table."""
    if not entries:
        return "no launch has been judged here yet: deploy, rollback and switch write it down"
    wide = Table(*COLUMNS)
    narrow = Table(*map(", ".join, STACKED), show_lines=True)
    for row in entries:
        cells = dict(zip(COLUMNS, _cells(row), strict=True))
        wide.add_row(*cells.values())
        narrow.add_row(*("\n".join(cells[name] for name in names) for names in STACKED))
    return text_table.text(wide if text_table.fits(wide, TABLE_WIDTH) else narrow, TABLE_WIDTH)


def _cells(row: Mapping[str, Any]) -> list[str]:
    gates = row.get("gates") or {}
    judged = f"✗ {', '.join(gates.get('missed', []))}" if not row.get("holds") else f"✓ {len(gates.get('held', []))}"
    return [
        str(row["host"]),
        str(row.get("time", "")),
        f"{row.get('deployment')}" + (f", rank {row['rank']}" if row.get("rank") else ""),
        str(row.get("verb", "")),
        str(row.get("launch", ""))[:DIGEST_DIGITS],
        changed(row),
        str(row.get("recipe", "")),
        _image(row),
        str(row.get("model", "")).partition("@")[2][:DIGEST_DIGITS],
        str(row.get("toolkit", "")),
        f"{row['ready_s']:.0f} s" if row.get("ready_s") is not None else "—",
        judged,
        str(row.get("who", "")),
    ]


def changed(row: Mapping[str, Any]) -> str:
    """Return what differs from the launch before of the deployment, a dash if that is unknown, and whether one of both
    was edited by hand."""
    if row.get("put_back") and row.get("before") == row.get("launch"):
        return f"an edit by hand is put back: {row['put_back']}"
    by_hand = "; the launch before was edited by hand" if row.get("put_back") else ""
    return _since(row) + ("; edited by hand" if row.get("edited") else by_hand)


def _since(row: Mapping[str, Any]) -> str:
    if row.get("before") == "":
        return "first launch"
    if "changes" not in row:
        return "—"
    if row.get("before") == row.get("launch"):
        return "same launch"
    return launch_difference.listed(row["changes"])


def _image(row: Mapping[str, Any]) -> str:
    derived = row.get("derived") or {}
    name = derived.get("image") or row.get("digest") or ""
    return short_digest(str(name))
