"""The records of an evidence file: JSON Lines, one `run` first, then one `cell` per measured cell, at last one `end`.
An `accept` may follow: its owner takes the figures of the run as the new level.

A run that was interrupted has no `end`, and may continue in the same file. A run that ended after its operator had left
continues too: it loses that `end` and gets another. A cell that is repeated later in the file replaces the earlier one.
Times of day are ISO 8601 in UTC.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

SCHEMA = 1
# Version of the client's definitions. Figures of another version are not comparable. 2: prefill until the first token,
# arrivals in place of chunks, the prompt's length by the server's count.
PROTOCOL = 2

# Unit of every metric. A value of `acceptance_by_position` is a list with one share per drafted position.
UNITS = {
    "decode": "tok/s",  # one stream, or the mean of the streams: tokens after the first arrival / time after it
    "total": "tok/s",  # all streams together, in the steady window
    "queue": "tok/s",  # all streams together, from the first request sent to the last end
    "first_chunk": "ms",  # request sent until the first chunk with `choices`
    "first_token": "ms",  # until the first chunk with a token, content or reasoning
    "first_answer": "ms",  # until the first chunk with content, after the reasoning
    "prefill": "tok/s",  # prompt tokens that were not cached / time until the first token
    "longest_gap": "ms",  # between two arrivals of tokens of one stream
    "gap_p99": "ms",  # 99th percentile of all such gaps
    "step": "ms",  # one step of the engine
    "tokens_per_step": "tok",  # per request: 1 + accepted / drafts
    "acceptance": "1",  # accepted / drafted tokens
    "acceptance_by_position": "1",
    "request": "s",  # request sent until the end of its stream
    "output": "tok",
    "prompt": "tok",  # as the server counts, with its chat template; the mean of the streams
    "lag": "ms",  # how late the client's own timer was, 99th percentile
    "documents": "doc/s",  # all documents of a run / the time from its first request to its last answer
    "read": "tok/s",  # the tokens of these documents, as the server counts them, in the same time
    "latency": "ms",  # median of all requests of the run: sent until the last byte of the answer
    "latency_p95": "ms",  # 95th percentile of the same
    "start": "s",  # a start of the unit until its first token; `phases` of the cell has its parts
    "memory": "GiB",  # of the Spark's memory in use at the highest sample, above that before the start
}


class Key(TypedDict):
    """Everything on which the figures of a run depend. Empty text: unknown."""

    model: str  # repository
    commit: str
    layout: str  # part=width, sorted, joined by spaces
    image: str  # digest, or repository:tag of an image without one
    launch: str  # fingerprint of the launch without ports
    topology: str  # "1 node", "2 nodes, tp 2, ray"
    hosts: str  # names in order, joined by commas
    toolkit: str
    protocol: str  # sha256 of the client's definitions and corpora, 12 digits


class Subject(TypedDict):
    """What was measured, for people. Empty text: unknown."""

    deployment: str
    recipe: str
    served_name: str
    url: str
    engine_version: str


class RunRecord(TypedDict):
    """The first line. `profile` is the profile as loaded; `host` has facts of each host by name (driver …)."""

    record: Literal["run"]
    schema: int
    id: str  # 12 hexadecimal digits
    started: str
    profile: dict[str, Any]
    key: Key
    subject: Subject
    host: dict[str, dict[str, str]]


class Cell(TypedDict):
    """One cell of a profile. Lengths are in tokens."""

    id: str  # unique within the profile, for example "chat p2048 o128 d0 s1"
    corpus: str  # chat, code, json or long
    prompt: int
    output: int
    depth: int  # tokens of context before the prompt
    streams: int
    # Arguments of the request beside the lengths: temperature, top_p, top_k, chat_template_kwargs …
    sampling: dict[str, Any]
    # What the cell changes at the server: {} or one of {"speculative_tokens": 4}, {"mode": "eager"}, {"start": "cold"}.
    server: dict[str, Any]
    # The role of a server that is no chat (embed or rerank), and the documents of a request.
    role: NotRequired[str]
    documents: NotRequired[int]


class Figure(TypedDict):
    """A metric of a cell: all values of its runs, their median, and their spread (sample standard deviation / mean)."""

    unit: str
    median: Any
    spread: float | None  # None: fewer than two values
    values: list[Any]


class Sample(TypedDict, total=False):
    """One sample of a host. A value that the host does not report is missing."""

    t: float  # seconds since the start of the run
    memory_gib: float  # MemTotal - MemAvailable
    cache_gib: float  # page cache
    swap_gib: float
    swapped_mib: float  # moved between memory and swap, in and out, since the sample before
    foreign_cpu: float  # share of all CPUs that processes beside the engine and the bench used since the sample before
    cpu_wait: float  # share of that time in which a task waited for a CPU
    power_w: float
    sm_mhz: float
    temperature_c: float
    gpu_percent: float
    throttle: str  # names of the active reasons, joined by commas; "" for none


class Fault(TypedDict):
    """A reason why a figure is worthless. `id` is one of node.bench.faults."""

    id: str
    what: str


class CellRecord(TypedDict):
    """A finished cell. `figures` is empty unless the state is `measured`; `faults` of a measured cell are warnings."""

    record: Literal["cell"]
    cell: Cell
    state: Literal["measured", "failed", "worthless"]
    started: float  # seconds since the start of the run
    clock: NotRequired[float]  # Unix time of the client's host at `started`; it places samples of other hosts
    seconds: float
    runs: int
    figures: dict[str, Figure]
    faults: list[Fault]
    # Parts of a start in order: {"pull": 1.0, "weights": 54.2 …}, in seconds. Empty for other cells.
    phases: dict[str, float]
    # By host, one sample per second or fewer.
    samples: dict[str, list[Sample]]


class EndRecord(TypedDict):
    """The last line of a run that reached its end."""

    record: Literal["end"]
    seconds: float
    measured: int
    failed: int


class AcceptRecord(TypedDict):
    """The owner's word that the figures of the run are the new level."""

    record: Literal["accept"]
    why: str
    at: str
