"""The paths that the edge serves. Every other path is a 404, whatever the engine has there."""

from __future__ import annotations

from vllm_spark.recipe.engine_paths import COUNT_TOKENS, MESSAGES

# What clients of OpenAI and Anthropic and the gates ask. The parts of vLLM that answer without a key, such as
# /invocations and /tokenize (vllm-project/vllm#58144), and its switches, such as /pause, are not among them.
GET_PATHS = ("/v1/models",)
POST_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", MESSAGES, COUNT_TOKENS)
