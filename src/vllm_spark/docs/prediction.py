"""docs/reference/prediction.md: how memory and speed are predicted, and how far that was right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm_spark.core import units
from vllm_spark.core.units import GB, GIB
from vllm_spark.recipe import architecture
from vllm_spark.sizing import kv_cache, measured_memory, memory, reference_spark, reported_speeds, roofline
from vllm_spark.sizing.reported_speeds import Row, Summary
from vllm_spark.sizing.roofline import Constants

HEAD = """\
# Memory and speed, predicted

`vllm-spark plan RECIPE` and `ansible-playbook plan.yml` say before a download whether a recipe fits and how fast it
will decode. This page is made by `vllm-spark docs` from `src/vllm_spark/sizing/reported_speeds.yml`,
`src/vllm_spark/sizing/measured_memory.yml` and `recipes/architectures`; do not edit it.

## Speed

    step     = (weights + cache) / (TP x bandwidth) + layers x t_layer + t_step
               + (2 x layers + 1) x t_all_reduce            with two Sparks
               + N x (drafter / (TP x bandwidth) + t_draft)   with a drafter of N tokens
    tok/s    = (1 + N x acceptance) / step                  of each sequence
    weights  = attention + MLP + router + head + experts of one token x U
    U        = (1 - (1 - k/E)^asking) x E/k                 k of E experts a token; tokens that share one read it once
    asking   = (1 + (streams - 1) x apart_sequences) x (1 + N x apart_drafts)
    cache    = streams x sum over layers of 2 x kv_heads x head_size x width x min(context, window)

Bytes come from the layout of the tensors, not from the name of a repository: nvidia's NVFP4 of the 31B keeps its
attention in BF16 and reads as much as full FP8, and the head stays BF16 everywhere.
"""

CLAIM = """\
The interval that is printed is ±{alone:.0%} for one Spark, ±{more:.0%} for two or with a drafter. It is wider than
the mean error above on purpose: operators differ by 8 % on one and the same configuration. The rows of the seeds
are eleven configurations from five reports, not 30 facts, and the constants were set by hand on them. What is
claimed for a configuration that is not in these tables is the share of the rows held back, {share:.0%} inside 15 %
({inside} of {rows}), and no more; those are the same two models but for one row, so expect less of a third.

A drafter needs the share of its tokens that is accepted. Without a measured one the figures are those for
{prose:.0%} and {code:.0%}, which field report 004 saw on prose and on code. Speed with a drafter is a property of
the text, too.
"""

SITE = """\
A site that has measured its own puts them into `vllm_roofline` (inventories/sample). t_all_reduce is the one worth it:
pairs were seen at 35 us and at 75 to 117 us; nccl-tests' all_reduce_perf at 10 KB tells.
"""

MEMORY = """\
## Memory

The engine reserves `gpu-memory-utilization` x the whole memory, which on a Spark is 121.7 GiB, and refuses to start
if less is available on the host. Of that it takes the weights, a workspace, and gives the rest to the cache. While
it loads and profiles it may take more: with `--quantization fp8` the BF16 files are in memory first (field report
003: 59 GB), and `vllm#46307` reports a profiling run far above the share.

The weights are what the layout makes of the architecture, with the head, the rotary tables (0.4 GB for Gemma 4, on
every rank), the vision tower unless `language-model-only`, and the drafter. V of the full layers is K in the files
and a second copy in memory.
"""

CACHE = """\
### What a number of tokens means

Gemma 4 has layers that keep everything and layers that keep a window. vLLM takes blocks for both from one pool:
layers form groups of equal size, a block holds 16 tokens of a group of sliding layers, or as many of full ones as
its bytes allow. For one token of the 31B with an FP8 cache:

- {full:,} B are what its 10 full layers keep, and what a context grows by;
- {all_layers:,} B are all 60 layers while the window is not full;
- {logged:,} B are what vLLM 0.19's `GPU KV cache size` divides by: 6 groups of 10 layers, each padded to the bytes of a
  sliding one. Hence 66.95 GiB were "146,240 tokens" in field report 001.

