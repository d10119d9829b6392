"""Known issues: combinations of engine, image and model that do not work, from recipes/compatibility.yml.

`refusals` and `notes` are what every command says of a recipe, with what the engine itself refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from vllm_spark.core import documents, paths
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.ports import LOOPBACK
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.recipe import conditions, engine_arguments, host_memory, kept_files
from vllm_spark.recipe.conditions import Conditions, Subject

BAD_COMPATIBILITY = register("bad-compatibility", runbook="recipe-refused")
UNKNOWN_KNOWN_ISSUE = register("unknown-known-issue", runbook="known-issue")
SHARED_MEMORY = register("shared-memory-too-small", runbook="container-shm")

FILE = paths.RECIPES / "compatibility.yml"


@dataclass(frozen=True, slots=True)
class KnownIssue:
    """One entry of the file. recipes/compatibility.yml explains the fields."""

    id: str
    level: str  # refuse or warn
    what: str
    when: Conditions
    error: str
    instead: str
    source: str
    unless: Sequence[Conditions] = ()


def of_closed(recipe: Document, secrets: Collection[str] | None = None) -> Subject:
    """Return the subject of an engine behind the edge, which has no address on the network. Without `secrets` every
    secret that the recipe names counts as set."""
    return Subject(recipe, recipe.get("secrets", ()) if secrets is None else secrets, LOOPBACK, closed=True)


@lru_cache
def load(file: Path = FILE) -> tuple[KnownIssue, ...]:
    """Read and check the file. Raises RefusedError with every fault of it."""
    from vllm_spark.core import schema  # noqa: PLC0415  importing jsonschema takes a tenth of a second

    try:
        document = documents.read_yaml(file)
        faults = list(schema.faults(document, paths.RECIPES / "compatibility.schema.json"))
    except DocumentError as error:
        faults = [error.fault]
    if faults:
        raise RefusedError(
            BAD_COMPATIBILITY(what=f"{file.name}: {fault.what}", expected=fault.expected, fix=f"correct {file.name}.")
            for fault in faults
        )
    return tuple(issue for entry in document["issues"] for issue in _issues(entry))


def _issues(entry: dict[str, Any]) -> Iterator[KnownIssue]:
    """Yield the issue of an entry, or one for each name in its `each`."""
    each = entry.pop("each", None)
    if each is None:
        yield KnownIssue(**entry)
        return
    for name, settings in each.items():
        yield KnownIssue(**{**entry, "id": name, "what": f"{name} {entry['what']}", "when": {"settings": settings}})


def matching_issues(subject: Subject) -> list[KnownIssue]:
    """Return the issues that apply to a recipe, in the file's order."""
    return [issue for issue in load() if applies(issue, subject)]


def applies(issue: KnownIssue, subject: Subject) -> bool:
    """Return True if an issue is one of a recipe's."""
    return conditions.applies(issue.when, issue.unless, subject)


def refusals(subject: Subject, accepted: Collection[str]) -> Iterator[Refusal]:
    """Yield a refusal per issue that applies and is not accepted, per accepted id that does not exist, and per value
    that the engine refuses or ignores."""
    name, version = subject.recipe["name"], subject.recipe["engine"]["version"]
    for issue in matching_issues(subject):
        if issue.level == "refuse" and issue.id not in accepted:
            symptom = f', which shows as "{issue.error}"' if issue.error else ""
            source = f"known issue {issue.id}, {issue.source}"
            yield register(issue.id, runbook="known-issue")(
                what=f"recipe {name} with vLLM {version}: {issue.what}{symptom} ({source})",
                expected="a combination without a known issue",
                fix=f"{issue.instead}. To deploy it anyway: -e accept_known_issue={issue.id}.",
            )
    known = [*(issue.id for issue in load()), engine_arguments.ENGINE_ARGUMENTS.id]
    for unknown in sorted(set(accepted) - set(known)):
        yield UNKNOWN_KNOWN_ISSUE(
            what=f"accept_known_issue names {unknown}",
            expected="an id of recipes/compatibility.yml",
            fix=f"name one of {', '.join(known)}.",
        )
    yield from engine_arguments.refusals(subject.recipe, accepted)
    for fault in host_memory.shm_faults(subject.recipe):
        yield SHARED_MEMORY(what=f"recipe {name}: {fault.what}", expected=fault.expected, fix="correct the recipe.")


def notes(subject: Subject, accepted: Collection[str]) -> list[str]:
    """Return the warnings that apply to a deployment, files that it may miss, and the accepted issues, a line each."""
    issues = matching_issues(subject)
    warned = [f"{issue.what}: {issue.instead} ({issue.id})" for issue in issues if issue.level == "warn"]
    warned += [f"{field}: {question}" for field, question in kept_files.questions(subject.recipe)]
    warned += [f"accepted known issue {issue.id}: {issue.what}" for issue in issues if issue.id in accepted]
    return [*warned, *engine_arguments.notes(subject.recipe, accepted)]
