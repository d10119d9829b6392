"""Shapes of what plugins/modules/vllm_probe.py receives and returns. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict


class HttpRequest(TypedDict):
    """One request to the API. `timeout_s` bounds the whole response.

    `base` is the URL of another server than the engine; `key_env` names the variable of the env file with its key.
    `anonymous`: send no key.
    `prefix`: return only the lines of a text response that begin with it.
    """

    id: str
    method: str
    path: str
    timeout_s: int
    body: NotRequired[Mapping[str, Any]]
    base: NotRequired[str]
    key_env: NotRequired[str]
    anonymous: NotRequired[bool]
    prefix: NotRequired[str]


class HttpResponse(TypedDict, total=False):
    """One response. `error` replaces the rest if the exchange failed.

    A stream has `events` (its parsed chunks), `done` (it ended with [DONE]) and `bad` (a chunk that is not JSON).
    The types inside `json` and `events` are whatever the server sent. The gate `reach` adds the `url` and the `source`
    of its request, or the reason why it was `unasked`.
    """

    error: str
    status: int
    json: object
    text: str
    events: Sequence[object]
    done: bool
    bad: str
    seconds: float
    url: str
    source: str
    unasked: str


class ContainerProbe(TypedDict, total=False):
    """The container of a deployment. `error` replaces the rest if Docker did not answer."""

    state: str
    image: str
    labels: Mapping[str, str]
    error: str


class SupervisorState(TypedDict, total=False):
    """state.json of a deployment. `why` explains a state in which it does not serve, `failed` is how many starts in a
    row have failed."""

    state: str
    why: str
    failed: int


class Probe(TypedDict):
    """The result of one probe of a host. `lines` are the log lines since the cursor of the previous probe.
    `responses` is by id; `edge` is what the edge of the host has answered, if it was asked with the engine."""

    unit: Mapping[str, str]
    running_s: float
    container: ContainerProbe | None
    state: SupervisorState
    lines: Sequence[str]
    cursor: str
    responses: Mapping[str, HttpResponse]
