"""The widths at which an engine holds a model: those of the files, and what its flags make of them (held_weights.yml).

A layout maps parts to widths, or to mixtures of widths: width -> number of layers. Pure but for that file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from vllm_spark.core import strict_yaml
from vllm_spark.core.engine_version import numbers
from vllm_spark.core.fault import Fault
from vllm_spark.core.types import Document
from vllm_spark.recipe import conditions, engine_arguments, flag_types
from vllm_spark.recipe.architecture import PARTS

FILE = Path(__file__).with_suffix(".yml")
PLAIN = "bf16"
# Parts of the class LinearBase of the engine.
LINEAR = ("attention", "linear", "mlp", "shared", "latent", "per_layer")

# Name in held_weights.yml, linear or experts -> width.
Change = Mapping[str, str]


@lru_cache
def table() -> Mapping[str, Any]:
    """Return the content of the file."""
    document: Mapping[str, Any] = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
    return document


def faults(recipe: Document) -> Iterator[Fault]:
    """Yield the fault of a flag that does not fit the files, and of a layout that the flags contradict."""
    stated = recipe["model"].get("layout")
    if stated is None:
        return
    held = _held(recipe)
    if isinstance(held, Fault):
        yield held
    elif held and (parts := _differing(stated, held)):
        said, holds = (", ".join(f"{part} {_width(of, part)}" for part in parts) for of in (stated, held))
        files = recipe["model"].get("checkpoint", stated)
        unchanged = all(_width(files, part) == _width(held, part) for part in parts)
        why = "no flag quantises the files, which leaves" if unchanged else "the flags make"
        yield Fault(f"model.layout: {said}; {why} {holds}", f"{_flag_for(recipe, stated)}model.layout: {holds}")


def overridden(document: dict[str, Any], recipe: Document) -> None:
    """Give a recipe with overrides the layout of its flags, and take away what was measured of other weights.

    `recipe` is the one without overrides."""
    if "layout" not in document["model"]:
        return
    before, after = _held(recipe), _held(document)
    if before == after or isinstance(after, Fault):
        return
    files = document["model"].get("checkpoint", document["model"]["layout"])
    model = {key: value for key, value in document["model"].items() if key not in ("layout", "checkpoint")}
    document["model"] = model | ({"layout": after} if after else {}) | ({"checkpoint": files} if after != files else {})
    document.pop("expected", None)
    peak = recipe["memory"].get("loading_peak_bytes")
    if document["memory"].get("loading_peak_bytes") == peak:
        document["memory"].pop("loading_peak_bytes", None)


def _held(recipe: Document) -> dict[str, Any] | Fault | None:
    """Return the layout, a fault, or None for one that is not known."""
    model, args = recipe["model"], recipe["args"]
    files = model.get("checkpoint", model.get("layout"))
    if files is None or conditions.settings_in(recipe, table()["unknown"]):
        return None
    version = recipe["engine"]["version"]
    plain = all(width == PLAIN for part, width in files.items() if part != "drafter")
    drafter = recipe.get("drafter", {}).get("config", {}).get("quantization")
    changes = []
    for change in (
        _change("args.quantization", args.get("quantization"), plain, version),
        _composed(args, plain, version),
        _change("drafter.config.quantization", drafter, _width(files, "drafter") == PLAIN, version),
    ):
        if not isinstance(change, dict):
            return change
        changes.append(change)
    quantised, composed, drafting = changes
    held = {part: _changed(part, width, {**quantised, **composed}) for part, width in files.items()}
    return {**held, "drafter": drafting["linear"]} if "linear" in drafting else held


def _changed(part: str, width: Any, change: Change) -> Any:
    kind = "linear" if part in LINEAR else part
    return change.get(kind, width) if width == PLAIN else width


def _change(place: str, name: object, plain: bool, version: str) -> dict[str, str] | Fault | None:
    """Return what a method makes of weights: `plain` ones of 16 bits, or prequantised ones. None is not known."""
    name = str(name or None)
    if name == "None":
        return {}
    row, advance = table()["online"].get(name), name in table()["advance"]
    if not plain:
        online_only = row is not None and not advance
        what = f"{place}: {name}, and model.layout has files that are quantised"
        return Fault(what, f"no {place}") if online_only else {}
    return _online(place, name, row, version) if row or advance else None


def _online(place: str, name: str, row: Document | None, version: str) -> dict[str, str] | Fault:
    """Return what a method makes of weights of 16 bits: `row` of the table, if it is for this version."""
    if row and conditions.version_matches(row, version):
        return {kind: row[kind] for kind in ("linear", "experts") if kind in row}
    if row and "instead" in row:
        return Fault(f"{place}: {name} with vLLM {version}, which takes it for quantised files only", row["instead"])
    quantises = ", ".join(_quantising(version))
    return Fault(f"{place}: {name}, and the files are {PLAIN}", f"no {place}, or one of {quantises}")


def _composed(args: Document, plain: bool, version: str) -> dict[str, str] | None:
    """Return what quantization-config makes of weights of 16 bits."""
    config = flag_types.parsed(
        args.get("quantization-config", engine_arguments.joined(args).get("quantization-config"))
    )
    if not config:
        return {}
    if not plain and numbers(version) < numbers(table()["composes_since"]):
        return None
    change = {}
    for key, kind in (("linear", "linear"), ("moe", "experts")):
        name = config.get(key) if isinstance(config, dict) else None
        if name is not None:
            width = table()["online"].get(name, {}).get(kind) if isinstance(name, str) else None
            if width is None:
                return None
            change[kind] = width
    return change


def _quantising(version: str) -> list[str]:
    return [name for name, row in table()["online"].items() if conditions.version_matches(row, version)]


def _flag_for(recipe: Document, stated: Document) -> str:
    """Return the flag with which the engine holds what a layout says, as the beginning of what is expected."""
    args = {name: value for name, value in recipe["args"].items() if name != "quantization"}
    for name in (None, *_quantising(recipe["engine"]["version"])):
        held = _held({**recipe, "args": {**args, "quantization": name}})
        if isinstance(held, dict) and not _differing(stated, held):
            return f"{f'args.quantization: {name}' if name else 'no args.quantization'}, or "
    return ""


def _differing(one: Document, other: Document) -> list[str]:
    return [part for part in {**one, **other} if _width(one, part) != _width(other, part)]


def _width(names: Mapping[str, Any], part: str) -> Any:
    """Return the width of a part: its own, that of the part that it follows, or 16 bits."""
    if part in names:
        return names[part]
    return _width(names, PARTS[part]) if PARTS.get(part) else PLAIN
