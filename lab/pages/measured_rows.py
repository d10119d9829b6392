"""lab/forecast/measured-rows.md: every measured row beside its prediction. Its errors by family are on the page
of the prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.forecast import measured_rows, reported_speeds
from lab.forecast.measured_rows import Errors
from lab.pages import causes, gathered_rows, markdown
from vllm_spark.sizing import acceptance, constants

HEAD = """\
# Measured rows and their prediction

`make docs` writes this page from the files beside it; do not edit it. The page of the
[prediction](../../docs/reference/prediction.md) has the formula, the constants and the errors by family.
"""

CLAIM = """\
These are the rows of lab/forecast/measured, measured/gathered and measured/unseen, to which the constants are fitted.
An operator counts as much as his rows of a kind to the power 0.4. The next table has the errors of operators who were
left out of the fit, and of those whom it has not met, each counted once. The printed interval holds about 90 % of their
figures; the largest that applies to a load counts. Beside a factor that the owner's own bench gave it is that of other
loads of one server. A third of the unmet operators was held back from all of this:
[operators-left-out.md](../../lab/forecast/operators-left-out.md) has what the interval holds of theirs. The acceptance
of a drafter depends on the text, so `plan` shows the speed at that of each kind of text apart.
[Each row](../../lab/forecast/measured-rows.md) stands beside its prediction, also those that were held back and those
that came later.
"""

HELD_BACK = """\
## Rows that were held back

No constant was fitted to these rows. They are a third of the public configurations,
chosen by the sha256 of their names before the fit, and were predicted once, when the fit had ended
(lab/forecast/measured/held-back). The pairs of MiniMax, Nemotron and Qwen3.6 miss: the fit has one, no and
two rows of them.
"""

CONFIGURATIONS = """\
## Configurations of the fitted rows

The rows of djangodevreng/dgx-spark-benchmarks are under CC BY 4.0; their columns were renamed and the rows grouped.
"""

LATER = """\
## Rows that came later

Nobody used these rows: they became known here when constants, intervals and the rows above were settled
(lab/forecast/measured/later). They are those of edurdias/capyctl-recipes on vLLM 0.30.0, which has two recipes
of this catalogue at the same commits.
"""

GOALS = """\
## What misses, and why

- jvr0x's rows contradict others: 12.2 tok/s of each of 16 streams of Gemma 26B in BF16 against djangodevreng's 10.5 of
  10; his streams of Qwen3.6-35B beyond 8 are up to 34 % faster than predicted.
