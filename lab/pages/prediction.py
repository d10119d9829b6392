"""docs/reference/prediction.md: the prediction of memory and speed, and its errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lab.forecast import measured_memory, reported_speeds
from lab.pages import compatibility, markdown, measured_rows
from vllm_spark.core import units
from vllm_spark.core.units import GB, GIB
from vllm_spark.recipe import architecture, host_memory
from vllm_spark.sizing import constants, kv_cache, layout, memory, reference_spark, roofline
from vllm_spark.sizing.layout import Width, widths
from vllm_spark.sizing.load import Load

HEAD = """\
# Prediction of memory and speed

`vllm-spark plan RECIPE` and `vllm-spark plan` predict before a download whether a recipe fits and how fast it
decodes. `make docs` writes this page from `src/vllm_spark/sizing/hardware.yml`, `recipes/architectures` and the
measurements in `lab/forecast`; do not edit it.

## Speed

    step     = sum over parts of hypot(bytes / (TP x bandwidth), 2 x weights x tokens / (TP x compute))
               + cache / (TP x bandwidth) + (MLPs + sets of experts + convolutions) x feed_forward_s
               + reductions x (all_reduce_s + sent + min(4 x sent, many_bytes_s))                with several Sparks
               + passes x (drafter / (TP x bandwidth) + its layers + its all-reduces)
               + streams x N x layers x verify_s                      with a drafter of N tokens
               + mixing of the prompt, FLOP / (TP x compute)          while a prompt is computed
    tok/s    = (1 + N x acceptance) / step                  of each sequence
    experts  = experts of one token x U, U = (1 - (1 - s)^requests) / s, s = k / (E x experts_used)
    requests = (1 + (streams - 1) x apart) x (1 + N)
    sent     = tokens x hidden x 2 B x 2 (TP - 1) / TP / link
    cache    = streams x sum over layers of K and V of min(context, window) tokens, the latent, or the state 2 + N times
    eager    = hypot(step, (mixers + MLPs + sets of experts) x eager_s)

k of E experts serve a token; an expert is read once per step. A state is read once, and written after the token of a
step and after each drafted one. BF16 matrices of one token are read at `narrow_bf16` of the bandwidth in a model of
width 2048, which rises to all of it at 5120. A drafter without its own head reads the model's for each token; DFlash
drafts all tokens in one pass. The engine takes Triton's attention for a model with a head above 256, such as Gemma 4;
its time beyond the bytes matters only for prompts.

A constant that changed the mean error of no kind of figure by one point when it was neutral is not here any more
([operators-left-out.md](../../lab/forecast/operators-left-out.md)).

The bytes depend on the layout of the tensors, not on the name of a repository. nvidia's NVFP4 checkpoint of the 31B
keeps its attention in BF16 and reads as many bytes as full FP8.

### Time to the first token

Requests that arrive together wait for each other. Each step takes a token of every sequence that decodes, and as many
tokens of the waiting prompts, in their order, as `max-num-batched-tokens` leaves. The prediction walks through these
steps. It gives the mean time to the first token, and the decode of each stream while prompts of others are computed.

### Constants

A constant belongs to a kernel or to the machine, not to a model. `python -m lab.forecast.fit` fits them to public rows
and field reports; those that the rows do not tell were set by hand. `a Spark has` is what the chip, the link or a
launch allows, and a test holds each value to it. Two more values are fitted and belong to models: the share of the
experts among which the routers of Gemma 4 26B and of gpt-oss are even (`used` in recipes/architectures). `apart` is 1,
and in rows of streams that have one text 0.14.

"""

SITE = """\
A site can set constants that it has measured in `vllm_roofline` (inventories/sample). `vllm-spark plan --site FILE`
reads the same variables. The most useful one is all_reduce_s: public timings are 40 to 140 us. `ansible-playbook
fabric.yml -e time_all_reduce=true` times a call of 16 KiB and one of 64 MiB over the Sparks of a server, from which
`all_reduce_s` and `link` follow; `vllm_roofline` counts before it. Without them, no pair is ranked above one Spark for
a mixture of experts that one Spark holds: owners measured 0.76 to 1.3 times one Spark.

