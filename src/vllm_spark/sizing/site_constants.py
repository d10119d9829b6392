"""The file of a site's measured constants: what `bench` found on the owner's Sparks, and `plan` reads.

It has a section for the Sparks of a deployment, and in it one for each recipe that was measured on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm_spark.core import documents, schema
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.node.bench.records import PROTOCOL
from vllm_spark.sizing import constants, factors
from vllm_spark.sizing.acceptance import Share
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.prediction import Prediction

CONSTANTS_REFUSED = register("constants-refused", runbook="constants-refused")

NAME = "constants.yml"
SCHEMA_FILE = Path(__file__).with_name("site_constants.schema.json")
SCHEMA = 1
# The toolkit's constants change by less than this when they are written and read as text.
ROUNDING = 1e-6
AGAIN = "vllm-spark bench constants reports/bench/*.jsonl --into"


@dataclass(frozen=True, slots=True)
class Server:
    """What was measured of a recipe on some Sparks. `constants` are the leading ones (factors.KINDS) in their units.

    `widths` are half the widths of the intervals as shares, by `speed` and `first_token`; one that is missing is not
    known. `loading_peak` is in bytes on each rank.
    """

    hosts: str
    recipe: str
    evidence: Sequence[str]
    constants: Mapping[str, float] = field(default_factory=dict)
    references: Mapping[str, float] = field(default_factory=dict)
    widths: Mapping[str, float] = field(default_factory=dict)
    acceptance: Sequence[Share] = ()
    loading_peak: int = 0

    def applied(self, known: Constants) -> Constants:
        """Return constants with those of this server."""
        return factors.applied(known, {name: value / self.references[name] for name, value in self.constants.items()})

    def narrowed(self, prediction: Prediction) -> Prediction:
        """Return a prediction with the intervals of this server, where they are narrower."""
        return replace(
            prediction,
            spread=min(prediction.spread, self.widths.get("speed", prediction.spread)),
            first_token_spread=min(
                prediction.first_token_spread, self.widths.get("first_token", prediction.first_token_spread)
            ),
        )

    def lines(self) -> Iterator[str]:
        """Yield what of a forecast is the owner's, for a person."""
        if self.constants:
            parts = [_part(kind, self.constants[kind.leading], self.references[kind.leading]) for kind in self._kinds()]
            yield f"measured on {self.hosts}: {', '.join(parts)}; the other constants are the toolkit's"
        if self.loading_peak:
            yield f"measured on {self.hosts}: the peak of loading"

    def _kinds(self) -> list[factors.Kind]:
        return [kind for kind in factors.KINDS if kind.leading in self.constants]


@dataclass(frozen=True, slots=True)
class SiteConstants:
    """The servers of a file. `file` is empty if the site has none."""

    servers: Sequence[Server] = ()
    file: str = ""

    def of(self, hosts: Sequence[str], recipe: str) -> Server | None:
        """Return what was measured of a recipe on these hosts, in their order."""
        names = ",".join(hosts)
        return next((one for one in self.servers if (one.hosts, one.recipe) == (names, recipe)), None)


def read(file: Path | None) -> SiteConstants:
    """Return the constants of a site; none for a file that does not exist. Raises RefusedError for another file."""
    if file is None or not file.exists():
        return SiteConstants()
    return SiteConstants(list(_servers(read_document(file))), str(file))


def read_document(file: Path) -> dict[str, Any]:
    """Return the document of a file. Raises RefusedError if it is no such file, or one of another version."""
    try:
        document = documents.read_yaml(file)
    except DocumentError as error:
        raise _refused(file, error.fault.what, error.fault.expected) from error
    for name, version in (("schema", SCHEMA), ("protocol", PROTOCOL)):
        found = document.get(name) if isinstance(document, dict) else None
        if found != version:
            raise _refused(file, f"{name} {schema.format_value(found)}", f"{name} {version}, that of this toolkit")
    fault = next(schema.faults(document, SCHEMA_FILE), None)
    if fault:
        raise _refused(file, fault.what, fault.expected)
    for server in _servers(document):
        _check(file, server)
    return dict(document)


def _servers(document: Mapping[str, Any]) -> Iterator[Server]:
    for hosts, recipes in document["servers"].items():
        yield from (_server(hosts, recipe, entry) for recipe, entry in recipes.items())


def impossible(name: str, value: float) -> tuple[str, str] | None:
    """Return what is seen and what is expected of a constant outside of its physical bounds, or None."""
    kind = next(kind for kind in factors.KINDS if kind.leading == name)
    least, most = constants.spark()["bounds"][name]
    if least <= value <= most:
        return None
    return f"{name} {_amount(kind, value)}", f"{_amount(kind, least)} to {_amount(kind, most)}, as a Spark has"


def _check(file: Path, server: Server) -> None:
    """Raise RefusedError for a constant that no Spark has, and for one that another toolkit's constants gave."""
    place, reference = f"servers.{server.hosts}.{server.recipe}", constants.spark()["constants"]
    for name, value in server.constants.items():
        if fault := impossible(name, value):
            raise _refused(file, f"{place}: {fault[0]}", fault[1])
        stated = server.references[name]
        if abs(stated / reference[name] - 1) > ROUNDING:
            what = f"{place}: {name} was measured against a toolkit's {stated:g}"
            raise _refused(file, what, f"{reference[name]:g}, that of this toolkit")


def _server(hosts: str, recipe: str, entry: Mapping[str, Any]) -> Server:
    values = entry.get("constants", {})
    return Server(
        hosts=hosts,
        recipe=recipe,
        evidence=entry["evidence"],
        constants={name: one["value"] for name, one in values.items()},
        references={name: one["reference"] for name, one in values.items()},
        widths=entry.get("intervals", {}),
        acceptance=[Share(one["load"], one["tokens"], one["rate"], hosts) for one in entry.get("acceptance", [])],
        loading_peak=entry.get("loading_peak_bytes", 0),
    )


def _part(kind: factors.Kind, value: float, reference: float) -> str:
    return f"{kind.what} {_amount(kind, value)} (toolkit: {_amount(kind, reference)})"


def _amount(kind: factors.Kind, value: float) -> str:
    scale, unit = {"B/s": (1e9, "GB/s"), "FLOP/s": (1e12, "TFLOP/s"), "s": (1e-3, "ms")}[kind.unit]
    return f"{value / scale:.3g} {unit}"


def _refused(file: Path, what: str, expected: str) -> RefusedError:
    fix = f"move {file} away, then `{AGAIN} {file}` writes it from the evidence."
    return CONSTANTS_REFUSED.error(what=f"{file}: {what}", expected=expected, fix=fix)
