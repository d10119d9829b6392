"""A variable of the inventory that is a map: plain data that a schema and further rules accept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from vllm_spark.core.fault import Fault
from vllm_spark.core.plain_data import DocumentError, plain
from vllm_spark.core.refusal import RefusalKind, RefusedError
from vllm_spark.core.types import Document


def checked(
    raw: object, variable: str, schema_file: Path, rules: Callable[[Document], Iterable[Fault]], kind: RefusalKind
) -> Document:
    """Return the map, empty for an empty one. `rules` yields the faults that a schema cannot express. Raises
    RefusedError with every fault as a refusal of `kind`."""
    if raw == {}:
        return {}
    # Importing jsonschema takes a tenth of a second, and only this phase needs it.
    from vllm_spark.core import schema  # noqa: PLC0415

    try:
        document: Document = plain(raw)
    except DocumentError as error:
        faults = [Fault(f"{schema.location([variable, *error.path])}: {error.fault.what}", error.fault.expected)]
    else:
        faults = [*schema.faults(document, schema_file, lambda path: schema.location([variable, *path]))]
        faults = faults or [*rules(document)]
    if faults:
        fix = f"correct {variable} in the inventory."
        raise RefusedError(kind(what=fault.what, expected=fault.expected, fix=fix) for fault in faults)
    return document