From 0.20 on that line is `Maximum concurrency` x max-model-len instead. Neither is the number of tokens that fit.
Our figure is the number of requests of the longest context, and the bytes of one: every full group for the whole
context, every sliding one for its window and one batch (`max-num-batched-tokens`), in blocks. It is vLLM's own
`Maximum concurrency`:
"""


def text() -> str:
    """The page."""
    return "\n".join(
        [HEAD, *_constants(), *_errors(), *_terms(), *_layouts(), MEMORY, *_loaded(), *_reserved(), *_cache()]
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    ruled = ["---"] * len(columns)
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, ruled, *rows)) + "\n"


def _constants() -> Iterator[str]:
    c = Constants()
    rows = [
        ("bandwidth", f"{c.bandwidth / GB:.0f} GB/s", "a saturating read reaches 231 to 234 of the 273 GB/s"),
        ("t_layer", f"{c.layer_dense_s * 1e3:.3f} ms", "launches, norms, rotary embedding; `layer_dense_s`"),
        ("t_layer, with experts", f"{c.layer_experts_s * 1e3:.3f} ms", "and routing, sorting; `layer_experts_s`"),
        ("t_step", f"{c.step_s * 1e3:.1f} ms", "sampler, scheduler, HTTP; `step_s`"),
        ("t_all_reduce", f"{c.all_reduce_s * 1e3:.3f} ms", "between two Sparks; `all_reduce_s`"),
        ("t_draft", f"{c.draft_s * 1e3:.1f} ms", "launches of one drafted token; `draft_s`"),
        ("apart_sequences", f"{c.apart_sequences:.2f}", "how far other sequences ask other experts"),
        ("apart_drafts", f"{c.apart_drafts:.2f}", "how far one sequence's drafted tokens do"),
    ]
    yield table(("constant", "value", "what it is; name in `vllm_roofline`"), rows)
    yield SITE


def _errors() -> Iterator[str]:
    seeds, held = reported_speeds.rows("seeds"), reported_speeds.rows("held_back")
    found, judged = _summary(seeds), _summary(held)
    yield "### The rows of the seeds\n"
    yield _row_table(seeds)
    yield _said(found)
    napkin = reported_speeds.summary([row.naive_error() for row in seeds])
    yield (
        "naive is the active weights at the width on the label over 273 GB/s and nothing else: "
        f"mean error {napkin.mean:.0%}, {napkin.inside} of {napkin.rows} inside 15 %.\n"
    )
    yield "### Rows held back\n\nFrom other reports. The constants were set without them and stay so.\n"
    yield _row_table(held)
    yield _said(judged)
    yield CLAIM.format(
        alone=roofline.INTERVAL_ALONE,
        more=roofline.INTERVAL_PAIR_OR_DRAFTER,
        share=judged.share_inside,
        inside=judged.inside,
        rows=judged.rows,
        prose=roofline.ACCEPTED_PROSE,
        code=roofline.ACCEPTED_CODE,
    )
    yield "### Reported, and above what can be\n"
    rows = [
        (row.id, _figure(row.measured), _figure(row.step().tokens_per_s), row.source)
        for row in reported_speeds.rows("disputed")
    ]
    yield table(("row", "reported tok/s", "at 100 % acceptance", "source"), rows)
    yield "### Reported, and not judged\n"
    yield "".join(f"- {entry['what']}: {entry['why']}.\n" for entry in reported_speeds.document()["not_judged"])


def _row_table(rows: Sequence[Row]) -> str:
    shown = [
        (
            row.id,
            _figure(sum(row.step().read.values()) / GB),
            _figure(row.step().tokens_per_s),
            _figure(row.measured),
            f"{row.error():+.1%}",
            f"{row.naive_error():+.0%}",
            row.source,
        )
        for row in rows
    ]
    return table(("row", "GB a step", "predicted tok/s", "measured", "error", "naive", "source"), shown)


def _summary(rows: Sequence[Row], constants: Constants | None = None) -> Summary:
    return reported_speeds.summary([row.error(constants) for row in rows])


def _said(found: Summary) -> str:
    return (
        f"{found.rows} rows: mean absolute error {found.mean:.1%}, largest {found.largest:.1%}, "
        f"{found.inside} of {found.rows} inside 15 %.\n"
    )


def _terms() -> Iterator[str]:
    """Each term left out, with the same other constants: is it needed?"""
    c = Constants()
    variants = {
        "all terms": c,
        "bandwidth 273 GB/s": replace(c, bandwidth=273e9),
        "no overhead of layers and steps": replace(c, layer_dense_s=0, layer_experts_s=0, step_s=0),
        "drafted tokens cost their bytes alone": replace(c, draft_s=0),
        "all tokens share their experts": replace(c, apart_sequences=0, apart_drafts=0),
        "no token shares its experts": replace(c, apart_sequences=1, apart_drafts=1),
        "all-reduces are free": replace(c, all_reduce_s=0),
    }
    rows = reported_speeds.rows("seeds")
    yield "### Is every term needed?\n\nThe rows of the seeds again, one term left out, the others as they are.\n"
    found = {name: _summary(rows, constants) for name, constants in variants.items()}
    shown = [(n, f"{s.mean:.1%}", f"{s.largest:.0%}", f"{s.inside} of {s.rows}") for n, s in found.items()]
    yield table(("variant", "mean error", "largest", "inside 15 %"), shown)


def _layouts() -> Iterator[str]:
    yield (
        "### What one token reads\n\nGB of weights at one stream without a cache. Bytes per weight: "
        + ", ".join(f"{name} {width}" for name, width in roofline.WIDTHS.items())
        + ".\n"
    )
    shown = []
    for name, layout in reported_speeds.document()["layouts"].items():
        for model in ("gemma-4-31b", "gemma-4-26b-a4b"):
            found = architecture.load(model)
            if bool(found.experts) == ("experts" in layout) or name in {"bf16", "fp8", "nvfp4"}:
                shown.append(_layout_row(name, model, layout))
    yield table(
        ("layout", "model", "attention", "MLP", "experts", "head", "together", "ceiling tok/s at 273 GB/s"), shown
    )


def _layout_row(name: str, model: str, layout: Mapping[str, Any]) -> tuple[str, ...]:
    read = roofline.weight_bytes(architecture.load(model), reported_speeds.mixed(layout), roofline.Load(), Constants())
    parts = [f"{read[part] / GB:.2f}" if part in read else "-" for part in ("attention", "mlp", "experts", "head")]
    total = sum(read.values())
    return (name, model, *parts, f"{total / GB:.2f}", f"{273e9 / total:.1f}")


def _loaded() -> Iterator[str]:
    shown = []
    for entry in measured_memory.of("loaded"):
        made = sum(measured_memory.model(entry).held_bytes(entry.get("tensor_parallel", 1)).values()) / GIB
        shown.append(
            (entry["id"], f"{made:.2f}", f"{entry['seen']:.2f}", f"{made / entry['seen'] - 1:+.1%}", entry["source"])
        )
    yield table(("weights of one rank", "predicted GiB", "seen", "error", "source"), shown)


def _reserved() -> Iterator[str]:
    total = reference_spark.MEMORY["total"] / GIB
    shown = []
    for entry in measured_memory.of("reserved"):
        reserved = entry["utilization"] * total
        rest = f"{reserved - entry['weights'] - entry['cache']:.2f}" if "cache" in entry else "-"
        seen = f"{entry['seen']:.2f}" if "seen" in entry else "-"
        shown.append((entry["id"], f"{entry['utilization']:.2f}", f"{reserved:.2f}", seen, rest, entry["source"]))
    columns = ("engine", "share", "reserved GiB", "seen in use", "neither weights nor cache", "source")
    yield table(columns, shown)
    yield (
        "The workspace (activations, CUDA graphs, what CUDA itself takes) is allowed "
        f"{units.gib(memory.WORKSPACE_BYTES)}. CUDA graphs are 0.05 to 0.62 GiB of it in\ntests/data/engine-logs; "
        "from 0.20 on the engine counts an estimate of them, so one share leaves less cache than in 0.19.\n"
    )


def _cache() -> Iterator[str]:
    model = architecture.load("gemma-4-31b")
    cache = kv_cache.of(model, 1.0)
    groups = sum(group.count for group in cache.groups)
    yield CACHE.format(
        full=int(roofline.cache_bytes(model, 10001, 1.0) - roofline.cache_bytes(model, 10000, 1.0)),
        all_layers=int(roofline.cache_bytes(model, 1, 1.0)),
        logged=groups * cache.block_bytes // kv_cache.BLOCK_TOKENS,
    )
    shown = []
    for entry in measured_memory.of("cache"):
        model = architecture.load(entry["architecture"])
        cache = kv_cache.of(model, roofline.WIDTHS[entry["kv"]], entry.get("tensor_parallel", 1))
        room, load = entry["room"] * GIB, (entry["context"], entry["batched"])
        tokens = cache.logged_tokens(room, *load, entry.get("before_0_20", False))
        seen = f"{entry['requests']:.2f}" if "requests" in entry else "-"
        requests = f"{cache.requests(room, *load):.2f}"
        shown.append(
            (
                entry["id"],
                f"{entry['room']}",
                f"{load[0]}",
                requests,
                seen,
                f"{tokens:,}",
                f"{entry['tokens']:,}",
                entry["source"],
            )
        )
    columns = ("cache", "GiB", "context", "requests", "seen", "tokens as logged", "seen", "source")
    yield table(columns, shown)


def _figure(value: float) -> str:
    return f"{value:.2f}"
