"""docs/reference/bench.md: what the figures of the bench mean, its profiles, and what makes a cell worthless."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from lab.pages.markdown import table
from vllm_spark.bench import deployment_run, profile_fit, profiles
from vllm_spark.bench.profiles import Profile
from vllm_spark.node.bench import corpora, faults
from vllm_spark.node.bench.chunks import TOGETHER_S
from vllm_spark.node.bench.corpus import PREFIX_TOKENS
from vllm_spark.node.bench.figures import GAP_PERCENT
from vllm_spark.node.bench.leading import PROMPT_OUTPUT, PROMPT_SHARE, leading_metrics
from vllm_spark.node.bench.pooled import REQUESTS, TAIL_PERCENT
from vllm_spark.node.bench.records import UNITS
from vllm_spark.node.bench.stream import FIRST_TOKEN_S, GAP_S, LAG_PERCENT, LAG_TICK_S

HEAD = """\
# The bench: definitions

`make docs` writes this page from the bench's data; do not edit it.

A profile is a list of cells. A cell has a corpus, a number of prompt and output tokens, a depth (tokens of context
before the prompt), a number of streams, the sampling of its requests, and sometimes a change of the server. A run
measures each cell several times; every value is kept, and the figure of a cell is their median. The spread is the
sample standard deviation / the mean.

## Metrics

Three tools call three different moments "TTFT". The bench has a name for each and never uses that word.
"""


class Definition(NamedTuple):
    """What a metric is, and where the definition is from."""

    text: str
    source: str


DEFINITIONS = {
    "decode": Definition(
        "Tokens after the first arrival / time from the first arrival to the last, of one stream; with several streams "
        f"the mean of the streams. Chunks within {1000 * TOGETHER_S:g} ms are one arrival. Tokens are counted from "
        "token ids. A chunk may have several tokens, so the tokens of the first arrival are not counted. Without token "
        "ids a chunk is a token; if the usage counts more tokens than chunks, "
        "there is no decode, and up to 5 % more are a bound beside it.",
        "llama-benchy 0.4.0 `tg` counts the same; 0.3.5 divides by a time that ends with the usage",
    ),
    "total": Definition(
        "Tokens of all streams / time, in the window in which all of them are active. Before and after it the server "
        "has fewer requests than the cell asks for.",
        "own; llama-benchy's `t/s (total)` divides by the time since the first stream's first token",
    ),
    "queue": Definition(
        "Tokens of all streams / time from the first request to the last end: the prompts are read in it. A queue of "
        "requests sees this or a little more, and `total` is the speed between two prompts.",
        "the throughput of `vllm bench serve`; of 64 streams on an H200 it was 19 % below `total`",
    ),
    "first_chunk": Definition(
        "Request sent until the first chunk with `choices`, even an empty one.",
        "TTFT of `vllm bench serve`, `ttfr` of llama-benchy",
    ),
    "first_token": Definition(
        "Request sent until the first chunk with a token of content or reasoning.",
        "TTFT of aiperf, `e2e_ttft` of llama-benchy",
    ),
    "first_answer": Definition(
        "Request sent until the first chunk with content, after the reasoning. Without reasoning it is `first_token`.",
        "TTFO of aiperf",
    ),
    "prefill": Definition(
        "Prompt tokens that were not cached / time until the first token. A chunk of the role alone may come before "
        "the prompt is read. The prompt contains the depth.",
        "`pp` of llama-benchy, which takes the first chunk and subtracts the latency of an empty request",
    ),
    "longest_gap": Definition(
        "The longest time between two arrivals of tokens of one stream. A stall of two seconds moves decode as a "
        "slower server does; here it is seen.",
        "own",
    ),
    "gap_p99": Definition(
        f"The {GAP_PERCENT}th percentile of the times between two arrivals of tokens, of all streams of a run.",
        "ITL of `vllm bench serve`, aiperf and guidellm, which count chunks",
    ),
    "step": Definition(
        "Time of one step of the engine. With a drafter: time / drafts of one stream. It does not depend on the text, "
        "so a change of the server shows here first.",
        "`vllm:spec_decode_num_drafts_total`, `vllm:generation_tokens_total`",
    ),
    "tokens_per_step": Definition(
        "1 + accepted tokens / drafts, of one request. 1 without a drafter.",
        "`Mean acceptance length` of vLLM's log",
    ),
    "acceptance": Definition(
        "Accepted / drafted tokens. It depends on the text: 0.76 on code and 0.50 on prose in field report 004.",
        "`vllm:spec_decode_num_accepted_tokens_total` / `vllm:spec_decode_num_draft_tokens_total`",
    ),
    "acceptance_by_position": Definition(
        "Accepted tokens of each drafted position / drafts. A position counts only if all before it are accepted.",
        "`vllm:spec_decode_num_accepted_tokens_per_pos_total`",
    ),
    "documents": Definition(
        f"Documents of a run / the time from its first request to its last answer, of a server for embeddings or of a "
        f"reranker. Each stream sends {REQUESTS} requests one after the other.",
        "own",
    ),
    "read": Definition("The tokens of these documents by `usage`, in the same time.", "own"),
    "latency": Definition("The median of all requests of a run, sent until the last byte of the answer.", "own"),
    "latency_p95": Definition(f"The {TAIL_PERCENT}th percentile of the same.", "own"),
    "request": Definition("Request sent until the end of its stream.", "`e2e latency` of the other tools"),
    "output": Definition(
        "Tokens of an answer. Requests set min_tokens = max_tokens and ignore_eos, so all answers have one length.",
        "token ids, cross-checked with usage",
    ),
    "prompt": Definition(
        "Tokens of a prompt with its chat template, as the server counts them; with several streams their mean.",
        "usage, cross-checked with /tokenize and `vllm:prompt_tokens_total`",
    ),
    "lag": Definition(
        f"How late a timer of {1000 * LAG_TICK_S:g} ms in the client's own loop was, the {LAG_PERCENT}th percentile.",
        "own; a client that waits for a CPU sees tokens late",
    ),
    "start": Definition(
        "A start of the unit until its first token, with its phases. Cold: without compiled code and page cache.",
        "own; `vllm bench startup` leaves out the container and the API server",
    ),
    "memory": Definition(
        "Memory of the Spark in use (MemTotal - MemAvailable) at the highest sample, above that before the start.",
        "/proc/meminfo; a GB10 has no memory of its own, and nvidia-smi reports [N/A]",
    ),
}

PROMPTS = """\
## Prompts

