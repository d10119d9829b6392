"""Indexes texts with LlamaIndex by vectors of an edge, finds the nearest and sorts them. Prints a line of JSON.

    python llamaindex_client.py URL KEY

The environment has the packages and the certificate: PYTHONPATH, SSL_CERT_FILE."""

from __future__ import annotations

import json
import os
import sys

from llama_index.core import Document, VectorStoreIndex
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.postprocessor.jinaai_rerank import JinaRerank

VECTORS, SORTER = "qwen3-embedding-0.6b", "qwen3-reranker-0.6b"
TEXTS = ("how is bread, is bread", "how bread is made at home by hand", "a law")
QUESTION = "how is bread made"


def main() -> None:
    url, key = sys.argv[1:]
    embeddings = OpenAILikeEmbedding(model_name=VECTORS, api_base=f"{url}/v1", api_key=key)
    index = VectorStoreIndex.from_documents([Document(text=text) for text in TEXTS], embed_model=embeddings)
    found = index.as_retriever(similarity_top_k=3).retrieve(QUESTION)
    os.environ["REQUESTS_CA_BUNDLE"] = os.environ["SSL_CERT_FILE"]  # the only one that this reranker reads
    sorter = JinaRerank(model=SORTER, base_url=f"{url}/v1", api_key=key, top_n=2)
    kept = sorter.postprocess_nodes(found, query_str=QUESTION)
    print(json.dumps({"found": [one.text for one in found], "kept": [one.text for one in kept]}))


if __name__ == "__main__":
    main()
