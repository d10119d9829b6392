"""The tokenizer of both models: whole words that the sandbox asks about, and single letters for the others."""

from __future__ import annotations

import string
from typing import Any

PAD, UNKNOWN, DOCUMENT, END = "<pad>", "<unk>", "<document>", "<end>"
SPECIAL = (PAD, UNKNOWN, DOCUMENT, END)
TEXTS = (
    "how do i bake bread at home knead flour water yeast and salt let it rise the parliament has passed a law",
    "on tariffs of ships is made paris capital france ship with hole in its hull sinks what hello are you today",
    "goodbye query city weather model spark server answer question text king queen car road river mountain",
)
WORDS = tuple(dict.fromkeys(" ".join(TEXTS).split()))
LETTERS = string.ascii_lowercase + string.digits + string.punctuation
# A letter within a word has the mark of WordPiece.
PIECES = [f"{mark}{letter}" for letter in LETTERS for mark in ("", "##")]
# Piece -> its id.
IDS = {piece: number for number, piece in enumerate(dict.fromkeys((*SPECIAL, *WORDS, *PIECES)))}

# A query and a document are one prompt; the last token is where each model gathers its answer.
OF_ROLE = "{{ messages | selectattr('role', 'eq', '%s') | map(attribute='content') | first }}"
TEMPLATE = f"{OF_ROLE % 'query'}{DOCUMENT}{OF_ROLE % 'document'}{END}"


def tokenizer() -> dict[str, Any]:
    """Return tokenizer.json."""

    def special(token: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": 0}}

    def text(name: str) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": IDS[token], "content": token, **flags} for token in SPECIAL],
        "normalizer": {
            **{"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True},
            **{"strip_accents": None, "lowercase": True},
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [text("A"), special(END)],
            "pair": [text("A"), special(DOCUMENT), text("B"), special(END)],
            "special_tokens": {
                token: {"id": token, "ids": [IDS[token]], "tokens": [token]} for token in (DOCUMENT, END)
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {
            **{"type": "WordPiece", "unk_token": UNKNOWN, "continuing_subword_prefix": "##"},
            **{"max_input_chars_per_word": 100, "vocab": IDS},
        },
    }


def tokenizer_config(context: int) -> dict[str, Any]:
    """Return tokenizer_config.json. Qwen3 takes no types of tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "model_max_length": context,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