Of a recipe that `bench` measured on a site, the plan has the figures and two factors
([bench.md](../operations/bench.md#what-the-bench-says-about-your-sparks)).

"""

MEMORY = """\
## Memory

The engine reserves `gpu-memory-utilization` x the total memory, which is 121.7 GiB on a Spark. It refuses to start if
less is available on the host. The reservation contains the weights and a workspace; the rest is the cache. The engine
may need more while it loads and profiles: with `--quantization fp8` the BF16 files are in memory first (field report
003: 59 GB), and `vllm#46307` reports a profiling run far above the reservation.

The size of the weights follows from the architecture and the layout. It includes the head, the rotary tables (0.4 GB
for Gemma 4, on every rank), the vision tower unless `language-model-only` is set, and the drafter. V of the full layers
is stored as K in the files, and is a second copy in memory. Experts in MXFP4 are filled up for Marlin, which takes 9 %
more for gpt-oss.
"""

BESIDE = """\
### Memory beside the reservation

On a Spark every GiB is the same GiB: what flags and processes take of the host is missing for the model. The plan has a
row for each part that is not zero, adds them to the reservation, and compares the sum with what is available less the
host's floor. So do `precheck` before a start and `vllm-switch` on the Spark. A part of the reservation (LoRA slots)
makes the cache smaller in place of that. If flags name no size, the plan says "unknown" and not "go".

With `kv_cache_bytes` the engine takes weights, workspace and these bytes, and nothing of `utilization`. It wants that
share free at its start all the same (vLLM v1/worker/utils.py, request_memory; measured with 0.20.2): without the flag
{defaults}. A start needs the larger of both.

Beside a KV connector a launch sets `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` and, from vLLM 0.22.0 on,
`enable-cumem-allocator`, without which the engine refuses the variable. Then weights and cache lie in memory of their
own, outside of the segments. This was read in the engine and not run on a Spark. One owner measured with a fork that
without the segments a prompt of 337,000 tokens took the whole host (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#57).

The sizes were read in vLLM 0.19.1 to 0.33.0. Without a version a row is for all of them.

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

From 0.20.2 on that line is `Maximum concurrency` x max-model-len. Neither value is the number of tokens that fit. The
toolkit prints the number of requests of the longest context, and the bytes of one request in blocks: every full group
for the whole context, and every sliding group for its window and one batch (`max-num-batched-tokens`). This number is
vLLM's own `Maximum concurrency`.

Layers with a state (gated delta, Mamba-2) take blocks of the same pool. A page then holds at least one state, so a
block has 1,568 to 8,320 tokens. Each sequence keeps one state in every group of such layers, one more with prefix
caching, and one more for each drafted token, which also makes each state longer. For Qwen3.6 35B-A3B with three drafted
tokens, a request of 32,768 tokens takes 16 blocks for its tokens and 15 for its states:
"""


MEANINGS = {
    "bandwidth": "of the memory, as the products with large matrices read it",
    "narrow_bf16": "share of it for one token through BF16 matrices of width 2048",
    "feed_forward_s": "an MLP or a set of experts beside its bytes: launches, norms, routing, and the mixer before it",
    "eager_s": "the CPU's time for one MLP, set of experts or mixer without CUDA graphs",
    "all_reduce_s": "one all-reduce of few bytes",
    "link": "of an all-reduce of many bytes",
    "many_bytes_s": "one all-reduce of many bytes begins so much later; few bytes take five times the link's time",
    "verify_s": "mixing one drafted token of one sequence, in one layer",
    "experts_used": "share of the experts among which routing is even, unless the model has its own",
    "compute_16": "products in BF16, of 4-bit weights in 16 bits, and attention of a prompt",
    "compute_8": "products in FP8",
    "compute_8_marlin": "products of 8-bit weights in 16 bits",
    "compute_4": "products in FP4",
    "compute_experts": "share of compute_16 that the grouped product of experts reaches, at any width",
    "compute_triton": "attention of a prompt by Triton, with heads of 512",
    "compute_delta": "gated delta layers of a prompt",
    "compute_mamba": "Mamba-2 layers of a prompt",
    "first_token_s": "tokenizer, HTTP and start of a request",
}


def text() -> str:
    """Return the page."""
    return "\n".join(
        [
            HEAD,
            *_constants(),
            *measured_rows.by_family(),
            *_layouts(),
            MEMORY,
            *_loaded(),
            *_reserved(),
            *_beside(),
            *_cache(),
        ]
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown.table(columns, rows) + "\n"


def _constants() -> Iterator[str]:
    entry = constants.spark()
    cells = []
    for name, value in entry["constants"].items():
        bounds = " to ".join(quantity(name, bound) for bound in entry["bounds"][name])
        origin = "by hand" if name in entry["by_hand"] else "fitted"
        cells.append((f"`{name}`", quantity(name, value), bounds, origin, MEANINGS[name]))
    yield _table(("constant", "value", "a Spark has", "", "meaning"), cells)
    yield SITE


def quantity(name: str, value: float) -> str:
    """Return a value with its unit, which follows from the name."""
    if name.endswith("_s"):
        return f"{value * 1e3:.3g} ms"
    if name in ("bandwidth", "link"):
        return f"{value / GB:.1f} GB/s"
    if name.startswith("compute") and name != "compute_experts":
        return f"{value / 1e12:.3g} TFLOP/s"
    return f"{value:.2f}"


def _layouts() -> Iterator[str]:
    yield (
        "### Bytes read for one token\n\nGB of weights, for one stream and without a cache. Bytes per weight: "
        + ", ".join(f"{name} {width}" for name, width in layout.WIDTHS.items())
        + ".\n"
    )
    cells = []
    for name, named in reported_speeds.document()["layouts"].items():
        for model in ("gemma-4-31b", "gemma-4-26b-a4b"):
            has_experts = bool(architecture.load(model).experts)
            if has_experts == ("experts" in named) or name in {"bf16", "fp8", "nvfp4"}:
                cells.append(_layout_row(name, model, named))
    yield _table(("layout", "model", "attention", "MLP", "experts", "head", "total", "limit tok/s at 273 GB/s"), cells)


def _layout_row(name: str, model: str, names: Mapping[str, Width]) -> tuple[str, ...]:
    read = roofline.weight_bytes(architecture.load(model), widths(names), Load(), constants.constants_of({}))
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
    unknown = [f"- {entry['recipe']}: {entry['why']}.\n" for entry in measured_memory.measurements()["unknown"]]
    yield "Recipes without a public log of their weights or their cache:\n\n" + "".join(unknown)


def _beside() -> Iterator[str]:
    """Yield the rows of host_memory.yml."""
    table = host_memory.table()
    oldest, *newer = table["utilization"].items()
    later = (f"{share} from {version} on" for version, share in newer)
    yield BESIDE.format(defaults=", ".join([f"{oldest[1]} of the memory", *later]))
    cells = []
    for row in table["rows"]:
        settings = " or ".join(f"`{setting.partition('.')[2]}`" for setting in row.get("settings", ())) or "-"
        where = compatibility.where(row.get("when", {}), row.get("unless", ()))
        cells.append((row["what"], settings, row["unit"], str(row.get("default", "-")), where, row["source"]))
    yield _table(("what", "setting", "unit", "default", "where", "read in"), cells)


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
        f"{units.gib(memory.WORKSPACE_BYTES)} and {1024 * memory.WORKSPACE_TOKEN_BYTES / GIB:.2f} GiB\nfor each 1,024 "
        "tokens of `max-num-batched-tokens`. It is what three logs of one 27B kept at 16,384, 32,768 and\n65,536, and "
        "more than most public starts on a GB10 kept (lab/forecast/measured/unmet/workspace.yaml). With\n"
        f"`kv_cache_bytes` the engine keeps nothing, and {units.gib(memory.WORKSPACE_IN_USE_BYTES)} are allowed for "
        "what it uses. CUDA graphs\nare 0.05 to 0.62 GiB in tests/data/engine-logs. "
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
        cache = measured_memory.cache_of(entry)
        room, load = entry["room"] * GIB, (entry["context"], entry["batched"])
        tokens = measured_memory.logged_tokens(cache, room, *load, entry.get("before_0_20", False))
        logged = f"{entry['requests']:.2f}" if "requests" in entry else "-"
        requests = f"{measured_memory.requests(cache, room, *load):.2f}"
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
