"""What was seen during one cell: the engine's counters, the answers and the samples of the hosts. Faults judge it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_spark.node.bench.records import Sample

# Prometheus name -> value, labels summed.
Counters = Mapping[str, float]

# Names of vLLM's metrics (v1/metrics/loggers.py, the same in 0.19.1, 0.20.2 and 0.32.0).
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
FINISHED = "vllm:request_success_total"
CACHED_TOKENS = "vllm:prompt_tokens_cached_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
GENERATED_TOKENS = "vllm:generation_tokens_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
# v1/spec_decode/metrics.py. The last one has the label `position`, which a sum loses.
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
# prometheus_client's own, of the process of the API. Missing if several processes serve the API.
PROCESS_START = "process_start_time_seconds"


# A reading of the counters may miss the last step of each stream.
COUNTER_STEP_TOKENS = 8


def active(counters: Counters) -> float:
    """Return the number of requests that the engine has, running or waiting."""
    return counters.get(RUNNING, 0.0) + counters.get(WAITING, 0.0)


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete answer. `text` is its reasoning and its content. None: the server did not report the value.

    `prompt_counted` are the tokens of the request's text before the chat template: the server's own count, or an
    estimate. `chunks` are those with a token, `unseen` the tokens without one, and `estimated` says that they are many.
    """

    text: str
    token_ids: Sequence[int] | None = None
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_counted: int | None = None
    chunks: int | None = None
    unseen: int = 0
    estimated: bool = False

    @property
    def tokens(self) -> int | None:
        """Return the number of output tokens: of the token ids, else of the usage."""
        return self.completion_tokens if self.token_ids is None else len(self.token_ids)


@dataclass(slots=True)
class Observation:
    """The runs of a cell so far, without the warm-up.

    `before` and `after` are read while no request of the cell runs, `during` while its streams are active. `requests`
    is the number of requests that were sent between `before` and `after`. `samples` are those of the cell, by host;
    `gpus` has the name of each host's GPU, empty for an unknown one. `first_tokens_s` has the time to the first token
    of each run in seconds, the mean of its streams. `one_chunk_runs` has the numbers of the runs in which all tokens
    of a stream arrived at once, `joined_runs` of those in which some did, `short_runs` of those whose streams decoded
    together too shortly to be measured. `lags_ms` is how late the client was in each run, `waited` has what it waited
    for, `noisy` the leading figures that more runs did not make useful. `uncounted`: why the server's own count of a
    text is not used; empty if it is. `seconds` is the length of a finished cell; 0 for a cell that still runs.
    """

    before: Counters
    after: Counters
    requests: int
    streams: int
    output: int
    during: list[Counters] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    samples: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    gpus: Mapping[str, str] = field(default_factory=dict)
    first_tokens_s: list[float] = field(default_factory=list)
    one_chunk_runs: list[int] = field(default_factory=list)
    seconds: float = 0.0
    short_runs: list[int] = field(default_factory=list)
    joined_runs: list[int] = field(default_factory=list)
    lags_ms: list[float] = field(default_factory=list)
    waited: Sequence[str] = ()
    noisy: Sequence[str] = ()
    uncounted: str = ""

    def moved(self, counter: str) -> float | None:
        """Return by how much a counter moved, or None if the engine does not have it."""
        if counter not in self.before or counter not in self.after:
            return None
        return self.after[counter] - self.before[counter]

    def others_tokens(self) -> float | None:
        """Return how many tokens the engine generated for other requests than the bench's. None: unknown."""
        generated = self.moved(GENERATED_TOKENS)
        own = [answer.tokens for answer in self.answers]
        if generated is None or None in own:
            return None
        return generated - sum(tokens or 0 for tokens in own)