- Routing depends on the text. Long outputs (llama-benchy's test 03) repeat themselves and use fewer experts than short
  answers to long prompts. Streams of one text with greedy sampling use the same experts: their rows are marked `alike`.
- A first token differs by a factor of two between operators of one model, mostly of Qwen3.6-35B. Their engines have
  other versions and kernels, and getainode's Spark is slow. An owner's own measurement is the way to know it.
- Speculative decoding of styles01 and EmanueleMeazzo is 10 to 80 % slower than predicted at the acceptance that they
  state, which was measured on another text than the speed.
- NVFP4 of a dense Llama 70B is predicted a third too fast: one row; heitor-mocelin's six rows of it are right.
- Pairs of MiniMax and Nemotron Super in NVFP4 of two operators are predicted 10 to 50 % too fast, others' are right.
  One latency of the all-reduce serves all of them, and reports have 10 to 117 us.
- Acceptance by number of tokens is that of one drafter on code (field report 004), and is carried over to others.

"""

FIRST_TOKEN_INSIDE = 0.25


KINDS = {
    "speed": "one Spark",
    "many": "16 and more streams",
    "drafter": "a drafter, at the measured acceptance",
    "several": "several Sparks",
    "first_token": "first token",
    "depth": f"first token of {constants.DEEP:,} tokens and more",
}
OWN = {"speed": "speed of a server with its factor", "first_token": "first token of a server with its factor"}


def by_family() -> Iterator[str]:
    """Yield the section of the page of the prediction: errors of the fitted rows, and of operators left out."""
    yield "### Public rows\n"
    yield _table(measured_rows.FITTED, "fitted rows")
    yield CLAIM
    entry = constants.spark()
    cells = [
        (names[kind], str(held["rows"]), str(held["operators"]), f"{held['median']:.1%}", f"±{held['spread']:.0%}")
        for names, group in ((KINDS, entry["held_out"]), (OWN, entry["own"]))
        for kind, held in group.items()
    ]
    columns = ("operators who were left out or not met", "rows", "operators", "median", "interval")
    yield markdown.table(columns, cells) + "\n"


def text() -> str:
    """Return the page."""
    return "\n".join([HEAD, *_parts()])


def _parts() -> Iterator[str]:
    yield HELD_BACK
    yield _table([measured_rows.HELD_BACK], "held back rows")
    yield from causes.parts()
    yield LATER
    yield _table([measured_rows.LATER], "later rows")
    yield from gathered_rows.parts()
    yield CONFIGURATIONS
    yield from _configurations()
    yield from _dropped()
    yield from _seeds()
    yield GOALS
    yield _acceptance()


def _table(folders: Sequence[Path], rows: str) -> str:
    """Return the errors by family of the rows of some folders."""
    found = measured_rows.errors(measured_rows.configurations(*folders))
    columns = ("family", rows, "mean", "inside 15 %", "first token rows", "mean", "inside 25 %")
    return markdown.table(columns, [[name, *_fitted(errors)] for name, errors in sorted(found.items())]) + "\n"


def _fitted(errors: Errors) -> list[str]:
    speed, first = [abs(e) for e in errors.speed], [abs(e) for e in errors.first_token]
    cells = [str(len(speed)), _mean(speed), _inside(speed, reported_speeds.INSIDE)]
    return [*cells, str(len(first)), _mean(first), _inside(first, FIRST_TOKEN_INSIDE)]


def _mean(errors: Sequence[float]) -> str:
    return f"{sum(errors) / len(errors):.1%}" if errors else "-"


def _inside(errors: Sequence[float], limit: float) -> str:
    return f"{sum(error <= limit for error in errors) / len(errors):.0%}" if errors else "-"


def _configurations() -> Iterator[str]:
    """Yield a row for each configuration and protocol. The rows themselves are in the files."""
    yield "| configuration | protocol | rows | mean | largest | first token mean | source |"
    yield "|---|---|---|---|---|---|---|"
    for entry in measured_rows.configurations():
        errors = Errors()
        for row in entry.rows:
            errors.add(entry, row, entry.served(row))
        speed, first = [abs(e) for e in errors.speed], [abs(e) for e in errors.first_token]
        largest = f"{max(speed):.0%}" if speed else "-"
        cells = (entry.id, entry.protocol, str(len(entry.rows)), _mean(speed), largest, _mean(first), entry.source)
        yield markdown.row(cells)
    yield "\nProtocols:\n"
    yield "".join(f"- {key}: {text}\n" for key, text in measured_rows.protocols().items())


def _dropped() -> Iterator[str]:
    yield "Rows that are not predicted; lab/forecast/measured/dropped.yaml has their names:\n"
    yield "".join(f"- {len(entry['ids'])} rows: {entry['reason']}.\n" for entry in measured_rows.dropped())


def _seeds() -> Iterator[str]:
    """Yield the rows of the field reports, and those of other reports that joined them."""
    yield "## Rows of the field reports\n"
    groups = (("seeds", "Field reports:"), ("held_back", "Other reports, which are in the fit of Gemma 4 as well:"))
    for group, title in groups:
        rows = reported_speeds.rows(group)  # type: ignore[arg-type]
        cells = [
            (
                row.id,
                f"{row.step().tokens_per_s:.2f}",
                f"{row.measured:.2f}",
                f"{row.error():+.1%}",
                f"{row.naive_error():+.0%}",
                row.source,
            )
            for row in rows
        ]
        columns = ("row", "predicted tok/s", "measured tok/s", "error", "naive error", "source")
        yield f"{title}\n"
        yield markdown.table(columns, cells) + "\n"
        summary = reported_speeds.summary([row.error() for row in rows])
        yield (
            f"{summary.rows} rows: mean absolute error {summary.mean:.1%}, largest {summary.largest:.1%}, "
            f"{summary.inside} of {summary.rows} inside 15 %.\n"
        )
    yield (
        "The naive prediction divides 273 GB/s by the bytes of the active weights at the width in the checkpoint's "
        "name.\n"
    )
    yield "Reported speeds that are above what 100 % acceptance gives:\n"
    disputed = [
        (row.id, f"{row.measured:.1f}", f"{row.step().tokens_per_s:.1f}", row.source)
        for row in reported_speeds.rows("disputed")
    ]
    yield markdown.table(("row", "reported tok/s", "at 100 % acceptance", "source"), disputed) + "\n"
    yield "".join(f"- {e['what']}: {e['why']}.\n" for e in reported_speeds.document()["not_predicted"])


def _acceptance() -> str:
    """Return the table of acceptance by number of drafted tokens."""
    prose = acceptance.power_of(acceptance.PROSE_TOKENS, acceptance.PROSE)
    counts = [1, *acceptance.CODE, 8]
    code = [acceptance.Share("code", 4, 0.76)]
    cells = [
        ("code", *(f"{acceptance.expected(count, code)[0].rate:.0%}" for count in counts)),
        ("prose", *(f"{acceptance.share(count, prose):.0%}" for count in counts)),
    ]
    return (
        "## Acceptance\n\nThe share of the drafted tokens that is accepted falls with their number. Field report 004 "
        "measured 2 to 6 on code, and 4 on\nprose; a share of another number of tokens, text or drafter is carried "
        "over along this curve.\n\n" + markdown.table(("drafted tokens", *map(str, counts)), cells) + "\n"
    )
