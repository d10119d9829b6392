"""Names for people: what differs between runs, a run by what makes it another one, and a cell by its load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from vllm_spark.bench import key
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import text
from vllm_spark.bench.report.text import letter
from vllm_spark.bench.verdict import REPETITION
from vllm_spark.node.bench.records import Cell

# Parts whose values are no names, and how many of the others a run is named by.
HASHED, IN_A_NAME = (*key.DIGESTS, "protocol"), 2


def differences(runs: Sequence[Evidence]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the parts of the key in which the runs differ, and their profiles, with the value of each run."""
    found = [{**key.parts(run), "profile": str(run.run["profile"].get("name") or "")} for run in runs]
    return [
        (part, tuple(text.plain(key.shown(part, one.get(part, ""))) for one in found))
        for part in dict.fromkeys(part for one in found for part in one if part not in key.REPORTED)
        if any(key.differs(part, found[0].get(part, ""), one.get(part, "")) for one in found)
    ]


def of_runs(runs: Sequence[Evidence]) -> list[str]:
    """Return a name for each run: what tells it from the others, or else when it began."""
    telling = [_telling(part, values) for part, values in differences(runs) if part not in HASHED][:IN_A_NAME]
    names = [", ".join(values[n] for values in telling) for n in range(len(runs))]
    if len({*names}) == len(names) and len(runs) > 1:
        return names
    return [", ".join(filter(None, (name, began(run)))) for name, run in zip(names, runs, strict=True)]


def _telling(part: str, values: Sequence[str]) -> list[str]:
    """Return the values of a part, of a layout only what the runs do not share: `experts fp8`."""
    if part != "layout":
        return [*values]
    words = [value.split() for value in values]
    shared = set.intersection(*map(set, words))
    return [", ".join(word.replace("=", " ") for word in one if word not in shared) or "less" for one in words]


def began(run: Evidence) -> str:
    """Return when a run began, in UTC: 2026-11-23 02:22."""
    return text.plain(run.run["started"]).replace("T", " ")[:16]


def cautions(runs: Sequence[Evidence]) -> Iterator[str]:
    """Yield what a reader must know before the figures of these runs are compared."""
    for n, run in enumerate(runs[1:], 1):
        both = f"{letter(0)} and {letter(n)}"
        if runs[0].run["key"]["protocol"] != run.run["key"]["protocol"]:
            yield f"The bench measured {both} by different protocols, so their figures are not defined alike."
        if not {*runs[0].cells} & {*run.cells}:
            yield f"{both} have no cell in common, so none of their figures are compared."
    if not all(key.comparable(runs[0], run) for run in runs):
        yield "What is better or worse may be the effect of what differs."


def of_cells(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the name of each cell by its id: `chat, 2k in, 128 out`. Cells that read alike keep their id."""
    names = {cell["id"]: _of_cell(cell) for cell in cells}
    times = Counter(names.values())
    return {id_: name if times[name] == 1 else text.plain(id_) for id_, name in names.items()}


def _of_cell(cell: Cell) -> str:
    if "start" in cell["server"]:
        return f"{text.plain(cell['server']['start'])} start"
    repetition = REPETITION.search(cell["id"])
    parts = [
        text.plain(cell["corpus"]),
        f"{text.length(cell['prompt'])} in" + (f" after {text.length(cell['depth'])}" if cell["depth"] else ""),
        f"{text.length(cell['output'])} out",
        f"{cell['streams']} streams" if cell["streams"] > 1 else "",
        text.settings({name: value for name, value in cell["sampling"].items() if (name, value) != ("temperature", 0)}),
        text.settings(cell["server"]),
    ]
    return ", ".join(filter(None, parts)) + (repetition.group() if repetition else "")