The texts of the prompts are the toolkit's own, in four classes. A prompt is one turn of the user:

1. {prefix} random tokens. The cache of vLLM matches prompts from their beginning, so a prompt that begins differently
   is not cached. A random suffix would have no effect.
2. Paragraphs of the class `long`, cut to the wanted number of tokens. They are the depth and the rest of the prompt. A
   paragraph that is drawn again has other numbers and names.
3. The question or task of the cell's class.

The same seed and index give the same notes and the same question; the random tokens differ from run to run. The number
of tokens is within 1 % of the wanted one, without those of the chat template. A server that does not count a text
(/tokenize of vLLM) gets an estimate, which the usage of each cell's warm-up corrects; `prompt` is what it had. The
sha256 of the texts is a part of the protocol's id, so figures of different texts are never compared.
"""

LEADING = """\
## Leading figures

A cell is measured for its leading figures. They follow from its lengths, and files of every age have them. A cell is
repeated until the spread of each of them is small enough. `bench compare` and `bench verdict` judge a cell by them, and
a run is good only if each of them was judged; of the other figures a verdict judges those that a field report or the
recipe expects. Tables mark what is judged with `*`, the report is bold there.
"""

# Fields of a cell in words, and a cell of this kind.
LOADS: tuple[tuple[str, dict[str, Any]], ...] = (
    (f"prompt and depth below {PROMPT_SHARE} times the output, one stream", {}),
    (f"prompt and depth below {PROMPT_SHARE} times the output, several streams", {"streams": 4}),
    (f"prompt and depth of {PROMPT_SHARE} times the output or more, one stream", {"prompt": 2048}),
    (f"prompt and depth of {PROMPT_SHARE} times the output or more, several streams", {"prompt": 2048, "streams": 4}),
    (f"the same, and an output of {PROMPT_OUTPUT} tokens or fewer", {"prompt": 2048, "output": PROMPT_OUTPUT}),
    ("an output of one token", {"output": 1}),
    ("a start of the server", {"server": {"start": "cold"}}),
)

WORTHLESS = """\
## What makes a cell worthless

A fault of the first table makes the figures of its cell worthless, and the cell is marked so. A fault of the second
table is a warning beside the figures.
"""

FAILED = """\
A request that fails makes its cell fail, with the reason:

| id | reason |
|---|---|
| `refused` | no connection, or it ended before a response |
| `broken-reply` | what arrived is no HTTP: the head, or a frame |
| `status-401` … | a status other than 200. One 429 or 503 with Retry-After a cell is waited for (`rate-limited`) |
| `no-stream` | status 200 without a stream of tokens: JSON, a page, a compressed body |
| `error-event` | an event that is an error or cannot be read; an answer that ended with `error` or `abort` |
| `cut` | the response ended before `[DONE]`, before a last frame or a usage behind a finish reason |
| `stalled` | no first token for {first:.0f} s, or none for {gap:.0f} s after another; pings do not count |
| `endless` | far more events than the tokens that were asked for |
"""

TELEMETRY = """\
## Samples of the host

Once per second: memory in use and page cache (/proc/meminfo), swap and what was swapped (/proc/vmstat), what processes
beside the engine's container and the bench use of all CPUs (/proc/stat), how long tasks waited for a CPU
(/proc/pressure/cpu), and from one long-running nvidia-smi power, clock, temperature, load and the reasons of a low
clock. A value that the host does not report is missing. A host without nvidia-smi has no values of a GPU, and the
faults of clocks and heat are not judged there. `vllm-spark bench URL` does not know the engine's container, so
`busy-host` is not judged there.

