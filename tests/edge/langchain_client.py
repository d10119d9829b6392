"""Asks an edge with LangChain for vectors and for the order of documents, and prints a line of JSON for each answer.

    python langchain_client.py URL KEY

The environment has the packages and the certificate: PYTHONPATH, SSL_CERT_FILE."""

from __future__ import annotations

import json
import sys

from langchain_cohere import CohereRerank
from langchain_core.documents import Document
from langchain_openai import OpenAIEmbeddings

VECTORS, SORTER = "qwen3-embedding-0.6b", "qwen3-reranker-0.6b"
TEXTS = ("a law", "bread at home")


def main() -> None:
    url, key = sys.argv[1:]
    # Without the last word it sends numbers of OpenAI's tokenizer.
    embeddings = OpenAIEmbeddings(model=VECTORS, base_url=f"{url}/v1", api_key=key, check_embedding_ctx_length=False)
    print(json.dumps({"documents": embeddings.embed_documents(list(TEXTS)), "query": embeddings.embed_query("bread")}))
    sorter = CohereRerank(model=SORTER, base_url=url, cohere_api_key=key, top_n=2)
    found = sorter.compress_documents([Document(page_content=text) for text in TEXTS], query="bread")
    print(json.dumps({"found": [[one.page_content, one.metadata["relevance_score"]] for one in found]}))


if __name__ == "__main__":
    main()
