"""Tiny models of the roles embed and rerank, in the shape of Qwen3: pure Python, so that tests need no engine."""