`vllm-spark bench` samples every host of the deployment, because a pair is as slow as its slower rank. The
faults of hosts are judged for each one and name it: {host_faults}. Those of the head are judged while it measures and
end the cell; those of the other ranks are judged when the evidence is fetched.

The clocks of two hosts differ, so the samples of the other ranks are moved to the clock of the head:

1. When the evidence is fetched, the controller reads its own clock, that of the host twice (before and after the file
   is read), and its own again.
2. The offset of the host is the mean of the two differences, as in NTP (RFC 5905, section 8). The error is at most half
   of the time that the exchange took beside the reading of the file. The evidence has both (`clock` of a host).
3. Each cell has the time of day of the head at its beginning. A sample belongs to the cell in whose time it is.

The offset at the end counts for all parts of a run that was interrupted. A clock that is set during a run misplaces
the samples before; a cell without samples of a rank has the warning `unsampled`.

The sampler of a rank appends to `/var/lib/vllm-spark/bench/DEPLOYMENT-PROFILE.samples.jsonl`. It ends when the head has
measured the last cell. If the controller is lost, the head goes on measuring and so does the sampler; it ends by itself
when the GPU has been idle for {idle_minutes:.0f} minutes, or after {factor} times the expected time and
{more_hours:.0f} hours more.
"""

# Speeds for the times in the table: a 31B and a 26B-A4B in FP8 on one Spark (field report 003), in tok/s.
DENSE, EXPERTS = (7.0, 1500.0), (39.0, 3000.0)


def text() -> str:
    """Return the page."""
    all_ = [profiles.load(name) for name in profiles.names()]
    parts = [
        HEAD.rstrip(),
        table(("metric", "unit", "definition", "source"), _metrics()),
        PROMPTS.format(prefix=PREFIX_TOKENS).rstrip(),
        table(("class", "texts", "words"), _corpora()),
        "## Profiles",
        "The times are the least ones, of a 31B with 7 tok/s and of a 26B-A4B with 39 tok/s, without restarts of the "
        "server. Cells that need more than max-model-len or max-num-seqs are left out and named.",
        table(("profile", "measures", "cells", "runs", "spread", "minutes 31B", "26B-A4B", "source"), map(_row, all_)),
        LEADING.rstrip(),
        table(("cell", "leading figures"), _leading()),
        WORTHLESS.rstrip(),
        table(("id", "fault", "source"), _faults(worthless=True)),
        table(("id", "warning", "source"), _faults(worthless=False)),
        FAILED.format(first=FIRST_TOKEN_S, gap=GAP_S).rstrip(),
        TELEMETRY.format(
            host_faults=", ".join(f"`{kind.id}`" for kind in faults.KINDS.values() if kind.of_host),
            idle_minutes=deployment_run.IDLE_S / 60,
            factor=deployment_run.LIMIT_FACTOR,
            more_hours=deployment_run.LIMIT_MORE_S / 3600,
        ).rstrip(),
    ]
    return "\n\n".join(parts) + "\n"


def _metrics() -> Iterator[tuple[str, ...]]:
    for name, unit in UNITS.items():
        definition = DEFINITIONS[name]
        yield f"`{name}`", "share" if unit == "1" else unit, definition.text, definition.source


def _corpora() -> Iterator[tuple[str, ...]]:
    for name in corpora.CLASSES:
        lines = corpora.lines(name)
        yield f"`{name}`", f"{len(lines)}", f"{sum(len(line.split()) for line in lines):,}"


def _row(profile: Profile) -> tuple[str, ...]:
    rules = profile.rules
    runs = f"{rules.least_runs}" if rules.least_runs == rules.most_runs else f"{rules.least_runs} to {rules.most_runs}"
    runs += f", at most {rules.limit_runs}" if rules.limit_runs else ""
    minutes = [profile_fit.seconds(profile, profile.cells, *speeds) / 60 for speeds in (DENSE, EXPERTS)]
    # A deployment is measured in a part of the cells of such a profile.
    times = ["by recipe" if profile.recipes else f"{max(1, round(minute))}" for minute in minutes]
    cells, spread = f"{len(profile.cells)}", f"{rules.spread:.0%}"
    return (f"`{profile.name}`", profile.summary, cells, runs, spread, *times, profile.source)


def _leading() -> Iterator[tuple[str, ...]]:
    for load, fields in LOADS:
        [cell] = profiles.cells_of({"corpus": "chat", "prompt": 512, "output": 128, **fields})
        yield load, ", ".join(f"`{metric}`" for metric in leading_metrics(cell))


def _faults(*, worthless: bool) -> Iterator[tuple[str, ...]]:
    for kind in faults.KINDS.values():
        if kind.worthless == worthless:
            yield f"`{kind.id}`", kind.text, kind.source
