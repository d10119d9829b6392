"""Ask a server about itself: its version, model, counters, and the number of tokens of a text."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.node import unix_http
from vllm_spark.node.bench import corpus, counters, reader, stream, trace
from vllm_spark.node.bench.observation import FINISHED, active
from vllm_spark.node.bench.stream import Endpoint
from vllm_spark.node.bench.trace import Trace
from vllm_spark.node.host_job import JobEndedError

TIMEOUT_S = 30.0
# A reply without an end must not fill the memory. The largest one, /metrics of a busy engine, has about 200 kB.
MAX_REPLY_BYTES = 16 << 20
MAX_QUOTED_BYTES = 4 << 10
READ_INTERVAL_S = 1.0
SETTLE_S = 3.0
SETTLE_INTERVAL_S = 0.05
# A count of tokens beyond these is none: a token is a byte at least, and no tokenizer has texts of such tokens.
MOST_CHARACTERS_PER_TOKEN = 40
# Characters of a token of prose. A usage that says something else is not believed.
LEAST_LEARNED, MOST_LEARNED = 1.5, 12.0
CHAT = "/v1/chat/completions"


class ServerError(JobEndedError):
    """A server that cannot be measured. The text names the request and the reply."""

    reason = "server"


@dataclass(slots=True)
class Server:
    """A server and what it can tell. `version` is empty for a server that is not vLLM.

    `uncounted`: why its own count of a text is not used, so that lengths are estimates; empty if it is.
    """

    endpoint: Endpoint
    model: str
    version: str = ""
    max_model_len: int | None = None
    uncounted: str = ""
    characters_per_token: float = corpus.CHARACTERS_PER_TOKEN
    _counted: dict[bytes, int] = field(default_factory=dict)  # by the sha256 of the text

    @classmethod
    def connect(cls, endpoint: Endpoint, model: str = "") -> Server:
        """Return the server with its version and the limits of the model. Without `model`, its only model.

        Raises ServerError if it does not answer, serves another model, or serves several and none is named.
        """
        listed = _get(endpoint, "/v1/models")
        rows = listed.get("data")
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "id" in row for row in rows):
            raise ServerError(f"{endpoint.url('/v1/models')} answers without a list of models")
        entries = {str(row["id"]): row for row in rows}
        if not model and len(entries) == 1:
            model = next(iter(entries))
        if model not in entries:
            raise ServerError(
                f"{endpoint.base} serves {', '.join(sorted(entries)) or 'no model'}, not {model or 'one model'}"
            )
        limit = entries[model].get("max_model_len")
        version = _version(endpoint)
        uncounted = "" if version else "no /version of vLLM"
        return cls(endpoint, model, version, limit if isinstance(limit, int) and limit > 0 else None, uncounted)

    def counters(self) -> dict[str, float]:
        """Return the engine's counters; empty for a server without /metrics."""
        try:
            return counters.read(_read(self.endpoint, "/metrics").decode("utf-8", "replace"))
        except ServerError:
            return {}

    def settled(self, before: Mapping[str, float], requests: int) -> dict[str, float]:
        """Return the counters when the engine is idle and has counted `requests` more finished ones than in `before`.

        An API process that is busy counts a request some time after its last chunk. The wait ends after SETTLE_S.
        """
        deadline = time.monotonic() + SETTLE_S
        while True:
            now = self.counters()
            counted = now.get(FINISHED, 0.0) - before.get(FINISHED, 0.0)
            settled = counted >= requests and not active(now)
            if FINISHED not in now or settled or time.monotonic() > deadline:
                return now
            time.sleep(SETTLE_INTERVAL_S)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text: the server's own count, or an estimate without one to be believed."""
        digest = hashlib.sha256(text.encode()).digest()
        if not self.uncounted and digest not in self._counted:
            body = {"model": self.model, "prompt": text, "add_special_tokens": False}
            try:
                counted = _get(self.endpoint, "/tokenize", body).get("count")
                if not isinstance(counted, int) or not len(text) / MOST_CHARACTERS_PER_TOKEN <= counted <= len(
                    text.encode()
                ):
                    self.uncounted = f"/tokenize counts {counted!r} tokens in {len(text)} characters"
                else:
                    self._counted[digest] = counted
            except ServerError as error:
                self.uncounted = str(error)
        return self._counted.get(digest) or corpus.estimate(text, self.characters_per_token)

    def learn(self, characters: int, tokens: int | None) -> None:
        """Correct the estimates of later texts by what the server has counted in a prompt, with its template."""
        if tokens and LEAST_LEARNED <= characters / tokens <= MOST_LEARNED:
            self.characters_per_token = characters / tokens

    def body(self, messages: Sequence[Mapping[str, Any]], output: int, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request of a stream of exactly `output` tokens; of at most as many from other servers."""
        body = {
            "model": self.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": output,
            **sampling,
        }
        if self.version:
            body |= {"min_tokens": output, "ignore_eos": True, "return_token_ids": True}
        return body

    def send(self, bodies: Sequence[Mapping[str, Any]], watch: stream.Watch = stream.no_watch) -> list[Trace]:
        """Send the requests at once and return their traces in order."""
        return [trace.read(recording) for recording in stream.post_all(self.endpoint, CHAT, bodies, watch)]


class CounterReader:
    """Reads the engine's counters once a second in a thread of its own, while the block runs. `readings` has them."""

    def __init__(self, server: Server) -> None:
        self.readings: list[dict[str, float]] = []
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> CounterReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(READ_INTERVAL_S):
            if reading := self._server.counters():
                self.readings.append(reading)


def _version(endpoint: Endpoint) -> str:
    try:
        return str(_get(endpoint, "/version").get("version", ""))
    except ServerError:
        return ""


def _get(endpoint: Endpoint, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    content = _read(endpoint, path, body)
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ServerError(f"{endpoint.url(path)} answers with something other than a JSON object")
    return document


def _read(endpoint: Endpoint, path: str, body: Mapping[str, Any] | None = None) -> bytes:
    """Return the response to a GET, or to a POST of `body`. Raises ServerError for every other reply than 200."""
    data = None if body is None else json.dumps(body).encode()
    try:
        status, content = request(endpoint, path, data, TIMEOUT_S, MAX_REPLY_BYTES + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an address that is no URL
        reason = getattr(error, "reason", error)
        raise ServerError(f"{endpoint.url(path)} does not answer: {reason}") from error
    if status != http.HTTPStatus.OK:
        raise ServerError(f"{endpoint.url(path)} answers {status}: {reader.quote(content[:MAX_QUOTED_BYTES])}")
    if len(content) > MAX_REPLY_BYTES:
        raise ServerError(f"{endpoint.url(path)} answers with more than {MAX_REPLY_BYTES} bytes")
    return content


def request(endpoint: Endpoint, path: str, data: bytes | None, timeout_s: float, most_bytes: int) -> tuple[int, bytes]:
    """Send a GET, or a POST of `data`. Returns the status and the response up to `most_bytes`. Raises OSError and
    http.client.HTTPException."""
    headers = {**endpoint.headers(), "Content-Type": "application/json"}
    if endpoint.socket:
        connection = unix_http.UnixConnection(endpoint.socket, timeout_s)
        with contextlib.closing(connection):
            connection.request("GET" if data is None else "POST", path, data, headers)
            response = connection.getresponse()
            return response.status, response.read(most_bytes)
    sent = urllib.request.Request(endpoint.url(path), data, headers)  # noqa: S310 - the operator's own URL
    try:
        with urllib.request.urlopen(sent, timeout=timeout_s) as answer:  # noqa: S310
            return answer.status, answer.read(most_bytes)
    except urllib.error.HTTPError as error:
        return error.code, error.read(most_bytes)
