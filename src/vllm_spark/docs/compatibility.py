"""docs/reference/compatibility.md: the known issues, as an operator looks them up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_spark.recipe import known_issues
from vllm_spark.recipe.known_issues import Conditions, KnownIssue

HEAD = """\
# Known issues

Made by `vllm-spark docs` from `recipes/compatibility.yml`; do not edit it. A recipe that has one of the first table is
refused with its text; `-e accept_known_issue=ID` goes on all the same and `deployed.json` records it. Those of the
second table are shown. #N is an issue or pull request of vllm-project/vllm.
"""


def text() -> str:
    """The page."""
    issues = known_issues.load()
    parts = [HEAD]
    for level, title in (("refuse", "Refused"), ("warn", "Shown")):
        rows = [_row(issue) for issue in issues if issue.level == level]
        parts.append(
            "\n".join(
                [
                    f"## {title}",
                    "",
                    "| id | what | when | shows as | instead | source |",
                    "|---|---|---|---|---|---|",
                    *rows,
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def _row(issue: KnownIssue) -> str:
    unless = "; ".join(f"not if {_words(set_)}" for set_ in issue.unless)
    when = "; ".join(part for part in (_words(issue.when), unless) if part)
    cells = [issue.id, issue.what, when, issue.error or "nothing", issue.instead, issue.source]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _words(conditions: Conditions) -> str:
    return ", ".join(word for name, wanted in conditions.items() for word in _said(name, wanted))


def _said(name: str, wanted: Any) -> Iterator[str]:
    if name == "engine":
        yield _versions(wanted)
    elif name in {"args", "env"}:
        for setting, rule in wanted.items():
            shown = f"{'--' if name == 'args' else ''}{setting}"
            yield f"{shown} {rule['is']}" if "is" in rule else f"{shown} {'set' if rule['set'] else 'not set'}"
    elif name == "nodes":
        yield f"{wanted} Spark{'s' if wanted > 1 else ''}"
    elif name == "drafter":
        yield "a drafter" if wanted == "any" else "the MTP drafter"
    else:
        yield f"{name.replace('_', ' ')} `{wanted}`"


def _versions(wanted: Mapping[str, str]) -> str:
    since = f"vLLM {wanted['since']} and later" if "since" in wanted else "vLLM"
    below = f" before {wanted['below']}" if "below" in wanted else ""
    builds = f", or builds `{wanted['or_builds']}`" if "or_builds" in wanted else ""
    return f"{since}{below}{builds}"
