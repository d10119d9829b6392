"""docs/reference/prediction.md: the prediction of memory and speed, and its errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from vllm_spark.core import units
from vllm_spark.core.units import GB, GIB
from vllm_spark.docs import markdown
from vllm_spark.recipe import architecture
from vllm_spark.sizing import kv_cache, measured_memory, memory, reference_spark, reported_speeds, roofline
from vllm_spark.sizing.reported_speeds import Row, Summary, Width
from vllm_spark.sizing.roofline import Constants

HEAD = """\
# Prediction of memory and speed

`vllm-spark plan RECIPE` and `ansible-playbook plan.yml` predict before a download whether a recipe fits and how fast it
decodes. `vllm-spark docs` writes this page from `src/vllm_spark/sizing/reported_speeds.yml`,
`src/vllm_spark/sizing/measured_memory.yml` and `recipes/architectures`; do not edit it.

## Speed

    step     = (weights + cache) / (TP x bandwidth) + layers x t_layer + t_step
               + (2 x layers + 1) x t_all_reduce            with two Sparks
               + N x (drafter / (TP x bandwidth) + t_draft)   with a drafter of N tokens
    tok/s    = (1 + N x acceptance) / step                  of each sequence
    weights  = attention + MLP + router + head + experts of one token x U
    U        = (1 - (1 - k/E)^requests) x E/k               k of E experts per token; an expert is read once per step
    requests = (1 + (streams - 1) x apart_sequences) x (1 + N x apart_drafts)
    cache    = streams x sum over layers of 2 x kv_heads x head_size x width x min(context, window)

The bytes depend on the layout of the tensors, not on the name of a repository. nvidia's NVFP4 checkpoint of the 31B
keeps its attention in BF16 and reads as many bytes as full FP8. The head is BF16 in every checkpoint.
"""

CLAIM = """\
The printed interval is ±{alone:.0%} for one Spark, and ±{more:.0%} for two Sparks or with a drafter. It is wider than
the mean error above on purpose: operators differ by 8 % on the same configuration. The seed rows are eleven
configurations from five reports, not 30 independent facts, and the constants were set by hand on them. The claim for a
configuration that is not in these tables is the share of the held-back rows: {share:.0%} inside 15 % ({inside} of
{rows}). All held-back rows but one are of the same two models, so expect a larger error for a third model.

The speed with a drafter depends on the share of its tokens that is accepted. Without a measured share the page and
`plan` use {prose:.0%} and {code:.0%}, which field report 004 measured on prose and on code. The share depends on the
text, too.
"""

SITE = """\
A site can set constants that it has measured in `vllm_roofline` (inventories/sample). The most useful one is
t_all_reduce: reports have 35 us and 75 to 117 us. Measure it with all_reduce_perf of nccl-tests at 10 KB.
"""

MEMORY = """\
## Memory

The engine reserves `gpu-memory-utilization` x the total memory, which is 121.7 GiB on a Spark. It refuses to start if
less is available on the host. The reservation contains the weights and a workspace; the rest is the cache. The engine
may need more while it loads and profiles: with `--quantization fp8` the BF16 files are in memory first (field report
003: 59 GB), and `vllm#46307` reports a profiling run far above the reservation.

The size of the weights follows from the architecture and the layout. It includes the head, the rotary tables (0.4 GB
for Gemma 4, on every rank), the vision tower unless `language-model-only` is set, and the drafter. V of the full layers
is stored as K in the files, and is a second copy in memory.
"""

CACHE = """\
### Meaning of a number of tokens

Gemma 4 has full layers, which keep every token, and sliding layers, which keep a window. vLLM takes blocks for both
from one pool. Layers form groups of equal size. A block holds 16 tokens of a group of sliding layers, or as many tokens
of a group of full layers as its bytes allow. For one token of the 31B with an FP8 cache:

- {full:,} B are kept by its 10 full layers; the cache grows by this per token of context;
- {all_layers:,} B are kept by all 60 layers while the window is not full;
- {logged:,} B is the divisor of `GPU KV cache size` in vLLM 0.19: 6 groups of 10 layers, each padded to the bytes of a
  sliding group. For this reason 66.95 GiB were "146,240 tokens" in field report 001.

