"""Names for people: what differs between runs, a run by what makes it another one, and a cell by its load."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm_spark.bench import key
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import text
from vllm_spark.bench.report.reading import letter
from vllm_spark.bench.verdict import REPETITION
from vllm_spark.node.bench.records import Cell

HASH = re.compile(r"(sha256:)?[0-9a-f]{12,64}")
# Differences in the name of a run. All of them are in the page's list.
IN_A_NAME = 2


def _image(run: Evidence) -> str:
    """Return the image; of one that only has a digest the version of its engine."""
    image, version = run.run["key"]["image"], run.run["subject"]["engine_version"]
    return (f"engine {version}" if version else image) if HASH.fullmatch(image) or not image else image


# Parts that may differ, the most telling one first, and how a run tells its own.
PARTS: Mapping[str, Callable[[Evidence], str]] = {
    "model": lambda run: run.run["key"]["model"],
    "layout": lambda run: run.run["key"]["layout"].replace("=", " "),
    "image": _image,
    "recipe": lambda run: run.run["subject"]["recipe"],
    "topology": lambda run: run.run["key"]["topology"],
    "hosts": lambda run: run.run["key"]["hosts"].replace(",", ", "),
    "profile": lambda run: str(run.run["profile"].get("name") or ""),
    "commit": lambda run: run.run["key"]["commit"],
    "launch": lambda run: run.run["key"]["launch"],
    "protocol": lambda run: f"version {run.run['key']['protocol'].partition('-')[0]}",
}
# What is compared to tell whether a part differs, where the words above do not tell.
EXACT: Mapping[str, Callable[[Evidence], str]] = {
    "image": lambda run: run.run["key"]["image"],
    "protocol": lambda run: run.run["key"]["protocol"],
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A part in which runs differ. `values` has its name in each run; it is empty for a part that only has a hash."""

    part: str
    values: tuple[str, ...]


def differences(runs: Sequence[Evidence]) -> list[Difference]:
    """Return the parts in which the runs differ, the most telling one first."""
    return [
        Difference(part, _told(part, [told(run) for run in runs]))
        for part, told in PARTS.items()
        if len({EXACT.get(part, told)(run) for run in runs}) > 1
    ]


def _told(part: str, values: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a part, of a layout only the words that differ; nothing if hashes are all there is."""
    if part == "layout":
        words = [value.split(" ") for value in values]
        pairs = [dict(zip(one[::2], one[1::2], strict=False)) for one in words]
        every = dict.fromkeys(name for each in pairs for name in each)
        differing = [name for name in every if len({each.get(name) for each in pairs}) > 1]
        if differing and all(pairs):
            values = [", ".join(f"{name} {each.get(name, 'none')}" for name in differing) for each in pairs]
    if len({*values}) == 1 or any(map(HASH.fullmatch, values)):
        return ()
    return tuple(text.plain(value) or key.UNKNOWN for value in values)


def of_runs(runs: Sequence[Evidence]) -> list[str]:
    """Return a name for each run: what tells it from the others, or else when it began."""
    told = [each.values for each in differences(runs) if each.values][:IN_A_NAME]
    names = [", ".join(values[n] for values in told) for n in range(len(runs))]
    if len({*names}) == len(names) and len(runs) > 1:
        return names
    return [", ".join(filter(None, (name, began(run)))) for name, run in zip(names, runs, strict=True)]


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
    if len(runs) > 1 and not all(key.comparable(runs[0], run) for run in runs):
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
