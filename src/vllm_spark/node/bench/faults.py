"""What makes a cell worthless, from the engine's counters and the samples of the hosts.

The faults of the answers are in answer_faults. An import of this module registers all kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, median

from vllm_spark.node.bench import answer_faults
from vllm_spark.node.bench.fault_registry import KINDS, FaultKind, find, find_of_hosts, kind, worthless
from vllm_spark.node.bench.figures import MIN_WINDOW_S
from vllm_spark.node.bench.observation import (
    COUNTER_STEP_TOKENS,
    FINISHED,
    PROCESS_START,
    Observation,
    active,
)
from vllm_spark.node.bench.records import Sample

__all__ = ["KINDS", "FaultKind", "answer_faults", "find", "find_of_hosts", "worthless"]

# A GB10 runs at 2400 to 2500 MHz under load. docs/runbooks/gpu-clocks.md says what a cap of 2200 MHz costs.
LEAST_SM_MHZ = 2300.0
CAPPED_GPU = "GB10"
# Below this load a low clock means that nothing needs more (preflight's check of the clocks has the same bound).
LOADED_PERCENT = 90.0
LEAST_LOADED_SAMPLES = 3
# NVML may report a slowdown for a moment while the clock changes. A few samples of a long cell do not move a median.
LEAST_THROTTLED_SAMPLES, MOST_THROTTLED_SHARE = 2, 0.05
# Pages that the kernel moves in the background. A model that is swapped out moves gigabytes.
MOST_SWAPPED_MIB = 16.0
# Load of other processes is harmless while a CPU is idle for each task of the engine.
MOST_FOREIGN, MOST_WAITED = 0.1, 0.1
# A shorter cell may end between two samples.
LEAST_SAMPLED_S = 3.0
# In the sound cells of recipes/evidence/h200-bench the latest first chunk took 1.8 times the median.
MOST_LATE = 2.0
LEAST_RUNS = 3
# 7 % of a first token of 70 ms, the shortest of a Spark.
MOST_LAG_MS = 5.0
# The start time of a process is a constant. Its text has nine digits or more.
SAME_START_S = 1.0

THERMAL = {"hw_thermal_slowdown", "sw_thermal_slowdown"}
POWER_BRAKE = {"hw_power_brake_slowdown", "hw_slowdown"}


@kind(
    "other-clients",
    "Other clients used the server. Requests of one token, such as those of the liveness timer, do not count.",
    source="vLLM's gauges and its counters of requests and tokens (v1/metrics/loggers.py)",
)
def other_clients(observation: Observation) -> Iterator[str]:
    before = active(observation.before)
    if before:
        yield f"{before:.0f} requests were active before the first request of the cell"
    finished = observation.moved(FINISHED)
    others = 0.0 if finished is None else max(finished - observation.requests, 0.0)
    most = max(map(active, observation.during), default=0.0)
    if most > observation.streams and not others:
        yield f"{most:.0f} requests were active beside each other, {observation.streams} of them from the bench"
    tokens = observation.others_tokens()
    if others and (tokens is None or tokens > others + COUNTER_STEP_TOKENS * observation.streams):
        text = f"the engine finished {finished:.0f} requests, {observation.requests} of them from the bench"
        yield text if tokens is None else f"{text}; the others had {tokens:.0f} tokens"


@kind(
    "restart",
    "The engine restarted in the middle of the cell.",
    source="prometheus_client's process_start_time_seconds; a counter never falls while its process lives",
)
def restart(observation: Observation) -> Iterator[str]:
    readings = [observation.before, *observation.during, observation.after]
    starts = [reading[PROCESS_START] for reading in readings if PROCESS_START in reading]
    if starts and max(starts) - min(starts) > SAME_START_S:
        yield f"the process of the API started {max(starts) - min(starts):.0f} s later than the one before it"
        return
    moved = observation.moved(FINISHED)
    if moved is not None and moved < 0:
        yield f"the counter of finished requests fell by {-moved:.0f}"


@kind(
    "clock-cap",
    f"The clock of a GB10 under load was below {LEAST_SM_MHZ:.0f} MHz.",
    source="a healthy run shows about 2500 MHz (djangodevreng/dgx-spark-benchmarks); the check `gpu-clocks-set` has "
    "what owners measured with a cap",
    of_host=True,
)
def clock_cap(observation: Observation) -> Iterator[str]:
    for host, samples in observation.samples.items():
        clocks = [sample["sm_mhz"] for sample in _loaded(samples) if "sm_mhz" in sample]
        if CAPPED_GPU not in observation.gpus.get(host, "") or len(clocks) < LEAST_LOADED_SAMPLES:
            continue
        if median(clocks) < LEAST_SM_MHZ:
            yield f"{host}: {median(clocks):.0f} MHz, the median of {len(clocks)} samples under load"


@kind(
    "thermal-throttling",
    "The driver or the GPU lowered the clock because of the temperature.",
    source="NVML clocks event reasons 0x20 and 0x40",
    of_host=True,
)
def thermal_throttling(observation: Observation) -> Iterator[str]:
    yield from _throttled(observation, THERMAL)


@kind(
    "power-brake",
    "The hardware lowered the clock because of the power supply.",
    source="NVML clocks event reasons 0x08 and 0x80",
    of_host=True,
)
def power_brake(observation: Observation) -> Iterator[str]:
    # The reason hw_slowdown stands for both causes. With a thermal one beside it, the heat is the cause.
    yield from _throttled(observation, POWER_BRAKE, unless=THERMAL)


@kind(
    "power-cap",
    "The driver held the GPU at its power limit.",
    source="NVML clocks event reason 0x04",
    worthless=False,
    of_host=True,
)
def power_cap(observation: Observation) -> Iterator[str]:
    yield from _throttled(observation, {"sw_power_cap"})


@kind(
    "swap",
    f"The host moved more than {MOST_SWAPPED_MIB:.0f} MiB between memory and swap.",
    source="/proc/vmstat, pswpin and pswpout",
    of_host=True,
)
def swap(observation: Observation) -> Iterator[str]:
    for host, samples in observation.samples.items():
        moved = sum(sample.get("swapped_mib", 0.0) for sample in samples)
        if moved > MOST_SWAPPED_MIB:
            yield f"{host}: {moved:.0f} MiB were swapped in and out"


@kind(
    "busy-host",
    f"Processes beside the engine and the bench used more than {MOST_FOREIGN:.0%} of a host's CPUs, and tasks waited "
    f"for a CPU more than {MOST_WAITED:.0%} of the time.".replace("%", " %"),
    source="/proc/stat without the processes of the engine's container, and /proc/pressure/cpu; two cores at a load of "
    "9 gave 6.7 tok/s with a spread of 43 %, idle ones 95 tok/s",
    of_host=True,
)
def busy_host(observation: Observation) -> Iterator[str]:
    for host, samples in observation.samples.items():
        both = [sample for sample in samples if "foreign_cpu" in sample and "cpu_wait" in sample]
        if len(both) < LEAST_LOADED_SAMPLES:
            continue
        foreign = mean(sample["foreign_cpu"] for sample in both)
        waited = mean(sample["cpu_wait"] for sample in both)
        if foreign > MOST_FOREIGN and waited > MOST_WAITED:
            used = f"other processes used {foreign:.0%} of the CPUs, and tasks waited {waited:.0%} of the time"
            yield f"{host}: {used}".replace("%", " %")


@kind(
    "unsampled",
    "A host of the deployment has no samples in the cell: its clock, its heat, its swap and its load are not judged.",
    source="own; a sampler that did not run, or a clock that was set during the run",
    worthless=False,
    of_host=True,
)
def unsampled(observation: Observation) -> Iterator[str]:
    if observation.seconds >= LEAST_SAMPLED_S:
        yield from (f"{host}: no samples" for host, samples in observation.samples.items() if not samples)


@kind(
    "late-chunk",
    f"The first token of a run came later than {MOST_LATE:g} times the median of the runs: the spread of the time "
    "to the first token and of the prefill says nothing.",
    source="vLLM compiles Triton kernels while it serves: 884 ms instead of 71 ms (recipes/evidence/h200-bench)",
    worthless=False,
)
def late_chunk(observation: Observation) -> Iterator[str]:
    times = observation.first_tokens_s
    if len(times) >= LEAST_RUNS and max(times) > MOST_LATE * median(times):
        run = times.index(max(times)) + 1
        yield f"{1000 * max(times):.0f} ms in run {run}, the median of the runs is {1000 * median(times):.0f} ms"


@kind(
    "one-chunk",
    "All tokens of an answer arrived at once, so this cell has no decode, and its first token is its last.",
    source="vLLM joins the outputs that wait while its API process is busy: seen with two busy cores; a gateway that "
    "buffers answers",
    worthless=False,
)
def one_chunk(observation: Observation) -> Iterator[str]:
    # A stream of one token has no decode by nature.
    if observation.one_chunk_runs and observation.output > 1:
        runs = ", ".join(map(str, observation.one_chunk_runs))
        yield f"no decode: all tokens of an answer arrived at once in run {runs}; more CPU for the API process helps"


@kind(
    "short-window",
    f"All streams decoded together for less than {MIN_WINDOW_S:g} s, so this cell has no decode.",
    source="docs/reference/bench.md, the steady window",
    worthless=False,
)
def short_window(observation: Observation) -> Iterator[str]:
    if observation.short_runs and observation.output > 1:
        runs = ", ".join(map(str, observation.short_runs))
        yield f"no decode: the streams decoded together for less than {MIN_WINDOW_S:g} s in run {runs}"


@kind(
    "joined-chunks",
    "Chunks arrived together that the server had sent one by one, or had held back: the first token, the prefill and "
    "the gaps may be those of a gateway.",
    source="HAProxy without `option http-no-delay` holds the first event back for 200 ms; two events a piece make the "
    "first token one gap late",
    worthless=False,
)
def joined_chunks(observation: Observation) -> Iterator[str]:
    if observation.joined_runs:
        yield f"chunks arrived together in run {', '.join(map(str, observation.joined_runs))}"


@kind(
    "slow-client",
    f"The client itself was more than {MOST_LAG_MS:g} ms late: its CPUs were busy, and the figures are too slow.",
    source="own: a timer in the loop that reads the streams; at a load of 15 on two cores the first token was 20 to 51 "
    "ms late",
    worthless=False,
)
def slow_client(observation: Observation) -> Iterator[str]:
    most = max(observation.lags_ms, default=0.0)
    if most > MOST_LAG_MS:
        yield f"the client was {most:.0f} ms late, the 99th percentile of its timer"


@kind(
    "rate-limited",
    "The server refused requests for a time that it named. The client waited once and repeated the run.",
    source="Retry-After with status 429 or 503 (RFC 9110, 10.2.3)",
    worthless=False,
)
def rate_limited(observation: Observation) -> Iterator[str]:
    yield from observation.waited


@kind(
    "noisy",
    "A figure that the cell is measured for varies so much that a change of 10 % is not visible, although the cell was "
    "run more often for it.",
    source="own: the band of docs/operations/bench.md inside a run",
    worthless=False,
)
def noisy(observation: Observation) -> Iterator[str]:
    yield from observation.noisy


@kind(
    "unobserved",
    "The server or the place of the client does not show what some faults are found by.",
    source="own: a gateway without /metrics, a server without token ids, a client on another machine",
    worthless=False,
)
def unobserved(observation: Observation) -> Iterator[str]:
    answers = observation.answers
    missing = {
        "no counters of vLLM: other clients, a restart, cached prompts": FINISHED not in observation.after,
        "no token ids: garbage among them, tokens of a chunk": any(answer.token_ids is None for answer in answers),
        "no usage: the other count of tokens": any(answer.completion_tokens is None for answer in answers),
        "no length of a prompt": any(answer.prompt_tokens is None for answer in answers),
        f"lengths of texts are estimates, {observation.uncounted}": bool(observation.uncounted),
        "no host: clocks, heat, swap and load": not observation.samples,
    }
    if seen := [text for text, is_missing in missing.items() if is_missing]:
        yield f"not observed: {'; '.join(seen)}"


def _loaded(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples under load; all samples of a host that does not report its load."""
    return [sample for sample in samples if sample.get("gpu_percent", LOADED_PERCENT) >= LOADED_PERCENT]


def _throttled(observation: Observation, reasons: set[str], unless: set[str] | None = None) -> Iterator[str]:
    for host, samples in observation.samples.items():
        active = [_reasons(sample) for sample in samples if "throttle" in sample]
        hits = [seen & reasons for seen in active if seen & reasons and not seen & (unless or set())]
        if len(hits) >= max(LEAST_THROTTLED_SAMPLES, MOST_THROTTLED_SHARE * len(active)):
            names = ", ".join(sorted(set.union(*hits)))
            yield f"{host}: {names} in {len(hits)} of {len(active)} samples"


def _reasons(sample: Sample) -> set[str]:
    return {name for name in sample["throttle"].split(",") if name}
