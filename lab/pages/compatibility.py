"""docs/reference/compatibility.md: the known issues as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lab.pages.markdown import table
from vllm_spark.recipe import known_issues
from vllm_spark.recipe.conditions import Conditions
from vllm_spark.recipe.known_issues import KnownIssue

HEAD = """\
# Known issues

`make docs` writes this page from `recipes/compatibility.yml`; do not edit it. The toolkit refuses a recipe that
has an issue of the first table. `-e accept_known_issue=ID` accepts the issue, and `deployed.json` records that. Issues
of the second table are shown as a warning. #N is an issue or pull request of vllm-project/vllm.
"""
COLUMNS = ("id", "issue", "condition", "symptom", "alternative", "source")


def text() -> str:
    """Return the page."""
    parts = [HEAD.rstrip()]
    for level, title in (("refuse", "Refused"), ("warn", "Warned about")):
        rows = (_row(issue) for issue in known_issues.load() if issue.level == level)
        parts.append(f"## {title}\n\n{table(COLUMNS, rows)}")
    return "\n\n".join(parts) + "\n"


def _row(issue: KnownIssue) -> tuple[str, ...]:
    condition = where(issue.when, issue.unless)
    return (issue.id, issue.what, condition, issue.error or "no message", issue.instead, issue.source)


def where(when: Conditions, unless: Sequence[Conditions]) -> str:
    """Return the conditions of a row in words."""
    excluded = "; ".join(f"not if {_condition(conditions)}" for conditions in unless)
    return "; ".join(part for part in (_condition(when), excluded) if part)


def _condition(conditions: Conditions) -> str:
    return ", ".join(part for name, value in conditions.items() for part in _condition_parts(name, value))


def _condition_parts(name: str, value: Any) -> Iterator[str]:
    if name == "engine":
        yield _versions(value)
    elif name in {"args", "env"}:
        for setting, rule in value.items():
            flag = f"{'--' if name == 'args' else ''}{setting}"
            value = rule.get("is", rule.get("has"))
            yield f"{flag} {'set' if rule['set'] else 'not set'}" if "set" in rule else f"{flag} {value}"
    elif name == "settings":
        for setting, pattern in value.items():
            yield f"{setting} `{pattern}`" if pattern else f"{setting} set"
    elif name == "nodes":
        yield f"{value} Spark{'s' if value > 1 else ''}"
    elif name == "split":
        yield "Sparks that share a layer" if value else "no shared layer"
    elif name == "drafter":
        yield "a drafter" if value == "any" else "the MTP drafter"
    elif name == "kv_connector":
        yield "a KV connector" if value else "no KV connector"
    elif name == "closed":
        yield "behind the edge" if value else "without the edge"
    else:
        yield f"{name.replace('_', ' ')} `{value}`"


def _versions(versions: Mapping[str, str]) -> str:
    since = f"vLLM {versions['since']} and later" if "since" in versions else "vLLM"
    below = f" before {versions['below']}" if "below" in versions else ""
    builds = f", or builds `{versions['or_builds']}`" if "or_builds" in versions else ""
    return f"{since}{below}{builds}"