From 0.20 on that line is `Maximum concurrency` x max-model-len. Neither value is the number of tokens that fit. The
toolkit prints the number of requests of the longest context, and the bytes of one request in blocks: every full group
for the whole context, and every sliding group for its window and one batch (`max-num-batched-tokens`). This number is
vLLM's own `Maximum concurrency`:
"""


def text() -> str:
    """Return the page."""
    return "\n".join(
        [HEAD, *_constants(), *_errors(), *_terms(), *_layouts(), MEMORY, *_loaded(), *_reserved(), *_cache()]
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown.table(columns, rows) + "\n"


def _constants() -> Iterator[str]:
    c = Constants()
    rows = [
        ("bandwidth", f"{c.bandwidth / GB:.0f} GB/s", "a saturating read reaches 231 to 234 of the 273 GB/s"),
        ("t_layer", f"{c.layer_dense_s * 1e3:.3f} ms", "launches, norms, rotary embedding; `layer_dense_s`"),
        ("t_layer, with experts", f"{c.layer_experts_s * 1e3:.3f} ms", "and routing, sorting; `layer_experts_s`"),
        ("t_step", f"{c.step_s * 1e3:.1f} ms", "sampler, scheduler, HTTP; `step_s`"),
        ("t_all_reduce", f"{c.all_reduce_s * 1e3:.3f} ms", "between two Sparks; `all_reduce_s`"),
        ("t_draft", f"{c.draft_s * 1e3:.1f} ms", "launches of one drafted token; `draft_s`"),
        (
            "apart_sequences",
            f"{c.apart_sequences:.2f}",
            "how often other sequences use other experts; 1 is independent",
        ),
        ("apart_drafts", f"{c.apart_drafts:.2f}", "the same for the drafted tokens of one sequence"),
    ]
    yield _table(("constant", "value", "meaning; name in `vllm_roofline`"), rows)
    yield SITE


def _errors() -> Iterator[str]:
    seeds, held_back = reported_speeds.rows("seeds"), reported_speeds.rows("held_back")
    held_back_errors = _summary(held_back)
    yield "### Seed rows\n"
    yield _row_table(seeds)
    yield _summary_line(_summary(seeds))
    naive = reported_speeds.summary([row.naive_error() for row in seeds])
    yield (
        "The naive prediction divides 273 GB/s by the bytes of the active weights at the width in the checkpoint's "
        f"name. Its mean error is {naive.mean:.0%}, {naive.inside} of {naive.rows} inside 15 %.\n"
    )
    yield "### Held-back rows\n\nThese rows are from other reports. The constants are not fitted to them.\n"
    yield _row_table(held_back)
    yield _summary_line(held_back_errors)
    yield CLAIM.format(
        alone=roofline.INTERVAL_ALONE,
        more=roofline.INTERVAL_PAIR_OR_DRAFTER,
        share=held_back_errors.share_inside,
        inside=held_back_errors.inside,
        rows=held_back_errors.rows,
        prose=roofline.ACCEPTED_PROSE,
        code=roofline.ACCEPTED_CODE,
    )
    yield "### Reported speeds above the limit\n"
    rows = [
        (row.id, _figure(row.measured), _figure(row.step().tokens_per_s), row.source)
        for row in reported_speeds.rows("disputed")
    ]
    yield _table(("row", "reported tok/s", "at 100 % acceptance", "source"), rows)
    yield "### Reported speeds without a prediction\n"
    yield "".join(f"- {entry['what']}: {entry['why']}.\n" for entry in reported_speeds.document()["not_predicted"])


def _row_table(rows: Sequence[Row]) -> str:
    cells = [
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
    return _table(("row", "GB per step", "predicted tok/s", "measured tok/s", "error", "naive error", "source"), cells)


def _summary(rows: Sequence[Row], constants: Constants | None = None) -> Summary:
    return reported_speeds.summary([row.error(constants) for row in rows])


def _summary_line(summary: Summary) -> str:
    return (
        f"{summary.rows} rows: mean absolute error {summary.mean:.1%}, largest {summary.largest:.1%}, "
        f"{summary.inside} of {summary.rows} inside 15 %.\n"
    )


def _terms() -> Iterator[str]:
    """Yield the errors of the seed rows with one term left out and the other constants unchanged."""
    c = Constants()
    variants = {
        "all terms": c,
        "bandwidth 273 GB/s": replace(c, bandwidth=273e9),
        "no overhead of layers and steps": replace(c, layer_dense_s=0, layer_experts_s=0, step_s=0),
        "drafted tokens cost only their bytes": replace(c, draft_s=0),
        "all tokens share their experts": replace(c, apart_sequences=0, apart_drafts=0),
        "no token shares its experts": replace(c, apart_sequences=1, apart_drafts=1),
        "all-reduces are free": replace(c, all_reduce_s=0),
    }
    rows = reported_speeds.rows("seeds")
    yield "### Necessity of the terms\n\nThe errors of the seed rows with one term left out and the others unchanged.\n"
    errors = {name: _summary(rows, constants) for name, constants in variants.items()}
    cells = [(n, f"{s.mean:.1%}", f"{s.largest:.0%}", f"{s.inside} of {s.rows}") for n, s in errors.items()]
    yield _table(("variant", "mean error", "largest", "inside 15 %"), cells)


def _layouts() -> Iterator[str]:
    yield (
        "### Bytes read for one token\n\nGB of weights, for one stream and without a cache. Bytes per weight: "
        + ", ".join(f"{name} {width}" for name, width in roofline.WIDTHS.items())
        + ".\n"
    )
    cells = []
    for name, layout in reported_speeds.document()["layouts"].items():
        for model in ("gemma-4-31b", "gemma-4-26b-a4b"):
            has_experts = bool(architecture.load(model).experts)
            if has_experts == ("experts" in layout) or name in {"bf16", "fp8", "nvfp4"}:
                cells.append(_layout_row(name, model, layout))
    yield _table(("layout", "model", "attention", "MLP", "experts", "head", "total", "limit tok/s at 273 GB/s"), cells)


def _layout_row(name: str, model: str, layout: Mapping[str, Width]) -> tuple[str, ...]:
    read = roofline.weight_bytes(architecture.load(model), reported_speeds.mixed(layout), roofline.Load(), Constants())
    parts = [f"{read[part] / GB:.2f}" if part in read else "-" for part in ("attention", "mlp", "experts", "head")]
    total = sum(read.values())
    return (name, model, *parts, f"{total / GB:.2f}", f"{273e9 / total:.1f}")


def _loaded() -> Iterator[str]:
    cells = []
    for entry in measured_memory.measurements()["loaded"]:
        predicted = sum(measured_memory.model(entry).loaded_bytes(entry.get("tensor_parallel", 1)).values()) / GIB
        error = f"{predicted / entry['measured'] - 1:+.1%}"
        cells.append((entry["id"], f"{predicted:.2f}", f"{entry['measured']:.2f}", error, entry["source"]))
    yield _table(("weights of one rank", "predicted GiB", "measured GiB", "error", "source"), cells)


def _reserved() -> Iterator[str]:
    total = reference_spark.MEMORY["total"] / GIB
    cells = []
    for entry in measured_memory.measurements()["reserved"]:
        reserved = entry["utilization"] * total
        rest = f"{reserved - entry['weights'] - entry['cache']:.2f}" if "cache" in entry else "-"
        used = f"{entry['measured']:.2f}" if "measured" in entry else "-"
        cells.append((entry["id"], f"{entry['utilization']:.2f}", f"{reserved:.2f}", used, rest, entry["source"]))
    columns = ("engine", "utilization", "reserved GiB", "GiB in use", "neither weights nor cache", "source")
    yield _table(columns, cells)
    yield (
        "The allowance for the workspace (activations, CUDA graphs and CUDA itself) is "
        f"{units.gib(memory.WORKSPACE_BYTES)}. CUDA graphs are 0.05 to 0.62 GiB of it in\ntests/data/engine-logs. "
        "From 0.20 on the engine reserves an estimate of them, so the same utilization leaves less cache.\n"
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
    cells = []
    for entry in measured_memory.measurements()["cache"]:
        model = architecture.load(entry["architecture"])
        cache = kv_cache.of(model, roofline.WIDTHS[entry["kv"]], entry.get("tensor_parallel", 1))
        room, load = entry["room"] * GIB, (entry["context"], entry["batched"])
        tokens = cache.logged_tokens(room, *load, entry.get("before_0_20", False))
        logged = f"{entry['requests']:.2f}" if "requests" in entry else "-"
        requests = f"{cache.requests(room, *load):.2f}"
        cells.append(
            (
                entry["id"],
                f"{entry['room']}",
                f"{load[0]}",
                requests,
                logged,
                f"{tokens:,}",
                f"{entry['tokens']:,}",
                entry["source"],
            )
        )
    columns = ("cache", "GiB", "context", "requests", "logged requests", "predicted tokens", "logged tokens", "source")
    yield _table(columns, cells)


def _figure(value: float) -> str:
    return f"{value:.2f}"
