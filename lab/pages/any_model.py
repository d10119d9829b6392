"""lab/forecast/any-model.md: `recipe new` for models that owners run, beside public figures."""

from __future__ import annotations

from lab.forecast import any_model, reported_speeds
from lab.pages import markdown

HEAD = """\
# Models that owners run

`make docs` writes this page from any_model.yml; do not edit it. `python -m lab.forecast.any_model` prints the table.

`vllm-spark recipe new` wrote a recipe of each model from its config.json and the widths of its checkpoint, for as many
Sparks as the public figure has. The forecast is that of the recipe, for one stream without a drafter at the context of
the figure; both are the decode in tok/s. `fitted` says that the constants were fitted to the figure. Without a forecast
the recipe has open questions, or there is none.
"""

COLUMNS = ("model", "recipe new", "forecast", "public", "error", "fitted", "source of the public figure")


def text() -> str:
    """Return the page."""
    results = any_model.results()
    rows = [
        (
            one.model,
            one.made,
            f"{one.speed:.1f}" if one.speed else "-",
            f"{one.measured:.1f}",
            f"{one.error:+.0%}" if one.error is not None else "-",
            "yes" if one.fitted else "no",
            one.source,
        )
        for one in results
    ]
    lines = []
    for label, fitted in (("fitted", True), ("not fitted", False)):
        errors = [one.error for one in results if one.error is not None and one.fitted is fitted]
        found = reported_speeds.summary(errors)
        lines.append(
            f"- {label}: {found.rows} models, mean error {found.mean:.1%}, {found.inside} inside 15 %, "
            f"largest {found.largest:.0%}"
        )
    return "\n".join([HEAD, *lines, "", markdown.table(COLUMNS, rows)]) + "\n"
