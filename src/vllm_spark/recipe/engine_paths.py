"""The paths of the engine that clients may ask, by role, and those that not every engine has. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_spark.core.engine_version import numbers
from vllm_spark.node.engine_api import CHAT, EMBED, RERANK

MESSAGES, COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"
CHATS, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
# Role -> its paths, the usual one first. Clients of Cohere's and Jina's API have the other ones of a reranker.
BY_ROLE: Mapping[str, tuple[str, ...]] = {
    CHAT: (CHATS, "/v1/completions", "/v1/responses", MESSAGES, COUNT_TOKENS),
    EMBED: (EMBEDDINGS,),
    RERANK: ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score"),
}
# Path -> the first vLLM whose wheel has it: 0.11.0 and 0.16.0 are the last ones without.
FIRST: Mapping[str, str] = {MESSAGES: "0.11.1", COUNT_TOKENS: "0.17.0"}


def lacking(version: str) -> dict[str, str]:
    """Return the paths that an engine does not have, each with the first version that has it."""
    return {path: first for path, first in FIRST.items() if numbers(version) < numbers(first)}
